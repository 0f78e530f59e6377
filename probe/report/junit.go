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
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Errors    int         `xml:"errors,attr"`
		Skipped   int         `xml:"skipped,attr"`
		Time      float64     `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr,omitempty"`
		Hostname  string      `xml:"hostname,attr"`
		Cases     []junitCase `xml:"testcase"`
	}
	junitCase struct {
		ClassName string       `xml:"classname,attr"`
		Name      string       `xml:"name,attr"`
		Time      float64      `xml:"time,attr"`
		Skipped   *junitResult `xml:"skipped"`
		Failure   *junitResult `xml:"failure"`
		Out       string       `xml:"system-out,omitempty"`
	}
	junitResult struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes a document as a JUnit file. Each code that was found is a test that failed, or passed if it is below
// j.FailOn. Without findings one test says what was looked at. Each source is a test, skipped if it was not read whole,
// and each direction of a path, which fails as Path.Fails says. A scenario that was tried is a test, and decides alone.
func JUnit(w io.Writer, d Document, j Judgement) error {
	c := d.outline()
	seconds := math.Round(c.window.Duration().Seconds()*1000) / 1000
	suites := []junitSuite{c.junitFindings(j, seconds), c.junitSources(j)}
	doc := junitSuites{Name: "lasthop", Time: seconds, Suites: suites}
	for s := range model.Each(doc.Suites) {
		s.Hostname, s.Tests = c.node, len(s.Cases)
		if start := c.window.Start; !start.IsZero() {
			s.Timestamp = start.UTC().Format("2006-01-02T15:04:05")
		}
		for _, x := range s.Cases {
			if x.Failure != nil {
				s.Failures++
			}
			if x.Skipped != nil {
				s.Skipped++
			}
		}
		doc.Tests, doc.Failures = doc.Tests+s.Tests, doc.Failures+s.Failures
	}
	text, err := xml.MarshalIndent(doc, "", "  ")
	if err == nil {
		_, err = io.WriteString(w, xml.Header+string(text)+"\n")
	}
	if err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	return nil
}

func (c outline) junitFindings(j Judgement, seconds float64) junitSuite {
	s := junitSuite{Name: "findings", Time: seconds}
	if t := j.Trial; t != nil {
		x := junitCase{ClassName: "lasthop.scenario", Name: Clean(t.Name), Time: seconds}
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
		at, ok := cases[f.Code]
		if !ok {
			at = len(s.Cases)
			cases[f.Code] = at
			s.Cases = append(s.Cases, junitCase{ClassName: class, Name: Clean(string(f.Code))})
		}
		_, title := Headline(c.names, f)
		switch x := &s.Cases[at]; {
		case !j.fails(f):
			x.Out = strings.TrimPrefix(x.Out+"\n\n"+c.plain(f), "\n\n")
		case x.Failure == nil:
			x.Failure = &junitResult{Clean(title), string(f.Severity), c.plain(f)}
		default:
			x.Failure.Text += "\n\n" + c.plain(f)
		}
	}
	if len(c.findings) == 0 {
		s.Cases = append(s.Cases, junitCase{ClassName: class, Name: "no findings", Out: Clean(c.verdict)})
	}
	return s
}

func (c outline) junitSources(j Judgement) junitSuite {
	s := junitSuite{Name: "sources"}
	for _, src := range c.sources {
		x := junitCase{ClassName: "lasthop." + src.node + ".sources", Name: Clean(src.Name)}
		why := &junitResult{Message: Clean(SourceText(src.Source))}
		switch {
		case src.Status == model.OK:
			x.Out = Clean(src.Detail)
		case j.Strict && isGap(src.Source) && j.Trial == nil:
			why.Type = "incomplete"
			x.Failure = why
		default:
			x.Skipped = why
		}
		s.Cases = append(s.Cases, x)
	}
	return s
}
