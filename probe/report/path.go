package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lasthop/lasthop/probe/model"
)

// Path is the path of one pod's packets and of the replies.
type Path struct {
	Snapshot *model.Snapshot
	Path     model.Path
	// Findings are those that have their place on the path, or name both of its ends; the worst first. Others are
	// the pod's other findings, of which the text has the headlines.
	Findings []model.Finding
	Others   []model.Finding
	// Far is the node at the other end, where both were watched.
	Far *model.Snapshot
	// Choice says how the destination was chosen, if it was not given.
	Choice string
	// Limits say what was not judged, by request.
	Limits []string
}

// Take takes findings, by whether they have their place on the path.
func (r *Path) Take(findings []model.Finding) {
	for _, f := range findings {
		if r.Path.Has(&f) {
			r.Findings = append(r.Findings, f)
		} else {
			r.Others = append(r.Others, f)
		}
	}
}

func (r Path) ndjson(w io.Writer) error { return writeJSON(w, r.doc(), "") }

func (r Path) verdict() string {
	for _, d := range r.directions() {
		h := d.dead()
		if h == nil {
			continue
		}
		place := fmt.Sprintf("at hop %d of the %s path: %s", h.N, d.name, h.Name())
		switch {
		case h.Finding == "":
			return fmt.Sprintf("dead %s: %s", place, h.Decision)
		case Worst(r.Findings, h.Finding) == model.Info:
			// check does not fail for it either.
			return fmt.Sprintf("packets end %s (%s, info)", place, h.Finding)
		}
		return fmt.Sprintf("dead %s (%s)", place, h.Finding)
	}
	window := Duration(r.Snapshot.Window.Duration())
	switch {
	case len(r.Path.Forward) == 1 && r.Path.Forward[0].Kind == model.HopPod:
		return "the packets stay inside the pod, where lasthop does not count"
	case r.Snapshot.Status(model.SourceTC) == model.Missing:
		return "no dead hop in the node's tables; packets were not watched"
	case !r.counted():
		return fmt.Sprintf("no dead hop in the node's tables; no packets of this %s in %s", model.Either(r.Path.Pair, "pair", "pod"), window)
	case r.Far != nil:
		return "no dead hop on either node or between them in " + window
	case !r.Path.Pair:
		return "no dead hop on this node in " + window + "; the counts are of all the pod's packets, not of this pair alone"
	}
	return "no dead hop on this node in " + window
}

// names are those of Called, of both nodes.
func (r Path) names() Names {
	names := Called(r.Snapshot)
	if r.Far == nil {
		return names
	}
	for a, name := range Called(r.Far) {
		if !names[a].clustered() {
			names[a] = name.From(r.Far.Node.Name)
		}
	}
	return names
}

// direction is the forward or the return path.
type direction struct {
	name string
	hops []model.PathHop
}

// dead is the first hop at which packets end, nil if there is none.
func (d direction) dead() *model.PathHop { return (&model.Path{Forward: d.hops}).Dead() }

func (r Path) directions() [2]direction {
	return [2]direction{{"forward", r.Path.Forward}, {"return", r.Path.Return}}
}

func (r Path) counted() bool { return r.any(func(h model.PathHop) bool { return h.In.N+h.Out.N > 0 }) }

func (r Path) any(is func(model.PathHop) bool) bool {
	return slices.ContainsFunc(slices.Concat(r.Path.Forward, r.Path.Return), is)
}

func (r Path) text(p *printer, wide bool) {
	s, o := r.Snapshot, r.outline()
	from, to := PathEnds(o.names, &r.Path)
	p.prose(bold, "  ", fmt.Sprintf("Path %s > %s", from, to))
	p.prose(model.Either(r.Path.Dead() != nil, magenta, ""), "", o.verdict)
	if r.Choice != "" {
		p.prose("", "", Prose(o.names, r.Choice))
	}
	if wide {
		p.line("")
		p.drawing("", o.drawn.wide(cmp.Or(p.style.Columns, wideColumns)))
	}
	for i, d := range r.directions() {
		p.line("")
		if i > 0 {
			p.line(d.name)
		}
		p.pathHops(o.names, d.hops, wide)
	}
	p.line("")
	for f := range model.Each(r.Findings) {
		p.finding(o, f, o.drawn)
	}
	for f := range model.Each(r.Others) {
		severity, rest := Headline(o.names, f)
		p.field("also of the pod", severity+" "+rest)
	}
	for _, on := range []*model.Snapshot{s, r.Far} {
		if on != nil {
			p.watched(on, o.names, "(counts "+r.scope(on)+")", r.Limits)
			if by := strings.Join(on.Node.Beside, ", "); by != "" {
				p.field("programs", by+": they keep chains, rules or routes here")
			}
		}
	}
}

func (r Path) scope(s *model.Snapshot) string {
	p := r.Path
	if r.Far != nil {
		p.Pair = slices.Contains(s.Traffic.PairAddrs, p.Pod) || slices.Contains(s.Traffic.PairAddrs, p.To)
	}
	return PathScope(s, &p, r.Far != nil)
}

// pathHops prints one direction as a table whose last column is wrapped.
func (p *printer) pathHops(names Names, hops []model.PathHop, wide bool) {
	rows := append([][]string{{" ", "#", "HOP", "IN", "OUT", "LOST"}}, model.Map(hops, func(h model.PathHop) []string {
		return []string{HopMark(&h), strconv.Itoa(h.N), Clean(h.Name()), countText(h.In), countText(h.Out), countText(h.Lost)}
	})...)
	const right = 1<<1 | 1<<3 | 1<<4 | 1<<5
	table := aligned(rows, " ", right)
	p.line(table[0] + "  STATE / DECISION")
	for i, line := range table[1:] {
		h := &hops[i]
		if h.Node != "" && (i == 0 || hops[i-1].Node != h.Node) {
			p.line("  " + p.paint(bold, Clean(h.Node)))
		}
		used := utf8.RuneCountInString(line)
		if h.Dead {
			line = p.paint(magenta, line)
		}
		for _, row := range Wrap(Clean(HopDecision(names, h)), max(p.columns()-used-2, 30)) {
			p.line(line + "  " + row)
			line = strings.Repeat(" ", used)
		}
		for _, rule := range h.Rules {
			if wide {
				p.line("       " + Clean(rule))
			}
		}
	}
}

func countText(c model.Count) string { return model.Either(!c.Known, "-", number(c.N)) }

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
		// Far is the node at the other end, where both were watched.
		Far *farDoc `json:"far,omitempty"`
	}
	farDoc struct {
		watchedDoc
		Lost lostDoc `json:"lost"`
	}
	toDoc struct {
		IP    string `json:"ip"`
		Name  string `json:"name,omitempty"`
		Port  uint16 `json:"port,omitempty"`
		Proto string `json:"proto,omitempty"`
	}
	pathHopDoc struct {
		N        int           `json:"n"`
		Node     string        `json:"node,omitempty"`
		Kind     model.HopKind `json:"kind"`
		Role     model.Role    `json:"role,omitempty"`
		Link     string        `json:"link,omitempty"`
		In       *uint64       `json:"in,omitempty"`
		Out      *uint64       `json:"out,omitempty"`
		Lost     *uint64       `json:"lost,omitempty"`
		Decision string        `json:"decision"`
		Reason   string        `json:"reason,omitempty"`
		Rules    []string      `json:"rules"`
		Dead     bool          `json:"dead,omitempty"`
		Finding  model.Code    `json:"finding,omitempty"`
	}
)

func (r Path) doc() any {
	s, p, names := r.Snapshot, &r.Path, r.names()
	w := watched(s.Node, s.Window, s.Sources)
	d := pathDoc{
		APIVersion: APIVersion, Kind: "Path", Node: w.Node, Window: w.Window, Pod: podDoc{IP: addrText(p.Pod)},
		To: toDoc{IP: addrText(p.To), Name: names[p.To].String(), Port: p.Port}, Choice: r.Choice, Verdict: r.verdict(),
		Dead: p.Dead() != nil, Pair: p.Pair, Forward: model.Map(p.Forward, hopDocument), Return: model.Map(p.Return, hopDocument),
		Findings: names.findings(s, r.Findings), Others: names.findings(s, r.Others),
		Sources: w.Sources, Probes: probeDocuments(s), Lost: lostDocument(s.Traffic.Lost),
	}
	if f := r.Far; f != nil {
		d.Far = &farDoc{watched(f.Node, f.Window, f.Sources), lostDocument(f.Traffic.Lost)}
	}
	if p.Proto != 0 {
		d.To.Proto = model.ProtoName(p.Proto)
	}
	pods := allPods(s)
	if i := slices.IndexFunc(pods, func(pod model.Pod) bool { return pod.Has(p.Pod) }); i >= 0 {
		d.Pod = podDocument(pods[i], i >= len(s.Pods))
		d.Pod.IP = addrText(p.Pod)
	}
	return d
}

func hopDocument(h model.PathHop) pathHopDoc {
	return pathHopDoc{
		N: h.N, Node: h.Node, Kind: h.Kind, Role: h.Role, Link: h.Link, In: countOf(h.In), Out: countOf(h.Out), Lost: countOf(h.Lost),
		Decision: h.Decision, Reason: h.Reason, Rules: append([]string{}, h.Rules...), Dead: h.Dead, Finding: h.Finding,
	}
}

func (r Path) markdown(w *bufio.Writer) {
	s, o := r.Snapshot, r.outline()
	from, to := PathEnds(o.names, &r.Path)
	fmt.Fprintf(w, "# lasthop: %s > %s\n\n%s\n\n", md(from), md(to), md(o.verdict))
	if r.Choice != "" {
		fmt.Fprintf(w, "%s\n\n", md(Prose(o.names, r.Choice)))
	}
	markdownDrawing(w, o.drawn)
	for _, d := range r.directions() {
		fmt.Fprintf(w, "## %s path\n\n| | # | hop | in | out | lost | decision |\n|---|---|---|---|---|---|---|\n", capital(d.name))
		for h := range model.Each(d.hops) {
			fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %s |\n", HopMark(h), h.N, md(strings.TrimPrefix(h.Node+" ", " ")+h.Name()),
				countText(h.In), countText(h.Out), countText(h.Lost), md(HopDecision(o.names, h)))
		}
		fmt.Fprint(w, "\n")
	}
	for f := range model.Each(r.Findings) {
		o.markdownFinding(w, f, nil)
	}
	for f := range model.Each(r.Others) {
		severity, rest := Headline(o.names, f)
		items(w, "also of the pod", severity+" "+rest)
	}
	items(w, "probe", probeRows(s, o.names)...)
	fmt.Fprintf(w, "\n%s, observed for %s; counts: %s\n", md(NodeText(s.Node)), Duration(s.Window.Duration()), md(r.scope(s)))
	if r.Far != nil {
		fmt.Fprintf(w, "\n%s, observed for %s\n", md(NodeText(r.Far.Node)), Duration(r.Far.Window.Duration()))
	}
}
