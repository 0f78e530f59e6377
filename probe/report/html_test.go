package report_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// lossy is a report with a path, a map, and a finding that came during the window.
func lossy() report.Report {
	f := missingUDR()
	s := node()
	f.Opened = s.Window.Start.Add(s.Window.Duration() / 2)
	p := explained().Path
	return report.Report{Snapshot: s, Findings: []model.Finding{f}, Paths: []*model.Path{&p}, Matrix: whoReaches()}
}

func TestHTML(t *testing.T) {
	page := render(t, lossy(), report.HTML, report.Style{})
	for _, want := range []string{
		"<!DOCTYPE html>", ">warning</span>MissingUDR: ", `<svg xmlns="http://www.w3.org/2000/svg" role="img" class="wide"`, `class="narrow"`,
		"Who reaches whom", `<td class="dead">DEAD</td>`, `x="50.0%"`, `width="50.0%"`, `<button type="button">copy</button>`, "<details>",
		"prefers-color-scheme:dark", "@media print", "default-src &#39;none&#39;",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in:\n%s", want, page)
		}
	}
	if strings.Contains(page, "ZgotmplZ") {
		t.Error("the template filtered a value")
	}
}

// outward is what would have a browser load something, or run a script that is not the page's.
var outward = regexp.MustCompile(`(?i)\s(src|href|srcset|action|on[a-z]+)\s*=|url\(|@import|<(link|img|iframe|object|embed|base|form|use|image|foreignObject)\b`)

// TestPagesAreInert: whatever names, rules and details hold, none of it is an element, and nothing is loaded.
func TestPagesAreInert(t *testing.T) {
	long := `<script>alert(1)</script><img src=x onerror=alert(1)>"'` + "`" + ` javascript:x </style></svg></pre>]]>`
	evil := hostile()
	evil.Snapshot.Pods[0].Name, evil.Snapshot.Pods[0].Namespace = long, "shop"
	f := missingUDR()
	f.Title, f.Why, f.Fix, f.Code = long, long, []string{long}, model.Code(long)
	f.Evidence = []model.Evidence{{Source: long, Text: long}}
	evil.Findings, evil.Matrix = append(evil.Findings, f), whoReaches()
	evil.Matrix.Columns[1].Name = long
	path := hostilePath()
	evil.Paths = []*model.Path{nil, &path.Path}
	for _, d := range []report.Document{evil, path, hostileJoint(long)} {
		for _, format := range []report.Format{report.HTML, report.SVG} {
			var b strings.Builder
			if err := report.Write(&b, d, format, report.Style{}); err != nil {
				t.Fatal(err)
			}
			text := b.String()
			if scripts := strings.Count(text, "<script"); scripts > 1 || format == report.SVG && scripts > 0 {
				t.Errorf("%T as %s has %d scripts", d, format, scripts)
			}
			// Text may hold these words; tags may not.
			for _, tag := range regexp.MustCompile(`<[^>]*>`).FindAllString(text, -1) {
				if found := outward.FindString(tag); found != "" {
					t.Errorf("%T as %s: %q in %s", d, format, found, tag)
				}
			}
			if strings.Contains(text, "<img") || strings.ContainsAny(text, "\x1b\u202e") {
				t.Errorf("%T as %s is not escaped: %s", d, format, text)
			}
			if format == report.SVG {
				wellFormed(t, text)
			}
		}
	}
}

func hostileJoint(text string) report.Joint {
	f := missingUDR()
	f.Nodes, f.Title = []string{text}, text
	return report.Joint{Nodes: []model.NodeSeen{{Name: text, Recording: text, Reason: text}}, Findings: []model.Finding{f}, Names: report.Names{cart: {Other: text}}}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
}

// TestHTMLIsSmall: a page has at most 150 KiB, and still names the findings that have no room.
func TestHTMLIsSmall(t *testing.T) {
	r := lossy()
	p := r.Paths[0]
	for i := range 300 {
		f := missingUDR()
		f.Title = fmt.Sprintf("%d %s", i, strings.Repeat(`"<&`, 200))
		f.Why, f.Fix = strings.Repeat("<", 5000), []string{strings.Repeat("'", 3000)}
		r.Findings, r.Paths = append(r.Findings, f), append(r.Paths, p)
	}
	for row := range model.Each(r.Matrix.Columns) {
		row.Name = strings.Repeat(`"`, 500)
	}
	page := render(t, r, report.HTML, report.Style{})
	if len(page) > 150<<10 || !strings.Contains(page, "and 251 more") || !strings.Contains(page, "More findings") {
		t.Errorf("%d bytes:\n%s", len(page), page)
	}
}

// TestSVG: the drawing has the words of the text's, and without a path the verdict.
func TestSVG(t *testing.T) {
	for name, c := range map[string]struct {
		d    report.Document
		want []string
	}{
		"finding": {lossy(), []string{"packets end here", `class="ends thick"`, ">uplink "}},
		"path":    {explained(), []string{"packets end here", "<title>path shop/cart"}},
		"none":    {report.Report{Snapshot: node()}, []string{"no loss seen"}},
	} {
		var b strings.Builder
		if err := report.Write(&b, c.d, report.SVG, report.Style{}); err != nil {
			t.Fatal(err)
		}
		wellFormed(t, b.String())
		for _, want := range c.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in %s", name, want, b.String())
			}
		}
	}
}

// TestBars: a page of several nodes has the time from the first finding to the last, by which bars are drawn.
func TestBars(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	f, g := missingUDR(), missingUDR()
	f.Opened, f.Closed = start.Add(-10*time.Minute), start
	g.Opened = start.Add(5 * time.Minute)
	r := report.Joint{Nodes: []model.NodeSeen{{Name: "a", Window: model.Window{Start: start, End: start.Add(10 * time.Minute)}}}, Findings: []model.Finding{f, g}}
	var b strings.Builder
	if err := report.Write(&b, r, report.HTML, report.Style{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"02:50:00 to 03:10:00 UTC", `x="0.0%" y="2" width="50.0%"`, `x="75.0%" y="2" width="25.0%"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in %s", want, b.String())
		}
	}
}
