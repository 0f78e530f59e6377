package report

import (
	"bufio"
	"fmt"
	"strings"
)

// markdown writes the report for a ticket or a chat.
func (r Report) markdown(w *bufio.Writer) {
	s := r.Snapshot
	names := locals(s)
	if len(r.Findings) == 0 {
		fmt.Fprintf(w, "# lasthop: %s\n\n", md(r.silence()))
	} else {
		fmt.Fprintf(w, "# lasthop: %s on %s\n\n", plural(len(r.Findings), "finding"), md(orUnknown(s.Node.Name)))
	}
	for _, f := range r.Findings {
		severity, rest := headline(f)
		fmt.Fprintf(w, "## %s %s\n\n", severity, md(rest))
		fmt.Fprintf(w, "%s\n\n", md(f.Why))
		item(w, "Last hop alive", placeText(f.LastHopAlive))
		item(w, "Pods", strings.Join(podList(f.Pods, names), ", "))
		item(w, "Peers", strings.Join(peerList(f.Peers), ", "))
		if f.Packets > 0 {
			item(w, "Lost", plural(f.Packets, "packet"))
		}
		for _, e := range f.Evidence {
			item(w, "Evidence ("+e.Source+")", e.Text)
		}
		for _, u := range f.Unseen {
			item(w, "Not seen", u)
		}
		for _, a := range f.Alternatives {
			item(w, "Could also be", a)
		}
		fmt.Fprint(w, "\n")
		code(w, append(append([]string{}, f.Fix...), f.Verify))
	}
	for _, line := range r.unexplained() {
		item(w, "Unexplained", line)
	}
	if len(r.unexplained()) > 0 {
		fmt.Fprint(w, "\n")
	}
	fmt.Fprint(w, "| source | status | detail |\n|---|---|---|\n")
	for _, src := range s.Sources {
		fmt.Fprintf(w, "| %s | %s | %s |\n", md(src.Name), md(string(src.Status)), md(src.Detail))
	}
	if rows := probeRows(s); len(rows) > 0 {
		fmt.Fprint(w, "\n")
		for _, row := range rows {
			item(w, "Probe", row)
		}
	}
	fmt.Fprintf(w, "\n%s, %s, observed for %s; lost by lasthop: %s\n",
		md(orUnknown(s.Node.Name)), md(orUnknown(s.Node.Plugin)), seconds(s.Window.Duration()), md(strings.Join(lostText(s.Traffic.Lost), "; ")))
}

func item(w *bufio.Writer, label, text string) {
	if text != "" {
		fmt.Fprintf(w, "- **%s**: %s\n", md(label), md(text))
	}
}

// code writes commands as an indented block, which nothing inside can end.
func code(w *bufio.Writer, lines []string) {
	for _, l := range lines {
		if l != "" {
			fmt.Fprintf(w, "    %s\n", Clean(l))
		}
	}
	fmt.Fprint(w, "\n")
}

var mdEscaper = strings.NewReplacer(
	`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "<", `\<`, ">", `\>`, "#", `\#`, "|", `\|`, "~", `\~`, "!", `\!`,
)

// md is clean text in which no character acts as Markdown.
func md(s string) string { return mdEscaper.Replace(Clean(s)) }
