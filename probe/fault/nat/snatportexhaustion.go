package nat

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// Ports that the kernel may give where no rule says other: those of the
// sender's class, which for clients is from 1024 up.
var anyPorts = model.PortRange{First: 1024, Last: 65535}

// bundle is what flows that must differ by their port have in common.
type bundle struct {
	proto    uint8
	from, to netip.Addr
	port     uint16
}

// holders are a bundle's flows by the port that they were given.
type holders struct {
	bundle
	// ports: of a flow that goes on, or else of connections that have ended. reused: one was given
	// to a flow of the window.
	ports  map[uint16]bool
	reused bool
	// ranges are what pods may leave with, by the rules that translate them.
	ranges map[model.PortRange]*portRange
}

// portRange is one range of a bundle's ports: the pods that it is for, and how many ports it
// has, how many are of flows that go on, and of ended ones.
type portRange struct {
	*holders
	nat               path.SourceNAT
	within            model.PortRange
	pods              node.AddrSet
	size, open, ended int
}

// refuses reports whether a dropped packet, which got no entry, would have left with one of the ports.
func (r *portRange) refuses(d *model.Drop) bool {
	return d.Is(model.EntryRefused) && d.Dst == r.to && d.Proto == r.proto && r.pods[d.Src]
}

func (r *portRange) count() {
	r.size = int(r.within.Last) - int(r.within.First) + 1
	for p, open := range r.ports {
		switch {
		case !r.within.Has(p):
		case open:
			r.open++
		default:
			r.ended++
		}
	}
}

// SNATPortExhaustion reports source ports that ran out, so that connections cannot be translated.
var SNATPortExhaustion = fault.Kind{Code: "SNATPortExhaustion", Severity: model.Critical, Find: snatPortExhaustion,
	Ends: fault.Hops{model.HopConntrack}, Objects: fault.Objects{"from proto port to"},
	Else: fault.Else{"kept", "!failed", "cutOff"}}

func snatPortExhaustion(v *fault.Input) {
	var full, others []*portRange
	all := portRanges(v.Index)
	for _, r := range all {
		switch {
		case r.within != anyPorts && r.open+r.ended >= r.size && v.LostPackets(r.refuses) >= node.MinDrops:
			full = append(full, r)
		case r.open < minHeld:
		case r.open == r.size:
			full = append(full, r)
		case r.open*100 >= r.size*nearly:
			others = append(others, r)
		}
	}
	if len(full) == 0 && v.Conntrack.InsertFailed >= node.MinDrops {
		// Older kernels keep the ports of closed connections.
		full = slices.DeleteFunc(all, func(r *portRange) bool { return r.open+r.ended < max(r.size, minHeld) || r.reused })
		others = slices.DeleteFunc(others, func(r *portRange) bool { return slices.Contains(full, r) })
	}
	for i, r := range append(full, others...) {
		f := exhausted(v.Index, r, i < len(full), all)
		f.Facts["alike"] = len(full)
		if len(full) > 1 {
			f.Packets = 0 // Which of them failed is not known.
		}
		v.Report(f)
	}
}

// portRanges are those of the flows of pods that leave with an address of the node's, sorted.
func portRanges(v *node.Index) []*portRange {
	type sender struct {
		pod, to netip.Addr
		proto   uint8
		port    uint16
		began   bool
	}
	nats, bundles := map[sender]path.SourceNAT{}, map[bundle]*holders{}
	var out []*portRange
	for f := range model.Each(v.Flows) {
		if f.Proto != model.TCP && f.Proto != model.UDP || !masqueraded(v, f) {
			continue
		}
		k := bundle{f.Proto, f.Reply.Dst, f.Reply.Src, f.Reply.SrcPort}
		if bundles[k] == nil {
			bundles[k] = &holders{bundle: k, ports: map[uint16]bool{}, ranges: map[model.PortRange]*portRange{}}
		}
		h := bundles[k]
		// The entry of a connection that both ends have closed remains for a while; newer kernels
		// delete it for a new connection that wants its port.
		closed := f.Proto == model.TCP && (f.State == "TIME_WAIT" || f.State == "CLOSE")
		h.ports[f.Reply.DstPort] = h.ports[f.Reply.DstPort] || !closed
		h.reused = h.reused || f.Proto == model.TCP && !f.Start.IsZero() && f.Replied
		s := sender{f.Original.Src, k.to, k.proto, k.port, !f.Start.IsZero()}
		nat, known := nats[s]
		if !known {
			leaves := v.LeavingPacket(f)
			leaves.SrcPort = 0 // the others have others
			nat = v.Tables().Source(leaves)
			nats[s] = nat
		}
		within := anyPorts
		if nat.Translated && !nat.CutOff && nat.Rule.ToPorts.First != 0 {
			within = nat.Rule.ToPorts
		}
		if h.ranges[within] == nil {
			h.ranges[within] = &portRange{holders: h, nat: nat, within: within}
			out = append(out, h.ranges[within])
		}
		h.ranges[within].pods.Add(f.Original.Src)
	}
	for _, r := range out {
		r.count()
	}
	slices.SortFunc(out, func(a, b *portRange) int {
		return cmp.Or(a.to.Compare(b.to), cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto),
			a.from.Compare(b.from), cmp.Compare(a.within.First, b.within.First))
	})
	return out
}

// nearly is the share of a range that is as good as all, in percent: the
// kernel tries some ports at random before it gives up.
const nearly = 95

// minHeld keeps a range of one or two ports from being called used up by the flow that it was made for.
const minHeld = 4

// exhausted is the finding on one range of ports. Insertions that failed are those of the full ones, and of as few ports of
// another protocol.
func exhausted(v *node.Index, r *portRange, full bool, all []*portRange) fault.Fault {
	f := fault.Fault{Inserts: true, Facts: words.Facts{
		"from": r.from, "to": r.to, "proto": model.ProtoName(r.proto), "port": r.port, "within": r.within, "size": r.size,
		"ended": r.ended, "cutOff": r.nat.CutOff, "read": v.Has(model.SourceNAT),
	}}
	if r.nat.Translated && !r.nat.CutOff {
		f.Facts["rule"] = r.nat.Rule
	}
	if r.within != anyPorts {
		f.Facts["narrow"], f.Facts["wider"] = true,
			strings.Replace(r.nat.Rule.Text, r.within.String(), anyPorts.String(), 1)
	}
	if full {
		f.Packets = v.Conntrack.InsertFailed
	}
	used, kept := r.open, full && r.open < r.size
	if kept {
		used += r.ended
	}
	f.Facts["used"], f.Facts["kept"], f.Facts["failed"] = used, kept, f.Packets
	if kept || f.Packets == 0 {
		f.Severity = model.Warning
	}
	f.Pods, f.Peers, f.LastHopAlive = node.Sorted(r.pods), []netip.Prefix{model.Host(r.to)}, v.Entering(r.pods)
	f.Claims = func(d *model.Drop) bool {
		return f.Packets > 0 && d.Is(model.EntryRefused) && d.Dst == r.to && (d.Proto == r.proto || slices.ContainsFunc(all,
			func(o *portRange) bool {
				return r.within != anyPorts && o.within == r.within && o.from == r.from && o.refuses(d)
			}))
	}
	return f
}
