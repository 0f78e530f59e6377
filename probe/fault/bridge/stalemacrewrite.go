package bridge

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// StaleMACRewrite reports ebtables rules that send pods' frames to a MAC that nobody has any more.
var StaleMACRewrite = fault.Kind{Code: "StaleMACRewrite", Severity: model.Critical, Find: staleMACRewrite,
	Rests: fault.Sources{model.SourceEbtables, model.SourceLinks}, Ends: fault.Hops{model.HopBridge},
	Objects: fault.Objects{"rule addr"}, Else: fault.Else{"StaleMACRewrite-unseen", "!owners"}}

func staleMACRewrite(v *fault.Input) {
	rewrites := MACRewrites(v.Snapshot)
	ruled := map[netip.Addr]bool{}
	for _, s := range staleRules(v.Index, model.TargetDNAT) {
		ruled[s.addr] = true
		v.Report(rewrittenByRule(v.Index, &s, rewrites))
	}
	// What writes one MAC to frames for several pods is one cause.
	var unseen node.Groups[model.MAC, []*model.MACRewrite]
	for r := range model.Each(rewrites) {
		if !ruled[r.Addr] && toNobody(v.Index, r) {
			ruled[r.Addr] = true
			node.Put(&unseen, r.To.MAC, r)
		}
	}
	for _, list := range unseen.All() {
		v.Report(rewrittenUnseen(v.Index, *list))
	}
}

// rewrittenByRule is the finding on a rule, with the frames that it spoilt. They were last
// right where they came in before the rewrite, or at the port that the rule names.
func rewrittenByRule(v *node.Index, s *stale, rewrites []model.MACRewrite) fault.Fault {
	f := fault.Fault{Facts: s.facts(v), Claims: node.SentToWrongMAC(node.Binding{Addr: s.addr, MAC: s.rule.MAC})}
	from := model.Find(v.Peers, func(p model.Peer) bool { return p.Local == s.addr })
	f.Undoes, f.Packet = s.rule, path.Packet{Src: from.Remote, Dst: s.addr}
	f.Pods, f.Packets = []netip.Addr{s.addr}, s.rule.Counter.Delta
	f.LastHopAlive = v.Place(cmp.Or(s.rule.In.Name, v.LinkName(v.AnUplink())), model.Ingress)
	if seen := mostRewritten(rewrites, s.addr, s.rule.MAC); seen != nil {
		f.Facts["rewrite"], f.Packets = seen, max(f.Packets, seen.Packets)
		f.LastHopAlive = v.Place(seen.From.Link, seen.From.Direction)
	}
	return f
}

// toNobody reports whether frames for a running pod got a destination MAC that nobody has: no pod, no link and no next
// hop, which the routes and neighbour entries tell.
func toNobody(v *node.Index, r *model.MACRewrite) bool {
	if r.Field != model.DestinationMAC || len(v.PodMACs(r.Addr)) == 0 || r.To.MAC.IsMulticast() ||
		r.Packets < node.MinDrops || v.Tunnel[r.To.MAC] || !v.Has(model.SourceNeighbors, model.SourceRoutes) {
		return false
	}
	if _, known := v.MACNames[r.To.MAC]; known {
		return false
	}
	// The node's neighbour entry gives its own packets that MAC, and with
	// br_netfilter also what it takes back from a masqueraded flow.
	if slices.ContainsFunc(v.Neighbors,
		func(n model.Neighbor) bool { return n.Addr == r.Addr && n.MAC == r.To.MAC && !n.Proxy }) {
		return false
	}
	// Where frames come in with that MAC already, a stale answer to ARP is the simpler cause.
	return !slices.ContainsFunc(v.MACPairs[r.Addr], func(p *model.MACPair) bool {
		return p.Direction == model.Ingress && p.Side == model.AsDestination && p.Dst == r.To.MAC
	})
}

// rewrittenUnseen is the finding where the frames were seen to change and no rule about one address alone is known.
func rewrittenUnseen(v *node.Index, list []*model.MACRewrite) fault.Fault {
	r, f := list[0], fault.Fault{Page: "StaleMACRewrite-unseen"}
	var owners []model.MAC
	for _, x := range list {
		f.Pods, f.Packets, owners = append(f.Pods, x.Addr), f.Packets+x.Packets, append(owners, v.PodMACs(x.Addr)...)
	}
	f.LastHopAlive, f.Claims = v.Place(r.From.Link, r.From.Direction), func(d *model.Drop) bool {
		return slices.Contains(f.Pods, d.Dst) && d.DstMAC == r.To.MAC
	}
	rules := model.Chosen(v.FrameRules, func(x *model.FrameRule) bool {
		return x.Target == model.TargetDNAT && x.MAC == r.To.MAC
	})
	// Asking for a legacy table that is not there makes the kernel load it: so it is asked
	// for only where it is there, which the command itself finds out where that was not read.
	f.Facts = words.Facts{
		"addrs": f.Pods, "rewrite": r, "rewrites": list[:min(len(list), node.MostEvidence)], "owners": owners,
		"holder": v.Owner(r.To.MAC), "rules": rules,
		"read": v.Has(model.SourceEbtables),
		"legacy": slices.ContainsFunc(v.Chains, func(c model.Chain) bool {
			return c.Backend == model.Legacy && c.Family == "bridge" && c.Table == "nat"
		}),
	}
	return f
}

// mostRewritten is the rewrite of an address to a MAC that most frames showed. A flood shows
// about the same frames on many ports: of these the first by name.
func mostRewritten(list []model.MACRewrite, addr netip.Addr, to model.MAC) *model.MACRewrite {
	var most *model.MACRewrite
	for r := range model.Each(list) {
		// The list begins with the most.
		if r.Addr == addr && r.Field == model.DestinationMAC && r.To.MAC == to &&
			(most == nil || 2*r.Packets > most.Packets && r.To.Link < most.To.Link) {
			most = r
		}
	}
	return most
}

// MACRewrites lists the frames whose Ethernet address changed between two ports of one bridge. A bridge never
// does that by itself, so it was bridge netfilter or a tc program. Frames that the node routed are left out:
// they passed the bridge's own device.
func MACRewrites(s *model.Snapshot) []model.MACRewrite {
	b := bridging{master: map[int]int{}, uplink: map[int]bool{}, lost: &s.Traffic.Lost}
	for _, l := range s.Links {
		b.master[l.Index], b.uplink[l.Index] = l.Master, l.Role == model.RoleUplink
	}
	out := b.rewrites(s.Traffic.MACs)
	slices.SortFunc(out, func(a, b model.MACRewrite) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.From.Link, b.From.Link), cmp.Compare(a.To.Link, b.To.Link),
			cmp.Compare(a.To.MAC.String(), b.To.MAC.String()))
	})
	return out
}

// bridging is which link is a port of which bridge.
type bridging struct {
	master map[int]int
	uplink map[int]bool
	// lost has the packets of an address whose pair of MACs was not recorded: that many may have carried any MAC anywhere.
	lost *model.Lost
}

// subject is the MAC of an address's frames that is held against itself: what is written
// over a source concerns the sender, over a destination the receiver.
type subject struct {
	addr  netip.Addr
	field model.MACField
}

// port is where one value of a MAC field was seen on frames of one address.
type port struct {
	model.MACPlace
	ifindex int
}

// frames counts what was seen at a port, by the frames' other Ethernet address.
type frames map[model.MAC]uint64

func (f frames) total() uint64 {
	var n uint64
	for _, packets := range f {
		n += packets
	}
	return n
}

func (b *bridging) rewrites(pairs []model.MACPair) []model.MACRewrite {
	bySubject := map[subject]map[port]frames{}
	for _, p := range pairs {
		of, mac, other := subject{p.Addr, model.SourceMAC}, p.Src, p.Dst
		if p.Side == model.AsDestination {
			of, mac, other = subject{p.Addr, model.DestinationMAC}, p.Dst, p.Src
		}
		at := port{model.MACPlace{MAC: mac, Link: p.Link, Direction: p.Direction}, p.IfIndex}
		if bySubject[of][at] == nil {
			model.Include(bySubject, of, at, frames{})
		}
		bySubject[of][at][other] += p.Packets
	}
	var out []model.MACRewrite
	for of, ports := range bySubject {
		lost := b.lost.Of(of.addr).MACs
		for from, in := range ports {
			if from.Direction != model.Ingress || b.master[from.ifindex] == 0 {
				continue
			}
			for to, left := range ports {
				if to.Direction != model.Egress || to.MAC == from.MAC || to.MAC.IsZero() ||
					b.master[to.ifindex] != b.master[from.ifindex] {
					continue
				}
				all, untouched := left.total(), b.untouched(ports, b.master[to.ifindex], to.MAC)+lost
				if n := min(b.common(in, left, of.field, to), all-min(all, untouched)); n > 0 {
					out = append(out, model.MACRewrite{
						Addr: of.addr, Field: of.field, Packets: n, From: from.MACPlace, To: to.MACPlace,
					})
				}
			}
		}
	}
	return out
}

// common is how many of the frames that came in can be among those that left: what gives a frame another
// destination lets its source be. Only what leaves by an uplink may have another source as well, the NIC's.
func (b *bridging) common(in, left frames, field model.MACField, to port) uint64 {
	if field == model.SourceMAC || b.uplink[to.ifindex] {
		return min(in.total(), left.total())
	}
	var n uint64
	for other, packets := range left {
		n += min(packets, in[other])
	}
	return n
}

// untouched is how many frames carried the MAC into the bridge, from the node
// itself or through a port: that many may leave with it and no rewrite.
func (b *bridging) untouched(ports map[port]frames, bridge int, mac model.MAC) uint64 {
	var n uint64
	for p, f := range ports {
		in := p.ifindex == bridge && p.Direction == model.Egress ||
			b.master[p.ifindex] == bridge && p.Direction == model.Ingress
		if p.MAC == mac && in {
			n += f.total()
		}
	}
	return n
}
