package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// The elements of JUnit's format, as far as Jenkins' schema (junit-10.xsd) and others agree on it.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Time     float64      `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string  `xml:"name,attr"`
		Tests     int     `xml:"tests,attr"`
		Failures  int     `xml:"failures,attr"`
		Errors    int     `xml:"errors,attr"`
		Time      float64 `xml:"time,attr"`
		Timestamp string  `xml:"timestamp,attr,omitempty"`
		Hostname  string  `xml:"hostname,attr"`
		// Properties are the sources, and how each was read.
		Properties []junitProperty `xml:"properties>property"`
		Cases      []junitCase     `xml:"testcase"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		ClassName string       `xml:"classname,attr"`
		Name      string       `xml:"name,attr"`
		Time      float64      `xml:"time,attr"`
		Failure   *junitResult `xml:"failure"`
		Out       string       `xml:"system-out,omitempty"`
	}
	junitResult struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes a document as a JUnit file. Each finding is a test that failed, or passed if it is below j.FailOn. Without
// findings one test says what was looked at. Each direction of a path is a test, which fails as Path.Fails says, and, under
// j.Strict, each source that was not read whole. A scenario that was tried is a test, and decides alone.
func JUnit(w io.Writer, d Document, j Judgement) error {
	c := d.outline()
	seconds := math.Round(c.window.Duration().Seconds()*1000) / 1000
	suite := c.junitFindings(j)
	suite.Time, suite.Hostname, suite.Tests = seconds, c.node, len(suite.Cases)
	if start := c.window.Start; !start.IsZero() {
		suite.Timestamp = start.UTC().Format("2006-01-02T15:04:05")
	}
	for _, x := range suite.Cases {
		if x.Failure != nil {
			suite.Failures++
		}
	}
	doc := junitSuites{Name: "lasthop", Time: seconds, Tests: suite.Tests, Failures: suite.Failures, Suites: []junitSuite{suite}}
	text, err := xml.MarshalIndent(doc, "", "  ")
	if err == nil {
		_, err = io.WriteString(w, xml.Header+string(text)+"\n")
	}
	if err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	return nil
}

func (c outline) junitFindings(j Judgement) junitSuite {
	s := junitSuite{Name: "findings"}
	if t := j.Trial; t != nil {
		x := junitCase{ClassName: "lasthop.scenario", Name: Clean(t.Name)}
		if len(t.Wrong) > 0 {
			wrong := Clean(strings.Join(t.Wrong, "; "))
			x.Failure = &junitResult{wrong, "verdict", fmt.Sprintf("%s:%d: %s", Clean(t.File), t.Line, wrong)}
		}
		s.Cases = append(s.Cases, x)
	}
	class := "lasthop." + c.node
	for _, d := range c.ways {
		x := junitCase{ClassName: class + ".path", Name: d.name + " path", Out: Clean(d.ends)}
		if why := d.why(c.names); why != "" && failsAt(d.dead(), c.findings, j.FailOn) {
			x.Failure = &junitResult{why, "dead hop", why}
		} else if why != "" {
			x.Out = why
		}
		s.Cases = append(s.Cases, x)
	}
	cases := map[model.Code]int{}
	for f := range model.Each(c.findings) {
		x := junitCase{ClassName: class, Name: Clean(string(f.Code))}
		if cases[f.Code]++; cases[f.Code] > 1 {
			x.Name = fmt.Sprintf("%s %d", x.Name, cases[f.Code])
		}
		if j.fails(f) {
			_, title := Headline(c.names, f)
			x.Failure = &junitResult{Clean(title), string(f.Severity), c.plain(f)}
		} else {
			x.Out = c.plain(f)
		}
		s.Cases = append(s.Cases, x)
	}
	if len(c.findings) == 0 {
		s.Cases = append(s.Cases, junitCase{ClassName: class, Name: "no findings", Out: Clean(c.verdict)})
	}
	for _, src := range c.sources {
		why := Clean(SourceText(src.Source))
		s.Properties = append(s.Properties, junitProperty{Clean(src.node + " " + src.Name), Clean(statusText(src.Source))})
		if j.Strict && isGap(src.Source) && j.Trial == nil {
			s.Cases = append(s.Cases, junitCase{
				ClassName: "lasthop." + src.node + ".sources", Name: Clean(src.Name), Failure: &junitResult{why, "incomplete", why},
			})
		}
	}
	return s
}
