package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// SNATPortExhaustion is the code of this finding.
const SNATPortExhaustion model.Code = "SNATPortExhaustion"

var snatPortExhaustion = kind{
	page: Page{
		Code:     SNATPortExhaustion,
		Severity: model.Critical,
		Title:    "one destination holds nearly all ports of the address that pods leave with",
		Meaning: "Masqueraded flows to one destination's port must differ by the source port, so one address can hold as many as " +
			"there are ports. When nearly all are taken, new flows to that destination die on the node, without a word, while " +
			"everything else works. Flows hold their port until connection tracking forgets them.",
		Evidence: "connection tracking's reply tuples: how many ports of the range flows to that destination hold; insertions that " +
			"failed in the window.",
		Fix: "let pods use connections again; widen the range of --to-ports; leave with more addresses (a NAT gateway, more nodes); " +
			"shorten connection tracking's timeouts.",
	},
	find: findSNATPortExhaustion,
	ends: []model.HopKind{model.HopConntrack},
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

// holders are a bundle's flows by the port that they were given.
type holders struct {
	ports map[uint16]bool
	pods  map[netip.Addr]bool
	first *model.Flow
}

func findSNATPortExhaustion(v *view) []finding {
	bundles := map[bundle]*holders{}
	for f := range each(v.Flows) {
		if f.Proto != tcp && f.Proto != udp || f.Reply.Dst == f.Original.Src || !v.nodeAddrs[f.Reply.Dst] || len(v.pods[f.Original.Src]) == 0 {
			continue
		}
		k := bundle{f.Proto, f.Reply.Dst, f.Reply.Src, f.Reply.SrcPort}
		h := bundles[k]
		if h == nil {
			h = &holders{ports: map[uint16]bool{}, pods: map[netip.Addr]bool{}, first: f}
			bundles[k] = h
		}
		h.ports[f.Reply.DstPort], h.pods[f.Original.Src] = true, true
	}
	tables := path.NewTables(v.Snapshot)
	var out []finding
	keys := slices.SortedFunc(maps.Keys(bundles), func(a, b bundle) int {
		return cmp.Or(a.to.Compare(b.to), cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto), a.from.Compare(b.from))
	})
	for _, k := range keys {
		if f, ok := exhausted(v, tables, k, bundles[k]); ok {
			out = append(out, finding{Finding: f})
		}
	}
	return out
}

// nearly is the share of a range that is as good as all, in percent: the
// kernel tries some ports at random before it gives up.
const nearly = 95

func exhausted(v *view, tables *path.Tables, k bundle, h *holders) (model.Finding, bool) {
	f := model.Finding{Confidence: model.Proven}
	nat := tables.Source(path.Packet{Src: h.first.Original.Src, Dst: k.to, Proto: k.proto, Out: []string{v.outLink(k.to)}})
	within := anyPorts
	if nat.CutOff {
		nat.Translated, f.Confidence = false, model.Likely
		f.Unseen = append(f.Unseen, v.natUnseen())
	}
	if nat.Translated && nat.Rule.ToPorts.First != 0 {
		within = nat.Rule.ToPorts
	}
	used := 0
	for p := range h.ports {
		if within.First <= p && p <= within.Last {
			used++
		}
	}
	size := int(within.Last) - int(within.First) + 1
	if used < minHeld || used*100 < size*nearly {
		return f, false
	}
	f.Pods = sorted(h.pods)
	f.Peers = []netip.Prefix{host(k.to)}
	target := fmt.Sprintf("%s/%d of %s", model.ProtoName(k.proto), k.port, k.to)
	f.Title = fmt.Sprintf("the ports of %s towards %s are used up", k.from, target)
	f.Why = fmt.Sprintf("Flows to %s hold %d of the %d ports (%d to %d) that pods can leave with as %s. New ones die on the node.",
		target, used, size, within.First, within.Last, k.from)
	f.Evidence = []model.Evidence{seen(model.SourceConntrack, "%d of %d ports of %s are held by flows to %s, begun by %s", used, size, k.from, target, addrs(f.Pods))}
	if nat.Translated {
		f.Evidence = append(f.Evidence, packetRuleEvidence("this rule translates them", nat.Rule))
	}
	if n := v.Conntrack.InsertFailed + v.Conntrack.Drop; n > 0 {
		f.Packets = n
		observe(&f, model.SourceConntrack,
			"%s failed in the window, all flows together: two flows with the same port", plural(n, "insertion", "insertions"))
	} else {
		f.Severity, f.Confidence = model.Warning, model.Likely
		f.Unseen = append(f.Unseen, "a flow that got no port: no insertion failed in the window")
	}
	f.LastHopAlive = v.place(v.outLink(k.to), model.Egress)
	f.Fix = []string{"conntrack -L -p " + model.ProtoName(k.proto) + " -d " + k.to.String() + " # use connections again, or leave with more addresses (NAT gateway)"}
	if within != anyPorts {
		option := "--to-ports "
		if nat.Rule.Native {
			option = "masquerade to :"
		}
		f.Fix = append([]string{fmt.Sprintf("widen the range of ports: %s; then the same rule with %s%d-%d",
			deletePacketRule(nat.Rule), option, anyPorts.First, anyPorts.Last)}, f.Fix...)
	}
	return f, true
}

// minHeld keeps a range of one or two ports from being called used up by the
// flow that it was made for.
const minHeld = 4
