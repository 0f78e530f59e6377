package report_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/joshdk/go-junit"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// golden compares a text with what testdata has, or writes it there.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs from what is written (go test -update, then review):\n%s", path, got)
	}
}

// evilName attacks XML and the workflow commands of GitHub's runner.
const evilName = "a::error file=x::b%0A,c:d\n::set-output name=x::y\r\n]]>&<b>\"'\x00\x1b[2J"

func hostileTrial() *report.Trial {
	return &report.Trial{Name: evilName, File: evilName, Line: 7, Wrong: []string{evilName, "exit code 1, want 0"}}
}

func ciReports() map[string]struct {
	report report.Report
	judged report.Judgement
} {
	warning := report.Judgement{FailOn: model.Warning}
	info := staleRewrite()
	info.Severity = model.Info
	again := missingUDR()
	again.Title = "nothing comes back from 10.61.2.0/24"
	evil := hostile()
	evil.Findings[0].Title, evil.Findings[0].Code, evil.Snapshot.Node.Name = evilName, evilName, evilName
	return map[string]struct {
		report report.Report
		judged report.Judgement
	}{
		"ci-none":     {report.Report{Snapshot: node()}, warning},
		"ci-two":      {report.Report{Snapshot: dropped(), Findings: []model.Finding{staleRewrite(), missingUDR(), again}}, warning},
		"ci-critical": {report.Report{Snapshot: node(), Findings: []model.Finding{staleRewrite(), missingUDR(), info}}, report.Judgement{FailOn: model.Critical}},
		"ci-strict":   {report.Report{Snapshot: withGaps()}, report.Judgement{FailOn: model.Warning, Strict: true}},
		"ci-expected": {report.Report{Snapshot: node(), Findings: []model.Finding{staleRewrite()}},
			report.Judgement{FailOn: model.Warning, Trial: &report.Trial{Name: "stale-mac-rewrite", File: "kind/scenarios/stale-mac-rewrite.yaml", Line: 31}}},
		"ci-wrong": {report.Report{Snapshot: node(), Findings: []model.Finding{staleRewrite()}},
			report.Judgement{FailOn: model.Warning, Trial: &report.Trial{Name: "mine", File: "net/mine.yaml", Line: 12, Wrong: []string{"exit code 1, want 0", "finding StaleMACRewrite must be absent"}}}},
		"ci-hostile": {evil, report.Judgement{FailOn: model.Warning, Trial: hostileTrial()}},
	}
}

func TestJUnit(t *testing.T) {
	for name, c := range ciReports() {
		var b bytes.Buffer
		if err := report.JUnit(&b, c.report, c.judged); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".xml", b.String())
		suites, err := junit.Ingest(b.Bytes())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkSuites(t, name, suites, b.String())
		failed := 0
		for _, s := range suites {
			failed += s.Totals.Failed + s.Totals.Error
		}
		if want := fails(c.report, c.judged); (failed > 0) != want {
			t.Errorf("%s: %d failures, want some %v", name, failed, want)
		}
	}
}

// fails is whether a job fails for a report, by the exit status that goes with it.
func fails(r report.Report, j report.Judgement) bool {
	if j.Trial != nil {
		return len(j.Trial.Wrong) > 0
	}
	for _, f := range r.Findings {
		if f.Severity.Rank() >= j.FailOn.Rank() {
			return true
		}
	}
	return j.Strict && len(report.Gaps(r.Snapshot)) > 0
}

// checkSuites wants what junit-10.xsd demands of counts and names, and that no test has
// the same name as another.
func checkSuites(t *testing.T, name string, suites []junit.Suite, text string) {
	t.Helper()
	if len(suites) != 1 {
		t.Errorf("%s: %d suites", name, len(suites))
	}
	seen := map[string]bool{}
	for _, s := range suites {
		for _, c := range s.Tests {
			if c.Name == "" || c.Classname == "" || seen[c.Classname+" "+c.Name] {
				t.Errorf("%s: test %q of %q is without a name, or not the only one", name, c.Name, c.Classname)
			}
			seen[c.Classname+" "+c.Name] = true
		}
		counts := regexp.MustCompile(`<testsuite name="` + s.Name + `" tests="(\d+)" failures="(\d+)" errors="0"`).FindStringSubmatch(text)
		want := []int{s.Totals.Tests, s.Totals.Failed}
		for i, n := range want {
			if counts == nil || counts[i+1] != strconv.Itoa(n) {
				t.Errorf("%s: suite %s says %q, want %v", name, s.Name, counts, want)
				break
			}
		}
	}
}

func TestAnnotations(t *testing.T) {
	for name, c := range ciReports() {
		var b strings.Builder
		for _, a := range report.Annotations(c.report, c.judged) {
			b.WriteString(a.String() + "\n")
		}
		golden(t, name+".github", b.String())
		seen := 0
		for _, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
			if line == "" {
				continue
			}
			command := parseCommand(t, line)
			switch command.level {
			case "error", "warning":
				seen++
			}
			if j := c.judged; j.Trial != nil && (command.properties["file"] != report.Clean(j.Trial.File) || command.properties["line"] != strconv.Itoa(j.Trial.Line)) {
				t.Errorf("%s: the annotation is at %q", name, command.properties)
			}
		}
		if want := fails(c.report, c.judged); (seen > 0) != want {
			t.Errorf("%s: %d errors and warnings, want some %v", name, seen, want)
		}
	}
}

type workflowCommand struct {
	level, data string
	properties  map[string]string
}

// parseCommand reads a workflow command as GitHub's runner does (ActionCommand.TryParseV2):
// the properties end at the next "::", then escapes are undone.
func parseCommand(t *testing.T, line string) workflowCommand {
	t.Helper()
	rest, ok := strings.CutPrefix(line, "::")
	head, data, found := strings.Cut(rest, "::")
	level, properties, _ := strings.Cut(head, " ")
	if !ok || !found || (level != "error" && level != "warning" && level != "notice") || strings.ContainsAny(line, "\r\n") {
		t.Fatalf("not one command: %q", line)
	}
	undo := strings.NewReplacer("%0D", "\r", "%0A", "\n", "%3A", ":", "%2C", ",", "%25", "%")
	c := workflowCommand{level, strings.NewReplacer("%0D", "\r", "%0A", "\n", "%25", "%").Replace(data), map[string]string{}}
	for _, p := range strings.Split(properties, ",") {
		key, value, _ := strings.Cut(p, "=")
		switch key {
		case "file", "line", "col", "title":
		default:
			t.Errorf("%q brings the property %q in", line, key)
		}
		c.properties[key] = undo.Replace(value)
	}
	return c
}

func TestAnnotationEscapes(t *testing.T) {
	a := report.Annotation{Level: "error", Title: "50%: a, b", Text: "first 10%\nsecond, third: fourth", File: "a,b/c:d.yaml", Line: 3, Column: 9}
	want := "::error file=a%2Cb/c%3Ad.yaml,line=3,col=9,title=50%25%3A a%2C b::first 10%25%0Asecond, third: fourth"
	if got := a.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSummary(t *testing.T) {
	for _, name := range []string{"ci-wrong", "ci-expected", "ci-hostile"} {
		c := ciReports()[name]
		var b strings.Builder
		if err := report.Summary(&b, c.report, c.judged); err != nil {
			t.Fatal(err)
		}
		golden(t, name+"-summary.md", b.String())
	}
}

func TestSummaryIsBounded(t *testing.T) {
	r := report.Report{Snapshot: node(), Findings: []model.Finding{staleRewrite()}}
	for range 20_000 {
		r.Findings[0].Evidence = append(r.Findings[0].Evidence, model.Evidence{Source: "tc", Text: strings.Repeat("x", 70)})
	}
	var b strings.Builder
	if err := report.Summary(&b, r, report.Judgement{FailOn: model.Warning}); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 1<<20 || !strings.Contains(b.String(), "bytes were cut") {
		t.Errorf("%d bytes", b.Len())
	}
}

func TestCIWriteFails(t *testing.T) {
	full := errors.New("no space left")
	r := report.Report{Snapshot: node()}
	for _, err := range []error{report.JUnit(failing{full}, r, report.Judgement{}), report.Summary(failing{full}, r, report.Judgement{})} {
		if !errors.Is(err, full) {
			t.Errorf("got %v, want the writer's error", err)
		}
	}
}
