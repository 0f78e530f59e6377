package report

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lasthop/lasthop/probe/model"
)

// Path is the way of one pod's packets, explained.
type Path struct {
	Snapshot *model.Snapshot
	Path     model.Path
	// Findings are those that have their place on the way, or name both of
	// its ends; the worst first. Others are more of the pod, told in a line.
	Findings []model.Finding
	Others   []model.Finding
	// Choice says how the destination was chosen, where nobody gave one.
	Choice string
	// Limits say in words what was left out of the judgement by request.
	Limits []string
}

// Write writes the path. Only Text and Wide heed the style.
func (r Path) Write(w io.Writer, f Format, style Style) error {
	buf := bufio.NewWriter(w)
	if err := r.write(buf, f, style); err != nil {
		return fmt.Errorf("write path: %w", err)
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("write path: %w", err)
	}
	return nil
}

func (r Path) write(w *bufio.Writer, f Format, style Style) error {
	switch f {
	case Text, Wide:
		r.text(&printer{w: w, style: style}, f == Wide)
	case JSON, NDJSON:
		indent := "  "
		if f == NDJSON {
			indent = ""
		}
		doc, err := marshal(r.document(), indent)
		if err != nil {
			return err
		}
		_, err = w.WriteString(doc)
		return err
	case YAML:
		return writeYAML(w, r.document())
	case Markdown:
		r.markdown(w)
	default:
		return fmt.Errorf("no format %q", f)
	}
	return nil
}

// verdict is the path in one line.
func (r Path) verdict() string {
	for _, way := range []struct {
		hops []model.PathHop
		name string
	}{{r.Path.Forward, "on the way out"}, {r.Path.Return, "on the way back"}} {
		for i := range way.hops {
			h := &way.hops[i]
			if !h.Dead {
				continue
			}
			text := fmt.Sprintf("dead at hop %d %s: %s", h.N, way.name, h.Name())
			if h.Finding != "" {
				return text + " (" + string(h.Finding) + ")"
			}
			return text + ": " + h.Decision
		}
	}
	switch {
	case len(r.Path.Forward) == 1 && r.Path.Forward[0].Kind == model.HopPod:
		return "the packets stay inside the pod, where none is counted"
	case r.Snapshot.Status(model.SourceTC) == model.Missing:
		return "no dead hop in the node's tables; no packet was watched"
	case !r.counted():
		return fmt.Sprintf("no dead hop in the node's tables; no packet of this path was seen in %s", seconds(r.Snapshot.Window.Duration()))
	}
	return fmt.Sprintf("no dead hop on this node in %s", seconds(r.Snapshot.Window.Duration()))
}

// counted reports whether any packet was seen on the way.
func (r Path) counted() bool {
	for _, way := range [][]model.PathHop{r.Path.Forward, r.Path.Return} {
		for _, h := range way {
			if h.In.N+h.Out.N > 0 {
				return true
			}
		}
	}
	return false
}

// ends are both ends in words.
func (r Path) ends() (from, to string) {
	names := locals(r.Snapshot)
	name := func(a netip.Addr, text string) string {
		if a.IsLoopback() {
			// The pod's own, not the node's.
			a = r.Path.Pod
		}
		if n := names[a]; n != "" {
			return n + " " + text
		}
		return text
	}
	p := &r.Path
	to = addrText(p.To)
	if p.Port != 0 {
		to = netip.AddrPortFrom(p.To.Unmap(), p.Port).String()
	}
	if p.Proto != 0 {
		to += "/" + model.ProtoName(p.Proto)
	}
	return name(p.Pod, addrText(p.Pod)), name(p.To, to)
}

// whose says which packets the counts are of.
func (r Path) whose() string {
	switch {
	case r.Snapshot.Status(model.SourceTC) == model.Missing:
		return "not watched"
	case r.Path.Pair:
		return "of this pair alone"
	}
	return "of all that the pod sends and gets"
}

func (r Path) text(p *printer, wide bool) {
	from, to := r.ends()
	for i, row := range Wrap(Clean(fmt.Sprintf("Path  %s > %s", from, to)), columns) {
		if i > 0 {
			row = "  " + row
		}
		p.line(p.paint(bold, row))
	}
	for _, row := range Wrap(Clean(r.verdict()), columns) {
		if r.Path.Dead() != nil {
			row = p.paint(magenta, row)
		}
		p.line(row)
	}
	for _, row := range Wrap(Clean(r.Choice), columns) {
		if row != "" {
			p.line(row)
		}
	}
	p.line("")
	r.hops(p, r.Path.Forward, wide)
	p.line("")
	p.line("return")
	r.hops(p, r.Path.Return, wide)
	p.line("")
	names := locals(r.Snapshot)
	for _, f := range r.Findings {
		p.finding(Report{Snapshot: r.Snapshot}, f, names)
	}
	for _, f := range r.Others {
		severity, rest := headline(f)
		p.field("also of the pod", severity+" "+rest)
	}
	s := r.Snapshot
	p.field("node", fmt.Sprintf("%s (%s)", orUnknown(s.Node.Name), orUnknown(s.Node.Plugin)))
	engine := orUnknown(s.Node.Engine)
	if s.Node.Attach != "" {
		engine += " (" + s.Node.Attach + ")"
	}
	p.field("watched", fmt.Sprintf("%s by %s; counts: %s", seconds(s.Window.Duration()), engine, r.whose()))
	p.field("left out", r.Limits...)
	open := partial(s)
	p.field("sources", fmt.Sprintf("%d of %d complete", len(s.Sources)-len(open), len(s.Sources)))
	for _, src := range open {
		p.field("", fmt.Sprintf("%s %s: %s", src.Name, src.Status, orUnknown(src.Detail)))
	}
	p.field("probes", probeRows(s)...)
	p.field("lost by lasthop", lostText(s.Traffic.Lost)...)
}

// mark is what stands before a hop: X where packets end, ? where nobody sees.
func mark(h *model.PathHop) string {
	switch {
	case h.Dead:
		return "X"
	case h.Kind == model.HopBeyond:
		return "?"
	}
	return " "
}

// hops prints one direction as a table whose last column is wrapped.
func (r Path) hops(p *printer, hops []model.PathHop, wide bool) {
	rows := [][]string{{" ", "#", "HOP", "IN", "OUT", "LOST"}}
	for i := range hops {
		h := &hops[i]
		rows = append(rows, []string{mark(h), strconv.Itoa(h.N), Clean(h.Name()), countText(h.In), countText(h.Out), countText(h.Lost)})
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	used := len(widths) - 1
	for _, w := range widths {
		used += w
	}
	for i, row := range rows {
		line := fmt.Sprintf("%-*s %*s %-*s %*s %*s %*s", widths[0], row[0], widths[1], row[1], widths[2], row[2],
			widths[3], row[3], widths[4], row[4], widths[5], row[5])
		if i == 0 {
			p.line(line + "  STATE / DECISION")
			continue
		}
		h := &hops[i-1]
		r.hop(p, h, line, used, wide)
	}
}

func (r Path) hop(p *printer, h *model.PathHop, line string, used int, wide bool) {
	decision := h.Decision
	if h.Finding != "" {
		decision += " [" + string(h.Finding) + "]"
	}
	below := strings.Repeat(" ", used)
	for i, row := range Wrap(Clean(decision), max(columns-used-2, 30)) {
		switch {
		case i > 0:
			line = below
		case h.Dead:
			line = p.paint(magenta, line)
		}
		p.line(line + "  " + row)
	}
	if !wide {
		return
	}
	for _, rule := range h.Rules {
		p.line("       " + Clean(rule))
	}
}

func countText(c model.Count) string {
	if !c.Known {
		return "-"
	}
	return number(c.N)
}

// The documents of a path. Unknown counts are absent.
type (
	pathDoc struct {
		APIVersion string       `json:"apiVersion"`
		Kind       string       `json:"kind"`
		Node       nodeDoc      `json:"node"`
		Window     windowDoc    `json:"window"`
		Pod        podDoc       `json:"pod"`
		To         toDoc        `json:"to"`
		Choice     string       `json:"choice,omitempty"`
		Verdict    string       `json:"verdict"`
		Dead       bool         `json:"dead"`
		Pair       bool         `json:"pair"`
		Forward    []pathHopDoc `json:"forward"`
		Return     []pathHopDoc `json:"return"`
		Findings   []findingDoc `json:"findings"`
		Others     []findingDoc `json:"otherFindings"`
		Sources    []sourceDoc  `json:"sources"`
		Probes     []probeDoc   `json:"probes,omitzero"`
		Lost       lostDoc      `json:"lost"`
	}
	toDoc struct {
		IP    string `json:"ip"`
		Name  string `json:"name,omitempty"`
		Port  uint16 `json:"port,omitempty"`
		Proto string `json:"proto,omitempty"`
	}
	pathHopDoc struct {
		N        int      `json:"n"`
		Kind     string   `json:"kind"`
		Role     string   `json:"role,omitempty"`
		Link     string   `json:"link,omitempty"`
		In       *uint64  `json:"in,omitempty"`
		Out      *uint64  `json:"out,omitempty"`
		Lost     *uint64  `json:"lost,omitempty"`
		Decision string   `json:"decision"`
		Rules    []string `json:"rules"`
		Dead     bool     `json:"dead,omitempty"`
		Finding  string   `json:"finding,omitempty"`
	}
)

func (r Path) document() pathDoc {
	s, p := r.Snapshot, &r.Path
	whole := Report{Snapshot: s, Findings: r.Findings}.document()
	d := pathDoc{
		APIVersion: APIVersion, Kind: "Path", Node: whole.Node, Window: whole.Window, Pod: podDoc{IP: addrText(p.Pod)},
		To: toDoc{IP: addrText(p.To), Name: locals(s)[p.To], Port: p.Port}, Choice: r.Choice, Verdict: r.verdict(),
		Dead: p.Dead() != nil, Pair: p.Pair, Forward: hopDocs(p.Forward), Return: hopDocs(p.Return),
		Findings: whole.Findings, Others: []findingDoc{}, Sources: whole.Sources, Probes: whole.Probes, Lost: whole.Lost,
	}
	if p.Proto != 0 {
		d.To.Proto = model.ProtoName(p.Proto)
	}
	for _, f := range r.Others {
		d.Others = append(d.Others, findingDocument(f))
	}
	for i, pod := range allPods(s) {
		if pod.Has(p.Pod) {
			d.Pod = podDocument(pod, i >= len(s.Pods))
			d.Pod.IP = addrText(p.Pod)
			break
		}
	}
	return d
}

func hopDocs(hops []model.PathHop) []pathHopDoc {
	out := make([]pathHopDoc, 0, len(hops))
	for _, h := range hops {
		out = append(out, pathHopDoc{
			N: h.N, Kind: string(h.Kind), Role: string(h.Role), Link: h.Link, In: countOf(h.In), Out: countOf(h.Out), Lost: countOf(h.Lost),
			Decision: h.Decision, Rules: append([]string{}, h.Rules...), Dead: h.Dead, Finding: string(h.Finding),
		})
	}
	return out
}

// markdown writes the path for a ticket or a chat.
func (r Path) markdown(w *bufio.Writer) {
	from, to := r.ends()
	fmt.Fprintf(w, "# lasthop: %s > %s\n\n%s\n\n", md(from), md(to), md(r.verdict()))
	if r.Choice != "" {
		fmt.Fprintf(w, "%s\n\n", md(r.Choice))
	}
	for _, way := range []struct {
		name string
		hops []model.PathHop
	}{{"Forward", r.Path.Forward}, {"Return", r.Path.Return}} {
		fmt.Fprintf(w, "## %s\n\n| | # | hop | in | out | lost | decision |\n|---|---|---|---|---|---|---|\n", way.name)
		for i := range way.hops {
			h := &way.hops[i]
			decision := h.Decision
			if h.Finding != "" {
				decision += " [" + string(h.Finding) + "]"
			}
			fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %s |\n", strings.TrimSpace(mark(h)), h.N, md(h.Name()),
				countText(h.In), countText(h.Out), countText(h.Lost), md(decision))
		}
		fmt.Fprint(w, "\n")
	}
	for _, f := range r.Findings {
		severity, rest := headline(f)
		fmt.Fprintf(w, "## %s %s\n\n%s\n\n", severity, md(rest), md(f.Why))
		code(w, append(append([]string{}, f.Fix...), f.Verify))
	}
	for _, f := range r.Others {
		severity, rest := headline(f)
		item(w, "Also of the pod", severity+" "+rest)
	}
	s := r.Snapshot
	for _, row := range probeRows(s) {
		item(w, "Probe", row)
	}
	fmt.Fprintf(w, "\n%s, %s, observed for %s; counts: %s\n", md(orUnknown(s.Node.Name)), md(orUnknown(s.Node.Plugin)),
		seconds(s.Window.Duration()), md(r.whose()))
}
