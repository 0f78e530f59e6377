package report

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// The bounds of the short formats, in bytes. A cloud's run-command keeps 4 KiB of what a
// command prints; a program that troubleshoots wants a tool's text short as well.
const (
	briefBytes = 3500
	toolBytes  = 6800
	// lineBytes bounds a line: a name may be of any length.
	lineBytes = 600
)

// short is text of whole lines that has a bound.
type short struct {
	text bytes.Buffer
	most int
	// left counts the lines that found no room. how says how to get them.
	left int
	how  string
}

// add adds lines that belong together, or leaves all of them out: one that is too long may be
// a command. Nothing comes behind what found no room, so that the order holds.
func (s *short) add(lines ...string) {
	const note = 160 // what String adds
	lines = model.Map(lines, Clean)
	if slices.ContainsFunc(lines, func(line string) bool { return len(line) > lineBytes }) {
		lines = []string{fmt.Sprintf("# %s too long for this text: see -o json", model.Quantity(len(lines), "line"))}
	}
	text := strings.Join(lines, "\n") + "\n"
	if s.left > 0 || s.text.Len()+len(text)+note > s.most {
		s.left += len(lines)
		return
	}
	s.text.WriteString(text)
}

func (s *short) String() string {
	if s.left > 0 {
		fmt.Fprintf(&s.text, "%s left out: %s\n", model.Quantity(s.left, "line"), s.how)
	}
	return s.text.String()
}

// bound cuts prose.
func bound(line string) string {
	const most = lineBytes - 40
	if line = Clean(line); len(line) <= lineBytes {
		return line
	}
	cut := strings.ToValidUTF8(line[:most], "")
	return fmt.Sprintf("%s… (%d more bytes)", cut, len(line)-len(cut))
}

// brief is the verdict, then of each finding the cause and the fix, the worst first. All
// headlines come before the first cause.
func (o outline) brief(w io.Writer) error {
	s, verdict := &short{most: briefBytes, how: "lasthop check -o wide has them"}, o.verdict
	if len(o.findings) > 0 && o.ways == nil {
		verdict = fmt.Sprintf("%s on %s in %s",
			model.Quantity(len(o.findings), "finding"), o.node, Duration(o.window.Duration()))
	}
	s.add(bound("lasthop: " + verdict))
	for f := range model.Each(o.findings) {
		severity, headline := Headline(o.names, f)
		s.add(bound(severity + " " + headline))
	}
	for f := range model.Each(o.findings) {
		s.add(string(f.Code), bound("  cause: "+Prose(o.names, f.Why)), bound("  last hop alive: "+LastHopAlive(f)))
		todo := model.Map(Fix(f), func(line string) string { return "  fix: " + line })
		s.add(append(todo, model.Map(f.Next, func(line string) string { return "  next: " + line })...)...)
	}
	if o.shell != "" {
		s.add(o.shell)
	}
	_, err := io.WriteString(w, s.String())
	return err
}

// toolDoc is what a tool of `lasthop mcp` returns: a text for a language model, and the document.
type toolDoc struct {
	Text     string `json:"text"`
	Document any    `json:"document"`
}

func tool(w io.Writer, r Document) error {
	text, err := plainText(r, true)
	if err != nil {
		return err
	}
	return Tool(w, text, r.doc())
}

// plainText is the text of a document; wide has findings whole.
func plainText(d Document, wide bool) (string, error) {
	var text bytes.Buffer
	p := &printer{w: bufio.NewWriter(&text), wide: wide}
	d.text(p, false)
	err := p.w.Flush()
	return text.String(), err
}

// Tool writes a text, as far as it has room, with its document, as the format MCP does.
func Tool(w io.Writer, text string, doc any) error {
	s := &short{most: toolBytes, how: "ask about one pod, or one finding by its code; the structured content has more"}
	var group []string
	for line := range strings.Lines(text) {
		// What is below a label belongs to it: a fix is there as a whole or not.
		if !strings.HasPrefix(line, strings.Repeat(" ", indent)) && len(group) > 0 {
			s.add(group...)
			group = nil
		}
		group = append(group, strings.TrimSuffix(line, "\n"))
	}
	s.add(group...)
	return writeJSON(w, toolDoc{s.String(), doc}, "")
}
