package report

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // for the template
	"encoding/base64"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

//go:embed page.html
var pageText string

// pageTemplate is parsed only if a page is wanted.
var pageTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.New("").Parse(pageText)) })

const (
	// pageBytes bounds a page: mail and chats take a file of that size.
	pageBytes = 150 << 10
	// pageColumns and narrowColumns are the widths of a page's drawings, on a desk and on a telephone.
	pageColumns, narrowColumns = 110, 58
	// mostHeadlines are the findings that a page has at all. What is in a list or a table is cut to these columns.
	mostHeadlines = 50
	listColumns   = 100
	cellColumns   = 40
	textBytes     = 24 << 10
)

// page is what the template shows.
type page struct {
	Styles, Script  template.HTML
	Policy          string
	Node, Watched   string
	Title, Severity string
	Path            []*picture
	Findings        []pageFinding
	// Left are the headlines of findings for which there is no room.
	Left      []pageFinding
	LeftMore  int
	Bars      []bar
	From, To  string
	Shell     string
	Reach     [][]cell
	ReachMore string
	Text      string
}

type pageFinding struct {
	ID              int
	Severity, Title string
	// Short is the title, cut.
	Short         string
	Path          []*picture
	Facts, Folded []Section
	Commands      []Section
}

// bar is when a finding was there, in percent of the time that the page is about.
type bar struct {
	Finding   pageFinding
	At, Width string
	When      string
}

// cell is one of a table. Class is that of a word which stands out.
type cell struct{ Text, Class string }

// writeHTML writes a page of at most pageBytes. Findings that have no room are there as headlines, the least severe first.
func writeHTML(w *bufio.Writer, d Document) error {
	o := d.outline()
	text, err := wholeText(d)
	if err != nil {
		return err
	}
	p := page{Node: o.node, Title: bound(o.verdict), Severity: "none", Shell: o.shell, Text: text}
	p.Watched = "observed for " + Duration(o.window.Duration())
	if start := o.window.Start; !start.IsZero() {
		p.Watched += " from " + start.UTC().Format("2006-01-02 15:04:05") + " UTC"
	}
	if n := len(o.findings); n > 1 {
		p.Watched += " · " + model.Quantity(n, "finding")
	}
	var style, script bytes.Buffer
	for name, to := range map[string]*bytes.Buffer{"style": &style, "script": &script} {
		if err := pageTemplate().ExecuteTemplate(to, name, nil); err != nil {
			return err
		}
	}
	hash := sha256.Sum256(script.Bytes())
	p.Policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
	p.Styles = template.HTML("<style>" + style.String() + "</style>")
	p.Script = template.HTML("<script>" + script.String() + "</script>")
	p.Path = o.pictures(o.drawn)
	if o.reach != nil {
		rows, more := o.reach()
		for _, row := range rows {
			p.Reach = append(p.Reach, model.Map(row, func(c cell) cell { return cell{cut(c.Text, cellColumns), c.Class} }))
		}
		p.ReachMore = more
	}
	findings := make([]pageFinding, min(len(o.findings), mostHeadlines))
	for i := range findings {
		findings[i] = o.page(i)
	}
	p.LeftMore = len(o.findings) - len(findings)
	if len(findings) > 0 && len(o.ways) == 0 {
		p.Title, p.Severity = findings[0].Title, findings[0].Severity
	}
	p.Bars, p.From, p.To = o.bars(findings)
	for shown := len(findings); ; shown-- {
		p.Findings, p.Left = findings[:shown], findings[shown:]
		var b bytes.Buffer
		if err := pageTemplate().ExecuteTemplate(&b, "page", p); err != nil {
			return err
		}
		if b.Len() <= pageBytes || shown == 0 && p.Text == "" {
			_, err := w.Write(b.Bytes())
			return err
		}
		if shown == 0 {
			p.Text = ""
			shown++
		}
	}
}

func cut(text string, columns int) string { return ansi.Truncate(Clean(text), columns, "…") }

// wholeText is the text of a document, as far as it has room.
func wholeText(d Document) (string, error) {
	text, err := plainText(d, false)
	s := &short{most: textBytes, how: "lasthop check -o wide has them"}
	for line := range strings.Lines(text) {
		s.add(strings.TrimSuffix(line, "\n"))
	}
	return s.String(), err
}

// pictures draw a path for wide and for narrow pages.
func (o outline) pictures(d *Drawing) []*picture {
	if d == nil {
		return nil
	}
	wide, narrow := o.picture(d, pageColumns), o.picture(d, narrowColumns)
	wide.Class, narrow.Class = "wide", "narrow"
	return []*picture{wide, narrow}
}

func (o outline) page(i int) pageFinding {
	f := &o.findings[i]
	_, title := Headline(o.names, f)
	out := pageFinding{ID: i + 1, Severity: string(f.Severity), Title: bound(title), Short: cut(title, listColumns), Path: o.pictures(o.drawing(i))}
	for _, x := range Sections(o.of(f), o.names, f) {
		x.Values = model.Map(x.Values, model.Either(x.Verbatim, Clean, bound))
		switch {
		case slices.Contains([]string{"evidence", "not seen", "could also be", Surer}, x.Name):
			out.Folded = append(out.Folded, x)
		case x.Verbatim:
			out.Commands = append(out.Commands, x)
		default:
			out.Facts = append(out.Facts, x)
		}
	}
	return out
}

func (o outline) bars(shown []pageFinding) (bars []bar, from, to string) {
	start, end := o.window.Start, o.window.End
	for _, f := range o.findings {
		if !f.Opened.IsZero() && f.Opened.Before(start) {
			start = f.Opened
		}
		if f.Closed.After(end) {
			end = f.Closed
		}
	}
	if !end.After(start) || start.IsZero() {
		return nil, "", ""
	}
	percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(end.Sub(start)) }
	for i, x := range shown {
		f := &o.findings[i]
		opened, closed := cmp.Or(f.Opened, start), cmp.Or(f.Closed, end)
		when := cmp.Or(seenAt(f), "the whole time")
		bars = append(bars, bar{x, fmt.Sprintf("%.1f%%", percent(opened.Sub(start))), fmt.Sprintf("%.1f%%", max(percent(closed.Sub(opened)), 1)), when})
	}
	const clock = "15:04:05"
	return bars, start.UTC().Format(clock), end.UTC().Format(clock)
}
