package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

var unexplainedDrop = kind{
	page: Page{
		Code:     "UnexplainedDrop",
		Severity: model.Info,
		Title:    "the kernel drops packets of pods and no finding accounts for it",
		Meaning: "The kernel freed packets of a pod before they were delivered, and no other finding explains why. The reason is " +
			"the kernel's own name for it, the location the function that freed the packet. NETFILTER_DROP is a firewall rule, " +
			"TC_INGRESS and TC_EGRESS a tc program, NEIGH_FAILED a neighbour that does not answer, IP_RPFILTER the reverse path " +
			"filter, NO_SOCKET a port on which nobody listens.",
		Evidence: "the count of the kfree_skb tracepoint by reason, location and link.",
		Fix:      "look at what the reason names; lasthop explain POD --to PEER shows at which hop of their way the packets end.",
		Verify:   "lasthop check --only UnexplainedDrop",
	},
	find: findUnexplainedDrop,
	after: []model.Code{"PodLinkDown", "StaleMACRewrite", "StaleARPReply", "WrongGatewayMAC", "BridgeRuleDrop", "StaleNeighbor",
		"DuplicatePodIP", "HairpinDrop", "UnansweredARP", "ConntrackRace", "PolicyDrop", "NoListener", "ReceiveOverflow"},
}

// minDrops is how many packets of one kind must be dropped before it is a
// finding: a pod that comes or goes loses one or two in flight. All of them
// stay in the report's list of drops.
const minDrops = 3

// dropKind is what makes drops the same. One cause may drop on many links: a
// rule of FORWARD names the link that each packet came in by.
type dropKind struct {
	reason   model.Reason
	location string
}

func findUnexplainedDrop(v *view) []verdict {
	allowed := v.byDesign()
	groups := map[dropKind][]*model.Drop{}
	for i := range v.Traffic.Drops {
		d := &v.Traffic.Drops[i]
		if v.pod(d) != (netip.Addr{}) && !v.harmless(d) && !v.explained(d) && !allowed.take(d) {
			k := dropKind{d.Reason, d.Location}
			groups[k] = append(groups[k], d)
		}
	}
	var out []verdict
	for k, drops := range groups {
		if f, ok := v.unexplained(k, drops); ok {
			out = append(out, verdict{Finding: f})
		}
	}
	return out
}

func (v *view) unexplained(k dropKind, drops []*model.Drop) (model.Finding, bool) {
	f := model.Finding{Confidence: model.Proven}
	pods := map[netip.Addr]bool{}
	peers := map[netip.Addr]bool{}
	for _, d := range drops {
		f.Packets += d.Packets
		pod := v.pod(d)
		pods[pod] = true
		if peer := d.Dst; peer != pod {
			peers[peer] = true
		} else {
			peers[d.Src] = true
		}
	}
	if f.Packets < minDrops {
		return f, false
	}
	f.Pods = slices.Collect(maps.Keys(pods))
	f.Peers = hosts(slices.SortedFunc(maps.Keys(peers), netip.Addr.Compare))
	why := string(k.reason)
	if why == "" {
		why = "a reason that this kernel does not tell"
	}
	most := mostDropped(drops)
	f.LastHopAlive = v.place(most[0].Link, passing(most[0]))
	f.Title = fmt.Sprintf("%s at %s", why, k.location)
	f.Why = fmt.Sprintf("The kernel dropped %s of %s: %s at %s.", count(f.Packets, "packet"), count(uint64(len(pods)), "pod"), why, k.location)
	for _, d := range most {
		where := ""
		if d.Link != "" {
			where = " on " + d.Link
		}
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceDrops, Text: fmt.Sprintf(
			"%s to %s%s: %s", d.Src, d.Dst, where, count(d.Packets, "packet"))})
	}
	f.Fix = []string{"look at what " + k.location + " decides by: lasthop findings UnexplainedDrop"}
	if d := most[0]; v.pods[d.Src] != nil {
		f.Fix = append(f.Fix, fmt.Sprintf("see at which hop of their way they end: lasthop explain %s --to %s", d.Src, d.Dst))
	} else {
		f.Fix = append(f.Fix, fmt.Sprintf("see at which hop of their way they end: lasthop explain %s --to %s", d.Dst, d.Src))
	}
	return f, true
}

// passing is how a dropped packet was to pass the link that it had: out of it
// where it waited for the next hop's MAC or was handed to the device, else into
// the node by it.
func passing(d *model.Drop) model.Direction {
	out := []string{"__dev_queue_xmit", "ip_output", "ip_finish_output", "ip_finish_output2", "ip6_output", "ip6_finish_output", "ip6_finish_output2"}
	if neighborFailed(d) || d.Reason == "TC_EGRESS" || d.Reason == "QDISC_DROP" || slices.Contains(out, d.Location) {
		return model.Egress
	}
	return model.Ingress
}

// mostDropped are the few ends that lost most, as evidence: what they sent by
// several protocols is one row, with the first's other fields.
func mostDropped(drops []*model.Drop) []*model.Drop {
	const most = 3
	type ends struct {
		src, dst       netip.Addr
		link, location string
		reason         model.Reason
	}
	byEnds := map[ends]*model.Drop{}
	for _, d := range drops {
		k := ends{d.Src, d.Dst, d.Link, d.Location, d.Reason}
		if byEnds[k] == nil {
			first := *d
			first.Packets = 0
			byEnds[k] = &first
		}
		byEnds[k].Packets += d.Packets
	}
	list := slices.Collect(maps.Values(byEnds))
	slices.SortFunc(list, func(a, b *model.Drop) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), cmp.Compare(a.Link, b.Link),
			cmp.Compare(a.Location, b.Location), cmp.Compare(a.Reason, b.Reason))
	})
	return list[:min(most, len(list))]
}

// pod is the drop's end that is a living pod of this node: the receiver where
// both are. The zero address: neither is.
func (v *view) pod(d *model.Drop) netip.Addr {
	for _, a := range []netip.Addr{d.Dst, d.Src} {
		if len(v.pods[a]) > 0 {
			return a
		}
	}
	return netip.Addr{}
}

func (v *view) explained(d *model.Drop) bool {
	return slices.ContainsFunc(v.verdicts, func(f verdict) bool { return f.explains != nil && f.explains(d) })
}

// harmless reports whether a drop is part of a working network: what a
// transport or a socket frees as it goes, and frames that a bridge floods
// until it has learnt where their owner is, or as long as somebody sends to an
// owner that went away.
func (v *view) harmless(d *model.Drop) bool {
	switch {
	case d.OfSocket():
		// Where no reason is told, tcp_v4_rcv and tcp_v6_rcv may not have
		// found a socket.
		return d.Reason != "" || d.Location != "tcp_v4_rcv" && d.Location != "tcp_v6_rcv"
	case d.Location == "icmpv6_rcv" && (d.Src.IsLinkLocalUnicast() || d.Dst.IsLinkLocalUnicast()):
		// Neighbour discovery that says nothing new, or of an address that
		// another claims.
		return true
	case v.toMany(d.Dst) && nobodyTook(d):
		return true
	case neighborFailed(d), noSocket(d), lookupRefused(d):
		// A pod that goes closes its sockets before its link is gone, and its
		// route goes with that.
		return v.past[d.Dst]
	case d.Location == "ip6_mc_input", d.Reason == "IPV6_NDISC_NS_OTHERHOST":
		// What asks for a neighbour goes to a group, and a bridge floods it
		// to all: those that are not meant free it.
		return d.Dst.IsMulticast()
	case netfilter(d):
		return v.startingUp(d) || v.bridgedCopy(d)
	case d.Reason == "OTHERHOST":
		_, owned := v.macs[d.DstMAC]
		return owned || v.past[d.Dst]
	}
	return false
}

// bridgedCopy reports whether netfilter dropped the copy that a promiscuous
// bridge hands to the node of a frame that it takes to the pod itself. What is for
// the node, and what comes back to the pod that sent it, has no other way.
func (v *view) bridgedCopy(d *model.Drop) bool {
	br := v.links[d.IfIndex]
	if br == nil || br.Kind != "bridge" || !br.Promisc || d.Src == d.Dst || d.DstMAC.IsZero() || v.bridgeMACs[d.DstMAC] {
		return false
	}
	return slices.ContainsFunc(v.pods[d.Dst], func(p *model.Pod) bool {
		l := v.links[p.LinkIndex]
		return p.MAC == d.DstMAC && l != nil && l.Master == br.Index
	})
}

// toMany reports whether an address is that of a group, or of all on a link.
func (v *view) toMany(a netip.Addr) bool {
	if a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return true
	}
	return v.broadcasts[a]
}

// nobodyTook reports whether a packet for many was freed by a receiver that has
// not joined the group, or no socket for it: who calls a group is not owed an
// answer by each that hears it. Before Linux 5.17 there are no reasons.
func nobodyTook(d *model.Drop) bool {
	switch d.Location {
	case "ip_rcv_finish_core", "ip_rcv_finish", "__udp4_lib_rcv", "__udp4_lib_mcast_deliver", "__udp6_lib_rcv", "__udp6_lib_mcast_deliver":
		return d.Reason == "NOT_SPECIFIED" || d.Reason == "" || noSocket(d)
	}
	return false
}

// allowance is what one rule drops by design.
type allowance struct {
	takes func(*model.Drop) bool
	// left is how many packets the rule counted, less those taken.
	left uint64
}

// allowances are those of all such rules.
type allowances []allowance

// take reports whether the drop is by design, and uses up what it takes.
func (list allowances) take(d *model.Drop) bool {
	for i := range list {
		if list[i].left >= d.Packets && list[i].takes(d) {
			list[i].left -= d.Packets
			return true
		}
	}
	return false
}

// byDesign finds the rules that drop on a healthy node: kubelet's
// deduplication of frames that a promiscuous bridge delivers twice, and AKS's
// bans of the wire server and of the metadata service.
func (v *view) byDesign() allowances {
	var out allowances
	for i := range v.FrameRules {
		r := &v.FrameRules[i]
		if most := mostDroppedBy(r.Counter); most > 0 && v.deduplicates(r) {
			out = append(out, allowance{left: most, takes: func(d *model.Drop) bool {
				return netfilter(d) && r.IPSrc.Matches(d.Src) && r.Out.Matches(d.Link)
			}})
		}
	}
	for i := range v.PacketRules {
		r := &v.PacketRules[i]
		if most := mostDroppedBy(r.Counter); most > 0 && v.dropsByDesign(r) {
			out = append(out, allowance{left: most, takes: func(d *model.Drop) bool {
				return netfilter(d) && r.Dst.Matches(d.Dst) && r.Src.Matches(d.Src) && (r.Proto == 0 || r.Proto == d.Proto)
			}})
		}
	}
	return out
}

// mostDroppedBy bounds what a rule dropped in the window: what it counted, or
// anything where its counter began anew in between.
func mostDroppedBy(c model.Counter) uint64 {
	if c.Restarted {
		return math.MaxUint64
	}
	return c.Delta
}

// deduplicates reports whether a rule holds back the second copy of what the
// node itself sent through its bridge, as kubelet's do.
func (v *view) deduplicates(r *model.FrameRule) bool {
	return r.Target == model.TargetDrop && r.SrcMAC.Set && v.bridgeMACs[r.SrcMAC.Addr] && !r.IPSrc.IsZero()
}

// wireServerPorts are those of Azure's wire server that pods may not reach.
var wireServerPorts = []uint16{80, 32526}

// dropsByDesign reports whether a rule is one of AKS's own bans. A ban of the
// wire server's other ports is not: its DNS is for everybody.
func (v *view) dropsByDesign(r *model.PacketRule) bool {
	if r.Target != "DROP" && r.Target != "REJECT" || r.Dst.Not || !r.Dst.Prefix.IsSingleIP() || r.ProtoNot {
		return false
	}
	if r.Dst.Prefix.Addr() != azureWireServer {
		return strings.HasPrefix(r.Comment, "AKS managed")
	}
	return r.Proto == tcp && len(r.DstPorts) > 0 && !slices.ContainsFunc(r.DstPorts, func(p model.PortRange) bool {
		return p.First != p.Last || !slices.Contains(wireServerPorts, p.First)
	})
}

// netfilter reports whether a rule may have dropped it; before Linux 5.17 no
// reason is told.
func netfilter(d *model.Drop) bool {
	return d.Reason == "NETFILTER_DROP" || d.Reason == "" && (d.Location == "nf_hook_slow" || d.Location == nftLocation)
}
