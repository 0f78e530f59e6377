package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// BridgeNetfilterOff is the code of this finding.
const BridgeNetfilterOff model.Code = "BridgeNetfilterOff"

var bridgeNetfilterOff = kind{
	code:     BridgeNetfilterOff,
	severity: model.Critical,
	find:     needing(findBridgeNetfilterOff, model.SourceConntrack, model.SourceLinks, model.SourceSysctl),
	ends:     []model.HopKind{model.HopPod, model.HopBridge}, // a rule against doubled frames takes them first
}

// bypass is what services led from one pod of a bridge to another of it.
type bypass struct{ client, backend netip.Addr }

func findBridgeNetfilterOff(v *view) []finding {
	var out []finding
	for _, isIPv6 := range []bool{false, true} {
		out = append(out, bypassing(v, isIPv6)...)
	}
	return out
}

func bypassing(v *view, isIPv6 bool) []finding {
	name := path.BridgeCalls(isIPv6)
	value, known := v.sysctls()[name]
	if known && value != "0" {
		return nil
	}
	f := model.Finding{Confidence: model.Proven}
	if known {
		observe(&f, model.SourceSysctl, "%s = 0", name)
	} else {
		observe(&f, model.SourceSysctl, "%s is not there: the module br_netfilter is not loaded", name)
		f.Fix = append(f.Fix, "modprobe br_netfilter, and have it loaded at boot: /etc/modules-load.d")
	}
	f.Fix = append(f.Fix, words.SetSysctl(name, "1"), "write the setting to /etc/sysctl.d, and look who turned it off")
	pairs := v.repliesPastNode(&f, isIPv6)
	if pairs == nil && !v.pastServices(&f, isIPv6) {
		return nil
	}
	return []finding{{Finding: f, claims: func(d *model.Drop) bool {
		return pairs[bypass{d.Dst, d.Src}] && (d.NoSocket() || d.Netfilter()) || pairs[bypass{d.Src, d.Dst}] && d.Netfilter()
	}}}
}

// repliesPastNode adds to a finding what services lead from one pod of a bridge to
// another, who are returned: nil where that fares well.
func (v *view) repliesPastNode(f *model.Finding, isIPv6 bool) map[bypass]bool {
	pairs, services, flows := map[bypass]bool{}, map[netip.Addr]bool{}, uint64(0)
	for x := range model.Each(v.Flows) {
		p := bypass{x.Original.Src, x.Reply.Src}
		translated := x.Original.Dst != x.Reply.Src && x.Reply.Dst == x.Original.Src
		asks := !x.Replied && !x.Start.IsZero() && (x.Proto == tcp || v.datagramAsks(x))
		if translated && asks && p.client.Is6() == isIPv6 && p.client != p.backend && v.shareBridge(p) && (v.refusesReplies(p.client) || v.filtered(p) >= minDrops) {
			pairs[p], services[x.Original.Dst] = true, true
			flows++
		}
	}
	if flows < minAsks {
		return nil
	}
	clients, backends, dropped := map[netip.Addr]bool{}, map[netip.Addr]bool{}, uint64(0)
	for p := range pairs {
		clients[p.client], backends[p.backend] = true, true
		dropped += v.filtered(p)
	}
	f.Pods, f.Peers, f.Packets = sorted(clients), hosts(append(sorted(services), sorted(backends)...)), max(flows, dropped)
	bridge := v.bridgeOf(v.pods[f.Pods[0]][0]).Name
	f.LastHopAlive = v.place(bridge, model.Ingress)
	observe(f, model.SourceConntrack, "%s of the window from %s to %s UNREPLIED", words.Count(flows, "flow"), words.Addrs(f.Pods), words.Addrs(sorted(services)))
	f.Why = fmt.Sprintf("Services lead %s to %s, on the same bridge, and netfilter does not see bridged packets here. ", words.Addrs(f.Pods), words.Addrs(sorted(backends)))
	if dropped > 0 {
		f.Title = fmt.Sprintf("what services lead from %s to %s on %s is dropped", words.Addrs(f.Pods), words.Addrs(sorted(backends)), bridge)
		f.Why += fmt.Sprintf("So the node routes the requests back to %s, and a rule there drops them, as kubenet's deduplicating chain does.", bridge)
		observe(f, model.SourceDrops, "%s between them dropped by netfilter", words.Count(dropped, "packet"))
		return pairs
	}
	f.Title = fmt.Sprintf("replies of %s bypass the node's translation on %s", words.Addrs(sorted(services)), bridge)
	f.Why += fmt.Sprintf("Replies go by %s alone, keep the backend's own address, and the client refuses them.", bridge)
	observe(f, model.SourceTC, "these pods answer replies with resets or ICMP errors: they come from an address that was not asked")
	return pairs
}

// pastServices adds to a finding the services that pods of the uplink's own bridge ask
// in vain: the packets leave by the bridge as they are, past the rules for them.
func (v *view) pastServices(f *model.Finding, isIPv6 bool) bool {
	var list []*model.Peer
	for p := range model.Each(v.peers) {
		if p.Remote.Is6() == isIPv6 && len(v.pods[p.Local]) > 0 && besideUplink(v, p) && v.unanswered(p) && lasted(p) && v.serviceRule(p.Remote) != nil {
			list = append(list, p)
		}
	}
	x := v.sumPeers(list)
	if x.requests < minAsks {
		return false
	}
	f.Pods, f.Peers, f.Packets = sorted(x.pods), hosts(sorted(x.remotes)), x.packets
	link := v.linkName(x.link)
	f.LastHopAlive = v.place(link, model.Egress)
	f.Title = "traffic to " + words.Addrs(sorted(x.remotes)) + " bypasses iptables"
	f.Why = fmt.Sprintf("Rules of this node translate %s, and netfilter does not see bridged packets here: what pods send there leaves %s as it is.",
		words.Addrs(sorted(x.remotes)), link)
	f.Evidence = append(f.Evidence, packetRuleEvidence("this rule is for what is sent there", v.serviceRule(f.Peers[0].Addr())))
	observe(f, model.SourceTC, "%s egress: %s to there with the service's address, %d of them requests; ingress: none", link, words.Count(x.packets, "packet"), x.requests)
	return true
}

// serviceRule is a rule for what is sent to an address alone, as kube-proxy has one
// for a service; nil where there is none.
func (v *view) serviceRule(a netip.Addr) *model.PacketRule {
	for r := range model.Each(v.PacketRules) {
		nat := r.Table == "nat" || r.Native
		if nat && !r.Dst.Not && r.Dst.Prefix.IsSingleIP() && r.Dst.Prefix.Addr() == a && r.Target != "RETURN" && r.Target != "ACCEPT" && r.Target != "KUBE-MARK-MASQ" {
			return r
		}
	}
	return nil
}

// shareBridge reports whether both ends are pods of one bridge.
func (v *view) shareBridge(p bypass) bool {
	bridge := func(a netip.Addr) *model.Link {
		if len(v.pods[a]) == 0 {
			return nil
		}
		return v.bridgeOf(v.pods[a][0])
	}
	b := bridge(p.client)
	return b != nil && b == bridge(p.backend)
}

// filtered is how many packets from the client to the backend netfilter dropped.
func (v *view) filtered(p bypass) uint64 {
	return v.dropped(func(d *model.Drop) bool { return d.Netfilter() && d.Src == p.client && d.Dst == p.backend })
}

// refusesReplies reports whether a pod sent resets or ICMP errors, as it does for
// replies to nothing that it asked.
func (v *view) refusesReplies(client netip.Addr) bool {
	return slices.ContainsFunc(v.hops[client], func(h *model.HopCount) bool {
		return h.Side == model.AsSource && h.Direction == model.Ingress && h.RST+h.ICMPErrors >= minAsks
	})
}
