package bridge

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// bypass is what services led from one pod of a bridge to another of it.
type bypass struct{ client, backend netip.Addr }

// NetfilterOff reports replies that pass the node on a bridge, untranslated, as netfilter does not see bridged packets.
var NetfilterOff = fault.Kind{Code: "BridgeNetfilterOff", Severity: model.Critical, Find: netfilterOff,
	Needs: fault.Sources{model.SourceConntrack, model.SourceLinks, model.SourceSysctl},
	Ends:  fault.Hops{model.HopPod, model.HopBridge}, Objects: fault.Objects{"bridge", "link"}}

func netfilterOff(v *fault.Input) {
	for _, isIPv6 := range []bool{false, true} {
		name := path.BridgeCalls(isIPv6)
		value, known := v.Settings[name]
		if known && value != "0" {
			continue
		}
		f, pairs := repliesPastNode(v, isIPv6)
		if pairs == nil && !pastServices(v.Index, f, isIPv6) {
			continue
		}
		f.Facts["setting"], f.Facts["loaded"] = name, known
		f.Claims = func(d *model.Drop) bool {
			return pairs[bypass{d.Dst, d.Src}] && d.Is(model.NoSocket|model.Netfilter) || pairs[bypass{d.Src, d.Dst}] && d.Is(model.Netfilter)
		}
		v.Report(*f)
	}
}

// repliesPastNode is the finding on what services lead from one pod of a bridge to
// another, who are returned: nil where that fares well.
func repliesPastNode(v *fault.Input, isIPv6 bool) (*fault.Fault, map[bypass]bool) {
	f := &fault.Fault{Facts: words.Facts{}}
	pairs, services, flows := map[bypass]bool{}, map[netip.Addr]bool{}, uint64(0)
	for x := range model.Each(v.Flows) {
		p := bypass{x.Original.Src, x.Reply.Src}
		translated := x.Original.Dst != x.Reply.Src && x.Reply.Dst == x.Original.Src
		asks := !x.Replied && !x.Start.IsZero() && (x.Proto == model.TCP || v.DatagramAsks(x))
		if translated && asks && p.client.Is6() == isIPv6 && p.client != p.backend && shareBridge(v.Index, p) &&
			(refusesReplies(v.Index, p.client) || filtered(v, p) >= node.MinDrops) {
			pairs[p], services[x.Original.Dst] = true, true
			flows++
		}
	}
	if flows < node.MinAsks {
		return f, nil
	}
	clients, backends, dropped := map[netip.Addr]bool{}, map[netip.Addr]bool{}, uint64(0)
	for p := range pairs {
		clients[p.client], backends[p.backend] = true, true
		dropped += filtered(v, p)
	}
	f.Pods, f.Peers, f.Packets = node.Sorted(clients), model.Hosts(append(node.Sorted(services), node.Sorted(backends)...)),
		max(flows, dropped)
	bridge := v.BridgeOf(v.Owners[f.Pods[0]][0]).Name
	f.LastHopAlive = v.Place(bridge, model.Ingress)
	f.Facts = words.Facts{
		"flows": flows, "services": node.Sorted(services), "backends": node.Sorted(backends), "bridge": bridge, "dropped": dropped,
	}
	return f, pairs
}

// pastServices makes it one on the services that pods of the uplink's own bridge ask
// in vain: the packets leave by the bridge as they are, past the rules for them.
func pastServices(v *node.Index, f *fault.Fault, isIPv6 bool) bool {
	x := v.SumPeers(model.Chosen(v.Peers, func(p *model.Peer) bool {
		return p.Remote.Is6() == isIPv6 && len(v.Owners[p.Local]) > 0 && node.BesideUplink(v, p) && v.Unanswered(p) &&
			node.Lasted(p) && serviceRule(v, p.Remote) != nil
	}))
	if x.Requests < node.MinAsks {
		return false
	}
	remotes, link := node.Sorted(x.Peers), v.LinkName(x.Link)
	f.Lost, f.Page, f.LastHopAlive = x, "BridgeNetfilterOff-uplink", v.Place(link, model.Egress)
	f.Facts = words.Facts{"remotes": remotes, "link": link, "requests": x.Requests, "rule": serviceRule(v, remotes[0])}
	return true
}

// serviceRule is a rule for what is sent to an address alone, as kube-proxy has one
// for a service; nil where there is none.
func serviceRule(v *node.Index, a netip.Addr) *model.PacketRule {
	return model.First(v.PacketRules, func(r *model.PacketRule) bool {
		return (r.Table == "nat" || r.Native) && !r.Dst.Not && r.Dst.Prefix.IsSingleIP() && r.Dst.Prefix.Addr() == a &&
			!slices.Contains([]string{"RETURN", "ACCEPT", "KUBE-MARK-MASQ"}, r.Target)
	})
}

func shareBridge(v *node.Index, p bypass) bool {
	bridge := func(a netip.Addr) *model.Link {
		if len(v.Owners[a]) == 0 {
			return nil
		}
		return v.BridgeOf(v.Owners[a][0])
	}
	b := bridge(p.client)
	return b != nil && b == bridge(p.backend)
}

func filtered(v *fault.Input, p bypass) uint64 {
	return v.Dropped(func(d *model.Drop) bool { return d.Is(model.Netfilter) && d.Src == p.client && d.Dst == p.backend })
}

// refusesReplies reports whether a pod sent resets or ICMP errors, as it does for replies to nothing that it asked.
func refusesReplies(v *node.Index, client netip.Addr) bool {
	return slices.ContainsFunc(v.HopsOf[client], func(h *model.HopCount) bool {
		return h.Side == model.AsSource && h.Direction == model.Ingress && h.RST+h.ICMPErrors >= node.MinAsks
	})
}
