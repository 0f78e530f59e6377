package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// The functions of this file word what the reports and the screen both show.
// Their text is not clean: it may hold names from outside.

// Headline is a finding in one line, the first that a person reads. names are those of Called.
func Headline(names Names, f *model.Finding) (severity, rest string) {
	sure := string(f.Confidence) + model.Either(f.ByTables, ", by the tables", "")
	return strings.ToUpper(string(f.Severity)), fmt.Sprintf("%s: %s (%s)", f.Code, Prose(names, f.Title), sure)
}

// Section is one part of a finding's text. It has at least one value.
type Section struct {
	Name   string
	Values []string
	// Verbatim values are meant to be pasted and must not be wrapped.
	Verbatim bool
	// Names are short, so that several fit on one line.
	Names bool
}

// Surer is the section with the steps of Next, of which short texts have the first at most.
const Surer = "to confirm"

// Sections are the parts of a finding below its headline, in the order in which a person needs them. names are those of
// Called.
func Sections(s *model.Snapshot, names Names, f *model.Finding) []Section {
	evidence := model.Map(f.Evidence, func(e model.Evidence) string {
		return strings.TrimSpace(e.Node+" "+e.Source) + ": " + Prose(names, e.Text)
	})
	prose := func(s string) string { return Prose(names, s) }
	pods := model.Map(f.Pods, func(a netip.Addr) string { return Named(names, a) })
	peers := model.Map(f.Peers, func(p netip.Prefix) string {
		return model.Either(p.IsSingleIP(), Named(names, p.Addr()), prefixText(p))
	})
	next := model.Map(Next(s, names, f), func(x Step) string { return x.Command + " # " + x.Why })
	sections := []Section{
		{Name: "fix", Values: Fix(f), Verbatim: true},
		{Name: "next", Values: model.Either(f.Mended, nil, f.Next), Verbatim: true},
		{Name: "why", Values: []string{Prose(names, f.Why)}},
		{Name: "nodes", Values: bounded(f.Nodes), Names: true},
		{Name: "evidence", Values: evidence},
		{Name: "not seen", Values: model.Map(f.Unseen, prose)},
		{Name: Surer, Values: next, Verbatim: true},
		{Name: "could also be", Values: model.Map(f.Alternatives, prose)},
		{Name: "last hop alive", Values: []string{LastHopAlive(f)}},
		{Name: "lost", Values: []string{lostText(s, f)}},
		{Name: "seen", Values: []string{seenAt(f)}},
		{Name: "pods", Values: bounded(pods), Names: true},
		{Name: "peers", Values: bounded(peers), Names: true},
		{Name: "verify", Values: []string{f.Verify}, Verbatim: true},
		{Name: "docs", Values: []string{f.Code.Page()}},
	}
	return slices.DeleteFunc(sections, func(x Section) bool { return strings.Join(x.Values, "") == "" })
}

// Short are the sections that the short text has: of what shows a finding the first two, of what would confirm it the
// first step.
func Short(s *model.Snapshot, names Names, f *model.Finding) []Section {
	var out []Section
	for _, x := range Sections(s, names, f) {
		switch x.Name {
		case "fix", "next", "why", "docs":
		case "nodes":
			x.Values = []string{strings.Join(x.Values, ", ")}
		case "evidence":
			x.Name, x.Values = "seen", model.Map(f.Evidence[:min(len(f.Evidence), 2)], func(e model.Evidence) string {
				return strings.TrimSpace(e.Node + " " + Prose(names, e.Text))
			})
		case "could also be":
			x.Name, x.Values = "could be", []string{strings.Join(x.Values, "; ")}
		case Surer:
			x.Name, x.Values = "prove", x.Values[:1]
		default:
			continue
		}
		out = append(out, x)
	}
	return out
}

// NodeShell says how to get to where fixes run, for one who is in a pod on the node; empty on the node itself.
func NodeShell(n model.Node) string {
	name := append(shellWords([]string{n.Name}), "NODE")[0]
	return model.Either(n.InPod, "fixes run on the node: kubectl debug node/"+name+" -it --image=busybox --profile=sysadmin -- chroot /host", "")
}

func lostText(s *model.Snapshot, f *model.Finding) string {
	lost := fmt.Sprintf("%s in %s", model.Quantity(f.Packets, "packet"), Duration(s.Window.Duration()))
	return model.Either(f.Packets == 0, "not counted", lost)
}

// Fix are the commands that fix a finding, or that would have.
func Fix(f *model.Finding) []string {
	if !f.Mended {
		return f.Fix
	}
	return model.Map(f.Fix, func(line string) string { return "was: " + line + " (no longer needed)" })
}

// seenAt is when a finding was there, in UTC; empty if that is not known.
func seenAt(f *model.Finding) string {
	text := model.Either(f.Times > 1, fmt.Sprintf("%d times, ", f.Times), "")
	const clock = "15:04:05"
	opened, closed := f.Opened.UTC().Format(clock), f.Closed.UTC().Format(clock)
	switch {
	case f.Opened.IsZero() && f.Closed.IsZero():
		return ""
	case f.Opened.IsZero():
		return text + "until " + closed
	case f.Closed.IsZero():
		return text + "since " + opened
	}
	return text + opened + " to " + closed
}

// LastHopAlive is where a finding's packets were last seen correctly. A finding
// that names neither a hop nor a pod is about the node.
func LastHopAlive(f *model.Finding) string {
	return model.Either(f.LastHopAlive == (model.Place{}) && len(f.Pods) == 0, "the node itself", Place(f.LastHopAlive))
}

// Place names a hop by where its packets come from and where they go, since
// seen from a pod, ingress and egress of its pod link are the wrong way round.
func Place(p model.Place) string {
	other, ok := map[model.Role]string{model.RoleUplink: "fabric", model.RolePodLink: "pod"}[p.Role]
	switch {
	case p.Link == "" && p.Role == "":
		return "unknown"
	case p.Link == "":
		return strings.TrimSpace("a " + string(p.Role) + " " + string(p.Direction))
	case p.Role == model.RoleBridge:
		return "bridge " + p.Link
	case !ok || p.Direction == "":
		return strings.TrimSpace(p.Link + " " + string(p.Direction))
	case p.Direction == model.Egress:
		return p.Link + " > " + other
	}
	return other + " > " + p.Link
}

// bounded cuts a list to as many rows as a person reads.
func bounded(rows []string) []string {
	const shown = 8
	if len(rows) <= shown {
		return rows
	}
	return append(rows[:shown:shown], fmt.Sprintf("and %d more", len(rows)-shown))
}

// DropText is what the kernel says of a drop: its reason, place and link.
func DropText(reason model.Reason, cilium model.CiliumReason, location, link string) string {
	return ReasonText(reason, cilium) + " " + DropPlace(location, link)
}

// ReasonText is the reason of a drop, with Cilium's where its program gave one.
func ReasonText(reason model.Reason, cilium model.CiliumReason) string {
	return cmp.Or(string(reason), "unknown reason") + model.Either(cilium == 0, "", " (Cilium: "+cilium.String()+")")
}

// DropPlace is where the kernel dropped a packet.
func DropPlace(location, link string) string {
	text := "at " + cmp.Or(location, "unknown place")
	if link != "" {
		text += " on " + link
	}
	return text
}

// Lost reports whether lasthop itself could not count something. Malformed packets are their sender's fault, and
// missed drops may be anybody's.
func Lost(l model.Lost) bool { return l.Events+l.Counters+l.MACs+l.Unparsed+l.Gaps > 0 }

// LostText says what lasthop itself could not count.
func LostText(l model.Lost) []string {
	var out []string
	if !Lost(l) {
		out = append(out, "nothing")
	}
	for _, x := range []struct {
		n    uint64
		what string
	}{
		{l.Events, "drop samples lost"}, {l.Counters, "packets not counted"}, {l.MACs, "packets without MACs"}, {l.Unparsed, "unreadable packets"},
		{l.Malformed, "malformed packets"},
	} {
		if x.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	return append(out, model.Map(l.Detail, model.Uncounted.String)...)
}

// Unread are the sources that were not read whole.
func Unread(s *model.Snapshot) []model.Source {
	return model.Filter(s.Sources, func(src model.Source) bool { return src.Status != model.OK })
}

// Gaps are the sources on the node itself that were not read whole. What is known of other nodes is never whole,
// and so is no gap; nor are names, by which nothing is judged.
func Gaps(s *model.Snapshot) []model.Source { return model.Filter(s.Sources, isGap) }

// isGap: no verdict rests on other nodes' ranges, on names, or on who made a change.
func isGap(src model.Source) bool {
	return src.Status != model.OK && !slices.Contains([]string{model.SourceNodes, model.SourceNames, model.SourceChanges}, src.Name)
}

// Whole reports whether nothing on the node was missed: no source, no packet.
func Whole(s *model.Snapshot) bool { return len(Gaps(s)) == 0 && !Lost(s.Traffic.Lost) }

// SourceText says how much of a source was read, and why not all.
func SourceText(src model.Source) string { return src.Name + " " + statusText(src) }

func statusText(src model.Source) string {
	return fmt.Sprintf("%s: %s", src.Status, cmp.Or(src.Detail, "no reason given"))
}

// SourcesText says how many sources were read whole, and which were not; and of which pods packets were counted later.
func SourcesText(s *model.Snapshot) string {
	unread := model.Map(Unread(s), func(src model.Source) string { return src.Name + " " + string(src.Status) })
	names := model.Either(len(unread) == 0, "", " ("+strings.Join(unread, ", ")+")")
	var late string
	pods := model.Chosen(s.Pods, func(p *model.Pod) bool { return p.Late(s.Window) && !p.Since.After(s.Window.Start) })
	if len(pods) > 0 {
		seen := model.Map(pods, func(p *model.Pod) time.Duration { return s.Window.End.Sub(p.Watched) })
		late = fmt.Sprintf("; %s of %d watched for %s to %s only", model.Quantity(len(pods), "pod"), len(s.Pods),
			Duration(slices.Min(seen)), Duration(slices.Max(seen)))
	}
	return fmt.Sprintf("%d of %d sources%s%s", len(s.Sources)-len(unread), len(s.Sources), names, late)
}

// NodeText is the node's name and what runs on it.
func NodeText(n model.Node) string {
	parts := []string{cmp.Or(n.Plugin, "unknown plugin")}
	for _, x := range [][2]string{{"policy ", n.Policy}, {"left over: ", n.Residue},
		{"", model.Either(n.PassedBy, "eBPF host routing: iptables rules do not see pods' packets", "")}, {"Linux ", n.Kernel}} {
		if x[1] != "" {
			parts = append(parts, x[0]+x[1])
		}
	}
	return fmt.Sprintf("%s (%s)", cmp.Or(n.Name, ThisNode), strings.Join(parts, ", "))
}

// EngineText is how packets are watched: the engine and what it attaches with.
func EngineText(n model.Node) string {
	return strings.TrimSuffix(cmp.Or(n.Engine, "unknown")+"/"+n.Attach, "/")
}

// UplinksText lists the node's uplinks.
func UplinksText(n model.Node) string { return cmp.Or(strings.Join(n.Uplinks, ", "), "none") }

// silenceWindow is the least window in which requests without a reply are told from replies that are on their way.
const silenceWindow = 5 * time.Second

// Silence is the verdict on a snapshot without findings: how much that is worth, given what was looked at. It
// never calls a node healthy. drops are those that no finding explains.
func (r Report) Silence(drops uint64) string {
	s := r.Snapshot
	verdict := "no loss seen in " + Duration(s.Window.Duration())
	switch pods, _ := r.volume(); {
	case s.Status(model.SourceTC) == model.Missing:
		verdict = "no fault found in the node's state; packets were not watched, so losses are unknown"
	case s.Window.Duration() <= 0:
		verdict = "nothing counted yet"
	case pods == 0:
		verdict += ", but no pod traffic either: only the node's state was judged"
	case !Whole(s):
		verdict += ", but not everything was visible"
	default:
		verdict += fmt.Sprintf(" of traffic (%s)", r.traffic())
	}
	if d := s.Window.Duration(); d > 0 && d < silenceWindow && s.Status(model.SourceTC) != model.Missing {
		verdict += "; missing replies need a window of at least " + Duration(silenceWindow)
	}
	if drops > 0 {
		verdict += "; " + model.Quantity(drops, "drop") + " without a finding"
	}
	return verdict
}

// PathEnds names both ends of a path, the second with its port and protocol.
func PathEnds(names Names, p *model.Path) (from, to string) {
	name := func(a netip.Addr, text string) string {
		if a.IsLoopback() {
			// It is the pod's own, not the node's.
			a = p.Pod
		}
		return strings.TrimSpace(names[a].display() + " " + text)
	}
	to = model.Either(p.Port != 0, netip.AddrPortFrom(p.To.Unmap(), p.Port).String(), addrText(p.To))
	if p.Proto != 0 {
		to += "/" + model.ProtoName(p.Proto)
	}
	return name(p.Pod, addrText(p.Pod)), name(p.To, to)
}

// PathScope says which packets the counts of a path are of, between nodes or on the one of the snapshot.
func PathScope(s *model.Snapshot, p *model.Path, between bool) string {
	const all = "of all the pod's packets"
	switch {
	case between && !p.Pair:
		return "of this pair between the nodes; elsewhere " + all
	case s.Status(model.SourceTC) == model.Missing:
		return "not watched"
	case p.Pair:
		return "of this pair only"
	}
	return all
}

// HopMark stands before a hop: X where packets end, ? where nothing is visible.
func HopMark(h *model.PathHop) string {
	switch {
	case h.Dead:
		return "X"
	case h.Kind == model.HopBeyond:
		return "?"
	}
	return ""
}

// HopDecision is what the node's tables decide at a hop, behind the finding that
// has its place there. names are those of Called.
func HopDecision(names Names, h *model.PathHop) string {
	decision := Prose(names, h.Decision)
	return model.Either(h.Finding == "", decision, fmt.Sprintf("[%s] %s", h.Finding, decision))
}

// Duration is a length of time as people say it: 250ms, 1.5s, 10s, 1m30s, 5m, 1h.
func Duration(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Second:
		d = d.Round(time.Millisecond)
	case d < 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	case d < 10*time.Minute:
		d = d.Round(time.Second)
	default:
		d = d.Truncate(time.Minute)
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// addrText is the address's canonical text, an IPv4 address without the IPv6 wrapping; empty when unknown.
func addrText(a netip.Addr) string { return model.Either(!a.IsValid(), "", a.Unmap().String()) }

func prefixText(p netip.Prefix) string { return model.Either(!p.IsValid(), "", p.Masked().String()) }
