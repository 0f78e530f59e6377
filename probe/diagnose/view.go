package diagnose

import (
	"net/netip"
	"sync"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// view is what one kind of finding is judged by: the indexed snapshot, and which losses
// the kinds before it have claimed.
type view struct {
	*index
	claims
	// proposed are the findings that the kind at work has reported.
	proposed []finding
}

// index is a snapshot with what the findings look up in it. It is built once, in
// time linear in the snapshot, and does not depend on any finding.
type index struct {
	*path.State
	// whole is the snapshot with what was counted of ranges of far ends; see single.
	whole *model.Snapshot
	// drops says which drops were lost packets, and which were harmless frees.
	drops *loss.Classifier

	// past are addresses of pods that went away during the window: the classifier's.
	past map[netip.Addr]bool
	// nodeAddrs are the node's own addresses.
	nodeAddrs map[netip.Addr]bool
	// macs says whose each Ethernet address is, in words.
	macs   map[model.MAC]string
	byName map[string]*model.Link
	// macPairs are the frames seen of each address.
	macPairs map[netip.Addr][]*model.MACPair
	// hops are the packets counted of each address.
	hops map[netip.Addr][]*model.HopCount
	// peers are the pairs of addresses at the uplinks, summed over these.
	peers []model.Peer
	// scans are what pods asked of ranges without knowing who is there, swept the pairs of addresses of these.
	scans []scan
	swept map[pair]bool
	// folded are the ranges of far ends that were not counted one by one, of which packets came.
	folded []*model.Peer
	// nextHops are those of all routes.
	nextHops map[netip.Addr]bool
	uplinks  []*model.Link
	// onLink are the networks on these links, onLinkAlone the single addresses
	// that have a route of their own, as where nodes' addresses are /32 or /128.
	onLink      []netip.Prefix
	onLinkAlone map[netip.Addr]bool
	// flows holds an entry for every pair of peers, and for no other.
	flows map[pair]*flowState
	// repliesToNode are the addresses off the node that replied to its own address, where
	// programs may have put that in place of a pod's.
	repliesToNode map[netip.Addr]bool
	// bridgedBy are the pods on bridges by their gateway; built when first asked for.
	bridgedBy map[netip.Addr][]*model.Pod
	// resolved are the results of resolutions; each is built when first asked for.
	resolved map[model.Direction]map[question]resolution
	// repliedPorts are the destination ports of datagrams that want a reply.
	repliedPorts map[uint16]bool
	ranges       ranges
	// others is what other nodes know.
	others Beyond

	// What is found when it is first asked for; the functions say what it is.
	self              func() *model.ClusterNode
	ownCIDRs          func() []netip.Prefix
	remoteRanges      func() []*remoteRange
	clusterTables     func() []*model.RouteTable
	misroutedPods     func() []misroutedPod
	unrepliedFlows    func() map[pair]*unreplied
	translatedPods    func() map[pair][]netip.Addr
	untracking        func() []*model.PacketRule
	withoutReplies    func() map[netip.Addr]bool
	wrongHops         func() []*wrongHop
	reflected         func() map[netip.Addr]bool
	repliedTranslated func() map[pair]bool
	nameServers       func() []*nameServer
}

func newView(s *model.Snapshot) *view {
	return &view{claims: claims{byDrop: map[*model.Drop]claimant{}}, index: newIndex(s)}
}

func newIndex(whole *model.Snapshot) *index {
	s := single(whole)
	s.Traffic = sentTraffic(s)
	v := &index{
		State:       path.NewState(s),
		whole:       whole,
		drops:       loss.NewClassifier(s),
		nodeAddrs:   map[netip.Addr]bool{},
		macs:        map[model.MAC]string{},
		byName:      map[string]*model.Link{},
		macPairs:    map[netip.Addr][]*model.MACPair{},
		hops:        map[netip.Addr][]*model.HopCount{},
		swept:       map[pair]bool{},
		resolved:    map[model.Direction]map[question]resolution{},
		nextHops:    map[netip.Addr]bool{},
		onLinkAlone: map[netip.Addr]bool{},
	}
	v.past = v.drops.Past
	v.self, v.ownCIDRs = sync.OnceValue(v.findSelf), sync.OnceValue(v.findOwnCIDRs)
	v.remoteRanges, v.clusterTables = sync.OnceValue(v.findRanges), sync.OnceValue(v.findTables)
	v.misroutedPods, v.wrongHops = sync.OnceValue(v.findMisroutedPods), sync.OnceValue(v.findWrongHops)
	v.reflected, v.repliedTranslated = sync.OnceValue(v.findReflected), sync.OnceValue(v.findRepliedTranslated)
	v.unrepliedFlows, v.translatedPods = sync.OnceValue(v.findUnreplied), sync.OnceValue(v.findTranslated)
	v.untracking = sync.OnceValue(func() []*model.PacketRule { return model.Chosen(s.PacketRules, (*model.PacketRule).Untracks) })
	v.withoutReplies, v.nameServers = sync.OnceValue(v.findWithoutReplies), sync.OnceValue(v.findNameServers)
	for l := range model.Each(s.Links) {
		v.byName[l.Name] = l
		if !l.MAC.IsZero() {
			v.macs[l.MAC] = l.Name
		}
	}
	for a := range v.Own {
		v.nodeAddrs[a] = true
	}
	for p := range model.Each(s.Pods) {
		if !p.MAC.IsZero() {
			v.macs[p.MAC] = words.PodName(p)
		}
	}
	for p := range model.Each(s.PastPods) {
		if _, living := v.macs[p.MAC]; !living && !p.MAC.IsZero() {
			v.macs[p.MAC] = "a pod that went away"
		}
	}
	for p := range model.Each(s.Traffic.MACs) {
		v.macPairs[p.Addr] = append(v.macPairs[p.Addr], p)
	}
	for h := range model.Each(s.Traffic.Hops) {
		v.hops[h.Addr] = append(v.hops[h.Addr], h)
	}
	v.folded = model.Chosen(whole.Traffic.Peers, func(p *model.Peer) bool { return p.Range.IsValid() && p.In.Packets > 0 })
	indexUplinks(v)
	v.peers = append(model.MergePeers(s.Traffic.Peers, v.isUplink), v.tunnelPeers()...)
	v.indexFlows()
	v.indexReplies()
	v.ranges = newRanges(v)
	v.findScans()
	return v
}

// indexUplinks finds the gateways of the default routes and the prefixes that
// are on link at the uplinks: the node's own subnet.
func indexUplinks(v *index) {
	v.uplinks = model.Chosen(v.Links, func(l *model.Link) bool { return l.Role == model.RoleUplink })
	for r := range model.Each(v.Routes) {
		v.nextHops[r.Gateway] = true
		for h := range model.Each(r.NextHops) {
			v.nextHops[h.Gateway] = true
		}
		if v.Outer[r.IfIndex] && r.Type == "unicast" && !r.Gateway.IsValid() && r.Dst.Bits() > 0 {
			if r.Dst.IsSingleIP() {
				v.onLinkAlone[r.Dst.Addr()] = true
			} else {
				v.onLink = append(v.onLink, r.Dst)
			}
		}
	}
	for _, n := range v.Gateways {
		if _, known := v.macs[n.MAC]; !known {
			v.macs[n.MAC] = "the gateway " + n.Addr.String()
		}
	}
}
