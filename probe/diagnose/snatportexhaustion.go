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
	"github.com/lasthop/lasthop/probe/words"
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
	var full, others []rangeOf
	keys := slices.SortedFunc(maps.Keys(bundles), func(a, b bundle) int {
		return cmp.Or(a.to.Compare(b.to), cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto), a.from.Compare(b.from))
	})
	for _, k := range keys {
		h := bundles[k]
		for _, within := range slices.SortedFunc(maps.Keys(h.ranges), func(a, b model.PortRange) int { return cmp.Compare(a.First, b.First) }) {
			switch open, size := held(h.open, within), sizeOf(within); {
			case open < minHeld:
			case open == size:
				full = append(full, rangeOf{k, within})
			case open*100 >= size*nearly:
				others = append(others, rangeOf{k, within})
			}
		}
	}
	if len(full) == 0 {
		// Older kernels keep the ports of closed connections.
		for _, k := range keys {
			for within := range bundles[k].ranges {
				h := bundles[k]
				if used := held(h.open, within) + held(h.closed, within); used >= sizeOf(within) && used >= minHeld && !h.reused && v.Conntrack.InsertFailed >= minDrops {
					full = append(full, rangeOf{k, within})
				}
			}
		}
	}
	var out []finding
	for _, k := range append(full, others...) {
		out = append(out, finding{Finding: v.exhausted(k, bundles[k.bundle], slices.Contains(full, k), len(full)), inserts: true})
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
	tables, nats := path.NewTables(v.Snapshot), map[sender]path.SourceNAT{}
	out := map[bundle]*holders{}
	for f := range model.Each(v.Flows) {
		pod := f.Original.Src
		if f.Proto != tcp && f.Proto != udp || f.Reply.Dst == pod || !v.nodeAddrs[f.Reply.Dst] || len(v.pods[pod]) == 0 {
			continue
		}
		k := bundle{f.Proto, f.Reply.Dst, f.Reply.Src, f.Reply.SrcPort}
		h := out[k]
		if h == nil {
			h = &holders{open: map[uint16]bool{}, closed: map[uint16]bool{}, ranges: map[model.PortRange]*leaving{}}
			out[k] = h
		}
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
			nat = tables.Source(leaves)
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
// those of the full ones, of which there are so many.
func (v *view) exhausted(k rangeOf, h *holders, full bool, alike int) model.Finding {
	l := h.ranges[k.within]
	open, ended, size := held(h.open, k.within), held(h.closed, k.within), sizeOf(k.within)
	f := model.Finding{Confidence: model.Proven, Pods: sorted(l.pods), Peers: []netip.Prefix{host(k.to)}}
	if l.nat.CutOff {
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, v.natUnseen())
	}
	target := fmt.Sprintf("%s/%d of %s", model.ProtoName(k.proto), k.port, k.to)
	used := open
	if open < size && full {
		used += ended
		f.Severity, f.Confidence = model.Warning, model.Likely
		f.Unseen = append(f.Unseen, "whether this kernel gives the ports of closed connections to new ones, as newer ones do")
	}
	f.Title = fmt.Sprintf("the ports of %s towards %s are used up", k.from, target)
	f.Why = fmt.Sprintf("Flows to %s hold %d of the %d ports (%d to %d) that pods can leave with as %s.", target, used, size, k.within.First, k.within.Last, k.from)
	observe(&f, model.SourceConntrack, "%d of %d ports of %s are held by flows to %s, begun by %s", used, size, k.from, target, words.Addrs(f.Pods))
	observeSome(&f, ended, model.SourceConntrack, "%d more were those of connections that are closed", ended)
	if l.nat.Translated && !l.nat.CutOff {
		f.Evidence = append(f.Evidence, packetRuleEvidence("this rule translates them", l.nat.Rule))
	}
	switch n := v.Conntrack.InsertFailed; {
	case full && n > 0:
		f.Packets = n
		whose := ""
		if alike > 1 {
			f.Packets, whose = 0, fmt.Sprintf(", those of %d such destinations together", alike)
		}
		f.Why += fmt.Sprintf(" %s of new flows got none in the window: dropped on the node%s.", words.Count(n, "first packet"), whose)
		observe(&f, model.SourceConntrack, "insert_failed rose by %d in the window: two flows with the same port", n)
	default:
		f.Severity, f.Confidence = model.Warning, model.Likely
		f.Why += " When all are held, new ones die on the node."
		f.Unseen = append(f.Unseen, "a flow that got no port: no insertion failed in the window for want of one")
	}
	f.LastHopAlive = v.place(v.pods[f.Pods[0]][0].Link, model.Ingress)
	f.Fix = []string{"conntrack -L -p " + model.ProtoName(k.proto) + " -d " + k.to.String() + " # use connections again, or leave with more addresses (NAT gateway)"}
	if k.within != anyPorts {
		f.Fix = append([]string{"widen the range of ports, unless something else needs the others:", widen(l.nat.Rule)}, f.Fix...)
	}
	return f
}

// widen is the command that has a rule give all ports.
func widen(r *model.PacketRule) string {
	text := strings.Replace(r.Text, fmt.Sprintf("%d-%d", r.ToPorts.First, r.ToPorts.Last), fmt.Sprintf("%d-%d", anyPorts.First, anyPorts.Last), 1)
	return words.ReplacePacketRule(r, text)
}
