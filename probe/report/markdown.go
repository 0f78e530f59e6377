package report

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

func (r Report) markdown(w *bufio.Writer) {
	s, o := r.Snapshot, r.outline()
	o.markdown(w, orUnknown(s.Node.Name))
	unexplained := r.unexplained(o.names)
	items(w, "unexplained", unexplained...)
	if len(unexplained) > 0 {
		fmt.Fprint(w, "\n")
	}
	fmt.Fprint(w, "| source | status | detail |\n|---|---|---|\n")
	for _, src := range s.Sources {
		fmt.Fprintf(w, "| %s | %s | %s |\n", md(src.Name), md(string(src.Status)), md(src.Detail))
	}
	rows := probeRows(s, o.names)
	if len(rows) > 0 {
		fmt.Fprint(w, "\n")
	}
	items(w, "probe", rows...)
	fmt.Fprintf(w, "\n%s, observed for %s; lasthop missed: %s\n",
		md(NodeText(s.Node)), Duration(s.Window.Duration()), md(strings.Join(LostText(s.Traffic.Lost), "; ")))
}

// markdown writes the findings of what was watched, or the verdict without any.
func (o outline) markdown(w *bufio.Writer, watched string) {
	if len(o.findings) == 0 {
		fmt.Fprintf(w, "# lasthop: %s\n\n", md(o.verdict))
	} else {
		fmt.Fprintf(w, "# lasthop: %s on %s\n\n", model.Quantity(len(o.findings), "finding"), md(watched))
	}
	for i := range o.findings {
		o.markdownFinding(w, &o.findings[i], o.drawing(i))
	}
	if o.shell != "" {
		fmt.Fprintf(w, "    # %s\n\n", o.shell)
	}
}

// markdownDrawing is a path in boxes, as wide as GitHub shows it.
func markdownDrawing(w *bufio.Writer, d *Drawing) {
	if d != nil {
		(&printer{w: w}).drawing("    ", d.wide(100))
		fmt.Fprint(w, "\n")
	}
}

func (o outline) markdownFinding(w *bufio.Writer, f *model.Finding, d *Drawing) {
	severity, rest := Headline(o.names, f)
	fmt.Fprintf(w, "## %s %s\n\n", severity, md(rest))
	markdownDrawing(w, d)
	var commands []string
	for _, x := range Sections(o.of(f), o.names, f) {
		switch {
		case x.Name == Surer:
		case x.Verbatim:
			if x.Name == "next" {
				commands = append(commands, "# no fix is known; do first:")
			}
			commands = append(commands, x.Values...)
		case x.Names:
			items(w, x.Name, strings.Join(x.Values, ", "))
		default:
			items(w, x.Name, x.Values...)
		}
	}
	fmt.Fprint(w, "\n")
	// Nothing inside can end an indented block.
	for _, c := range commands {
		fmt.Fprintf(w, "    %s\n", Clean(c))
	}
	fmt.Fprint(w, "\n")
}

func items(w *bufio.Writer, label string, texts ...string) {
	for _, text := range texts {
		fmt.Fprintf(w, "- **%s**: %s\n", capital(label), md(text))
	}
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

var mdEscaper = strings.NewReplacer(
	`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "<", `\<`, ">", `\>`, "#", `\#`, "|", `\|`, "~", `\~`, "!", `\!`,
)

// md is clean text in which no character acts as Markdown.
func md(s string) string { return mdEscaper.Replace(Clean(s)) }
