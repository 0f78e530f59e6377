// Package node indexes a snapshot, once and in time linear in it: who has an address, which links are uplinks, which
// ranges are other nodes' pods, which pairs and flows were answered, what a route or neighbor entry says. It knows no
// finding. It is pure: it reads no clock, no file and no kernel.
package node

import (
	"net/netip"
	"sync"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// What a node may lack that it had.
const (
	LacksRoute = "route"
	LacksRule  = "rule"
)

// Binding is an IP-to-MAC binding, as in an ARP cache.
type Binding struct {
	Addr netip.Addr
	MAC  model.MAC
}

// Beyond is what other nodes know, and this one does not see.
type Beyond struct {
	// Explains are the pairs whose silence has its cause there.
	Explains map[Pair]bool
	// Vacant are addresses of their pods' ranges that no pod has, with the node that says so.
	Vacant map[netip.Addr]string
	// Nodes are those of them that were recorded and that no file names.
	Nodes []model.ClusterNode
	// Lost are the pairs whose packets left here and did not arrive at the other end, which was recorded.
	Lost map[Pair]bool
	// Waits are the pairs of which the first, on another node, waits for replies, and whose packets this node dropped
	// though the second is no pod of its own.
	Waits map[Pair]bool
}

// Index is a snapshot with what the findings look up in it. It is built once, in
// time linear in the snapshot, and does not depend on any finding.
type Index struct {
	*path.State
	// Whole is the snapshot with what was counted of ranges of far ends; see single.
	Whole *model.Snapshot
	// Classifier says which drops were lost packets, and which are frees that are no loss.
	Classifier *loss.Classifier

	// MACNames says whose each Ethernet address is, in words.
	MACNames map[model.MAC]string
	// MACPairs are the frames seen of each address.
	MACPairs map[netip.Addr][]*model.MACPair
	// HopsOf are the packets counted of each address.
	HopsOf map[netip.Addr][]*model.HopCount
	// Peers are the pairs of addresses at the uplinks, summed over these.
	Peers []model.Peer
	// Scans are what pods asked of ranges without knowing who is there, swept the pairs of addresses of these.
	Scans []Scan
	Swept map[Pair]bool
	// Folded are the ranges of far ends that were not counted one by one, of which packets came.
	Folded []*model.Peer
	// NextHops are those of all routes.
	NextHops   map[netip.Addr]bool
	UplinkList []*model.Link
	// OnLink are the networks on these links, onLinkAlone the single addresses
	// that have a route of their own, as where nodes' addresses are /32 or /128.
	OnLink      []netip.Prefix
	onLinkAlone map[netip.Addr]bool
	// FlowStates holds an entry for every pair of peers, and for no other.
	FlowStates map[Pair]*FlowState
	// RepliesToNode are the addresses off the node that replied to its own address, where
	// programs may have put that in place of a pod's.
	RepliesToNode map[netip.Addr]bool
	// BridgedBy are the pods on bridges by their gateway; built when first asked for.
	BridgedBy map[netip.Addr][]*model.Pod
	// resolved are the results of resolutions; each is built when first asked for.
	resolved map[model.Direction]map[Question]Resolution
	// repliedPorts are the destination ports of datagrams that want a reply.
	repliedPorts map[uint16]bool
	Ranges       Ranges
	// Others is what other nodes know.
	Others Beyond

	// What is found when it is first asked for; the functions say what it is.
	Self           func() *model.ClusterNode
	OwnCIDRs       func() []netip.Prefix
	RemoteRanges   func() []*RemoteRange
	ClusterTables  func() []*model.RouteTable
	MisroutedPods  func() []MisroutedPod
	Dying, Stalled func() []*Dying
	TranslatedPods func() map[Pair][]netip.Addr
	Untracking     func() []*model.PacketRule
	// Limiting are the rules that let packets pass up to a limit, and did.
	Limiting          func() []*model.PacketRule
	WithoutReplies    func() map[netip.Addr]bool
	WrongHops         func() []*WrongHop
	Reflected         func() map[netip.Addr]bool
	RepliedTranslated func() map[Pair]bool
	NameServers       func() []*NameServer
	TunnelPairs       func() []TunnelPair
	// Proxied reports whether any rule translates to an endpoint of a service.
	Proxied func() bool
}

// New indexes a snapshot.
func New(whole *model.Snapshot) *Index {
	s := single(whole)
	s.Traffic = sentTraffic(s)
	v := &Index{
		State:       path.NewState(s),
		Whole:       whole,
		Classifier:  loss.NewClassifier(s),
		MACNames:    map[model.MAC]string{},
		Swept:       map[Pair]bool{},
		resolved:    map[model.Direction]map[Question]Resolution{},
		NextHops:    map[netip.Addr]bool{},
		onLinkAlone: map[netip.Addr]bool{},
	}
	v.Self, v.OwnCIDRs = sync.OnceValue(v.findSelf), sync.OnceValue(v.findOwnCIDRs)
	v.RemoteRanges, v.ClusterTables = sync.OnceValue(v.findRanges), sync.OnceValue(v.findTables)
	v.MisroutedPods, v.WrongHops = sync.OnceValue(v.findMisroutedPods), sync.OnceValue(v.findWrongHops)
	v.Reflected, v.RepliedTranslated = sync.OnceValue(v.findReflected), sync.OnceValue(v.findRepliedTranslated)
	v.TranslatedPods = sync.OnceValue(v.findTranslated)
	v.Dying, v.Stalled = sync.OnceValue(v.findDying), sync.OnceValue(v.findStalled)
	v.Limiting = sync.OnceValue(func() []*model.PacketRule {
		return model.Chosen(s.PacketRules, func(r *model.PacketRule) bool {
			return (r.Target == "ACCEPT" || r.Target == "RETURN") && r.Counter.Delta > 0 && r.Limits()
		})
	})
	v.Untracking = sync.OnceValue(func() []*model.PacketRule { return model.Chosen(s.PacketRules, (*model.PacketRule).Untracks) })
	v.WithoutReplies, v.NameServers = sync.OnceValue(v.findWithoutReplies), sync.OnceValue(v.findNameServers)
	v.TunnelPairs = sync.OnceValue(v.findTunnelPairs)
	v.Proxied = sync.OnceValue(func() bool {
		return model.First(s.PacketRules, func(r *model.PacketRule) bool { return r.Keeper() == "kube-proxy" && r.Target == "DNAT" }) != nil ||
			model.First(s.Chains, func(c *model.Chain) bool { return c.Table == "kube-proxy" }) != nil
	})
	for l := range model.Each(s.Links) {
		if !l.MAC.IsZero() {
			v.MACNames[l.MAC] = l.Name
		}
	}
	for p := range model.Each(s.Pods) {
		if !p.MAC.IsZero() {
			v.MACNames[p.MAC] = words.PodName(p)
		}
	}
	for p := range model.Each(s.PastPods) {
		if _, living := v.MACNames[p.MAC]; !living && !p.MAC.IsZero() {
			v.MACNames[p.MAC] = "a pod that went away"
		}
	}
	v.MACPairs = model.Grouped(s.Traffic.MACs, func(p *model.MACPair) netip.Addr { return p.Addr })
	v.HopsOf = model.Grouped(s.Traffic.Hops, func(h *model.HopCount) netip.Addr { return h.Addr })
	v.Folded = model.Chosen(whole.Traffic.Peers, func(p *model.Peer) bool { return p.Range.IsValid() && p.In.Packets > 0 })
	indexUplinks(v)
	v.Peers = append(model.MergePeers(s.Traffic.Peers, v.IsUplink), v.tunnelPeers()...)
	v.indexFlows()
	v.indexReplies()
	v.Ranges = newRanges(v)
	v.findScans()
	return v
}

// indexUplinks finds the gateways of the default routes and the prefixes that
// are on link at the uplinks: the node's own subnet.
func indexUplinks(v *Index) {
	v.UplinkList = model.Chosen(v.Links, func(l *model.Link) bool { return l.Role == model.RoleUplink })
	for r := range model.Each(v.Routes) {
		v.NextHops[r.Gateway] = true
		for h := range model.Each(r.NextHops) {
			v.NextHops[h.Gateway] = true
		}
		if v.Outer[r.IfIndex] && r.Type == "unicast" && !r.Gateway.IsValid() && r.Dst.Bits() > 0 {
			if r.Dst.IsSingleIP() {
				v.onLinkAlone[r.Dst.Addr()] = true
			} else {
				v.OnLink = append(v.OnLink, r.Dst)
			}
		}
	}
	for _, n := range v.Gateways {
		if _, known := v.MACNames[n.MAC]; !known {
			v.MACNames[n.MAC] = "the gateway " + n.Addr.String()
		}
	}
}
