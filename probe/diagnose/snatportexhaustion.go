package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// SNATPortExhaustion is the code of this finding.
const SNATPortExhaustion model.Code = "SNATPortExhaustion"

var snatPortExhaustion = kind{
	code:     SNATPortExhaustion,
	severity: model.Critical,
	find:     findSNATPortExhaustion,
	ends:     []model.HopKind{model.HopConntrack},
}

// Ports that the kernel may give where no rule says other: those of the
// sender's class, which for clients is from 1024 up.
var anyPorts = model.PortRange{First: 1024, Last: 65535}

// bundle is what flows that must differ by their port have in common.
type bundle struct {
	proto    uint8
	from, to netip.Addr
	port     uint16
}

// rangeOf are the flows of a bundle whose rule gives ports of one range.
type rangeOf struct {
	bundle
	within model.PortRange
}

// holders are a bundle's flows by the port that they were given.
type holders struct {
	// open are the ports of flows that go on, closed those of connections that
	// have ended. reused: one of them was given to a flow of the window.
	open, closed map[uint16]bool
	reused       bool
	// ranges are what pods may leave with, by the rules that translate them.
	ranges map[model.PortRange]*leaving
}

// leaving are the pods that one range of ports is for.
type leaving struct {
	nat  path.SourceNAT
	pods map[netip.Addr]bool
}

// closed reports whether both ends have closed a flow's connection. The entry
// remains for a while; newer kernels delete it for a new connection that wants its
// port.
func closed(f *model.Flow) bool {
	return f.Proto == tcp && (f.State == "TIME_WAIT" || f.State == "CLOSE")
}

func findSNATPortExhaustion(v *view) []finding {
	bundles := v.bundles()
	var all, full, others []rangeOf
	for k, h := range bundles {
		for within := range h.ranges {
			all = append(all, rangeOf{k, within})
		}
	}
	slices.SortFunc(all, func(a, b rangeOf) int {
		return cmp.Or(a.to.Compare(b.to), cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto), a.from.Compare(b.from), cmp.Compare(a.within.First, b.within.First))
	})
	for _, k := range all {
		switch open, size := held(bundles[k.bundle].open, k.within), sizeOf(k.within); {
		case open < minHeld:
		case open == size:
			full = append(full, k)
		case open*100 >= size*nearly:
			others = append(others, k)
		}
	}
	if len(full) == 0 && v.Conntrack.InsertFailed >= minDrops {
		// Older kernels keep the ports of closed connections.
		for _, k := range all {
			h := bundles[k.bundle]
			if used := held(h.open, k.within) + held(h.closed, k.within); used >= max(sizeOf(k.within), minHeld) && !h.reused {
				full = append(full, k)
			}
		}
	}
	var out []finding
	for _, k := range append(full, others...) {
		f := v.exhausted(k, bundles[k.bundle], slices.Contains(full, k))
		f.facts["alike"] = len(full)
		if len(full) > 1 {
			f.Packets = 0 // Which of them failed is not known.
		}
		out = append(out, f)
	}
	return out
}

// bundles are the flows of pods that leave with an address of the node's.
func (v *view) bundles() map[bundle]*holders {
	type sender struct {
		pod, to netip.Addr
		proto   uint8
		port    uint16
		began   bool
	}
	nats := map[sender]path.SourceNAT{}
	out := map[bundle]*holders{}
	for f := range model.Each(v.Flows) {
		pod := f.Original.Src
		if f.Proto != tcp && f.Proto != udp || f.Reply.Dst == pod || !v.nodeAddrs[f.Reply.Dst] || len(v.pods[pod]) == 0 {
			continue
		}
		k := bundle{f.Proto, f.Reply.Dst, f.Reply.Src, f.Reply.SrcPort}
		if out[k] == nil {
			out[k] = &holders{open: map[uint16]bool{}, closed: map[uint16]bool{}, ranges: map[model.PortRange]*leaving{}}
		}
		h := out[k]
		if closed(f) {
			h.closed[f.Reply.DstPort] = true
		} else {
			h.open[f.Reply.DstPort] = true
		}
		h.reused = h.reused || f.Proto == tcp && !f.Start.IsZero() && f.Replied
		s := sender{pod, k.to, k.proto, f.Reply.SrcPort, !f.Start.IsZero()}
		nat, known := nats[s]
		if !known {
			leaves := v.leavingPacket(f)
			leaves.SrcPort = 0 // the others have others
			nat = v.Tables().Source(leaves)
			nats[s] = nat
		}
		within := anyPorts
		if nat.Translated && !nat.CutOff && nat.Rule.ToPorts.First != 0 {
			within = nat.Rule.ToPorts
		}
		if h.ranges[within] == nil {
			h.ranges[within] = &leaving{nat, map[netip.Addr]bool{}}
		}
		h.ranges[within].pods[pod] = true
	}
	for _, h := range out {
		maps.DeleteFunc(h.closed, func(port uint16, _ bool) bool { return h.open[port] })
	}
	return out
}

// nearly is the share of a range that is as good as all, in percent: the
// kernel tries some ports at random before it gives up.
const nearly = 95

// minHeld keeps a range of one or two ports from being called used up by the
// flow that it was made for.
const minHeld = 4

func held(ports map[uint16]bool, within model.PortRange) int {
	n := 0
	for p := range ports {
		if within.First <= p && p <= within.Last {
			n++
		}
	}
	return n
}

func sizeOf(r model.PortRange) int { return int(r.Last) - int(r.First) + 1 }

// exhausted is the finding on one range of one bundle. Insertions that failed are
// those of the full ones.
func (v *view) exhausted(k rangeOf, h *holders, full bool) finding {
	l := h.ranges[k.within]
	used, ended, size := held(h.open, k.within), held(h.closed, k.within), sizeOf(k.within)
	f := finding{inserts: true, facts: facts{
		"from": k.from, "to": k.to, "proto": model.ProtoName(k.proto), "port": k.port, "within": k.within, "size": size, "ended": ended,
		"cutOff": l.nat.CutOff, "read": v.Has(model.SourceNAT),
	}}
	if l.nat.Translated && !l.nat.CutOff {
		f.facts["rule"] = l.nat.Rule
	}
	if k.within != anyPorts {
		f.facts["narrow"], f.facts["wider"] = true, strings.Replace(l.nat.Rule.Text, rangeText(k.within), rangeText(anyPorts), 1)
	}
	if full {
		f.Packets = v.Conntrack.InsertFailed
	}
	kept := full && used < size
	if kept {
		used += ended
	}
	f.facts["used"], f.facts["kept"], f.facts["failed"] = used, kept, f.Packets
	if kept || f.Packets == 0 {
		f.Severity = model.Warning
	}
	if kept || f.Packets == 0 || l.nat.CutOff {
		f.Confidence = model.Likely
	}
	f.Pods, f.Peers, f.LastHopAlive = sorted(l.pods), []netip.Prefix{host(k.to)}, v.entering(l.pods)
	return f
}

// rangeText is a range of ports as a rule names it.
func rangeText(r model.PortRange) string { return fmt.Sprintf("%d-%d", r.First, r.Last) }
