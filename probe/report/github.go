package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Annotation is a remark on a GitHub Actions run.
type Annotation struct {
	// Level is error, warning or notice.
	Level       string
	Title, Text string
	// File is relative to the workspace, empty where it is about none. Line and Column count from 1; 0 is none.
	File         string
	Line, Column int
}

// In the data of a workflow command these would end it, or be decoded.
var (
	commandData  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	commandValue = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// String is the annotation as a workflow command, on one line whatever it holds.
func (a Annotation) String() string {
	var b strings.Builder
	b.WriteString("::" + a.Level + " ")
	if a.File != "" {
		b.WriteString("file=" + commandValue.Replace(Clean(a.File)) + ",")
		if a.Line > 0 {
			fmt.Fprintf(&b, "line=%d,", a.Line)
		}
		if a.Line > 0 && a.Column > 0 {
			fmt.Fprintf(&b, "col=%d,", a.Column)
		}
	}
	b.WriteString("title=" + commandValue.Replace(Clean(a.Title)) + "::")
	// Line ends in the text are meant, all else is cleaned.
	b.WriteString(commandData.Replace(strings.Join(model.Map(strings.Split(a.Text, "\n"), Clean), "\n")))
	return b.String()
}

// Annotations are a document's on a GitHub Actions run: an error for a critical finding that fails the job, and for a hop at
// which packets end without a finding; a warning or notice for other findings. Where a scenario was tried there is one
// alone, at its file and line, if the verdict was not the expected one.
func Annotations(d Document, j Judgement) []Annotation {
	c := d.outline()
	if t := j.Trial; t != nil {
		if len(t.Wrong) == 0 {
			return nil
		}
		text := append([]string{}, t.Wrong...)
		for f := range model.Each(c.findings) {
			text = append(text, "", c.plain(f))
		}
		if len(c.findings) == 0 {
			text = append(text, "", c.verdict)
		}
		title := "lasthop: unexpected verdict for " + t.Name
		return []Annotation{{Level: "error", Title: title, File: t.File, Line: t.Line, Text: strings.Join(text, "\n")}}
	}
	var out []Annotation
	add := func(level, title, text string) {
		out = append(out, Annotation{Level: level, Title: "lasthop: " + title, Text: text})
	}
	for f := range model.Each(c.findings) {
		level := map[model.Severity]string{model.Critical: "warning", model.Warning: "warning"}[f.Severity]
		if f.Severity == model.Critical && j.fails(f) {
			level = "error"
		}
		add(cmp.Or(level, "notice"), fmt.Sprintf("%s on %s", f.Code, c.node), c.plain(f))
	}
	for _, d := range c.ways {
		if h := d.dead(); h != nil && h.Finding == "" {
			add("error", fmt.Sprintf("dead hop on the %s path", d.name), d.why(c.names))
		}
	}
	for _, src := range c.sources {
		if j.Strict && isGap(src.Source) {
			add("error", "incomplete on "+src.node, SourceText(src.Source))
		}
	}
	return out
}

// maxSummary is less than the most that GitHub accepts of one step, 1 MiB.
const maxSummary = 1000 << 10

// Summary writes a document in Markdown for the summary of a GitHub Actions job. What
// is too long for GitHub is cut off, and said.
func Summary(w io.Writer, d Document, j Judgement) error {
	var b bytes.Buffer
	if t := j.Trial; t != nil {
		verdict := "the verdict is as expected"
		if len(t.Wrong) > 0 {
			verdict = "**unexpected verdict**: " + md(strings.Join(t.Wrong, "; "))
		}
		fmt.Fprintf(&b, "# Scenario %s\n\n%s (%s, line %d)\n\n", md(t.Name), verdict, md(t.File), t.Line)
	}
	if err := Write(&b, d, Markdown, Style{}); err != nil {
		return err
	}
	text := b.Bytes()
	if len(text) > maxSummary {
		whole := bytes.LastIndexByte(text[:maxSummary], '\n') + 1
		text = fmt.Appendf(text[:whole:whole], "\nThe report is longer than GitHub accepts: %d bytes were cut.\n", len(text)-whole)
	}
	// The next step's summary begins on a line of its own.
	if _, err := w.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
}
