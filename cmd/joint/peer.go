package joint

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// mostDrawn is how many nodes' paths are drawn, since the state of all is held in memory for it.
const mostDrawn = 50

// mostPaths is how many findings have a path drawn.
const mostPaths = 20

// Paths are those that show findings of several nodes.
func (r *Recordings) Paths(nodes []model.NodeSeen, findings []model.Finding) []*model.Path {
	var ends []join.End
	for _, n := range nodes {
		if s := r.Snapshots[n.Recording]; s != nil {
			ends = append(ends, join.End{Name: n.Name, Snapshot: s})
		}
	}
	var out []*model.Path
	for _, f := range findings[:min(len(findings), mostPaths)] {
		var p *model.Path
		home := model.First(ends, func(e *join.End) bool {
			return len(f.Pods) > 0 && slices.Contains(f.Nodes, e.Name) && e.Has(f.Pods[0])
		})
		if home != nil {
			e, _ := ChoosePeer(home.Snapshot, f.Pods, []model.Finding{f})
			traced := join.Follow(ends, findings, e)
			p = &traced
		}
		out = append(out, p)
	}
	return out
}

// Outside4 and outside6 stand for any address outside the cluster. They are
// reserved for documentation, so no host has them.
var (
	Outside4 = netip.MustParseAddr("192.0.2.1")
	outside6 = netip.MustParseAddr("2001:db8::1")
)

// ChoosePeer is the destination if none was given, and how it was chosen.
func ChoosePeer(s *model.Snapshot, pod []netip.Addr, findings []model.Finding) (path.Ends, string) {
	peers := Busiest(s, pod)
	for _, f := range findings {
		about := func(e path.Ends) (path.Ends, string) {
			return e, fmt.Sprintf("to %s, the peer of the finding %s; --to selects another", e.To, f.Code)
		}
		for _, prefix := range f.Peers {
			if i := slices.IndexFunc(peers, func(p path.Ends) bool { return prefix.Contains(p.To) }); i >= 0 {
				return about(peers[i])
			}
		}
		met := peers
		if len(f.Peers) == 0 {
			if e, ok := sameFamily(pod, loss.NewClassifier(s).Peer(s, pod[0])); ok {
				met = slices.Insert(slices.Clone(peers), 0, e)
			}
		}
		if p, ok := metBy(s, f, met); ok {
			return p, fmt.Sprintf("to %s, whose path the finding %s is on; --to selects another", p.To, f.Code)
		}
		for _, prefix := range f.Peers {
			if e, ok := sameFamily(pod, prefix.Addr()); ok && prefix.IsSingleIP() {
				return about(e)
			}
		}
	}
	switch {
	case len(peers) > 0 && len(counted(s, pod)) == 0:
		return peers[0], fmt.Sprintf("no packet of the pod in the window: to %s, with which it has the most flows, possibly old ones; "+
			"--to selects another", peers[0].To)
	case len(peers) > 0:
		return peers[0], fmt.Sprintf("to %s, the pod's busiest peer in the window; --to selects another", peers[0].To)
	}
	e := path.Ends{Pod: pod[0], To: model.Either(pod[0].Is6(), outside6, Outside4)}
	return e, fmt.Sprintf("no packet of the pod was seen: to %s, as an example of an address outside the cluster; --to "+
		"selects another", e.To)
}

// metBy is the busiest peer on whose path a finding has its place. The finding may
// be about a next hop, which is no packet's destination.
func metBy(s *model.Snapshot, f model.Finding, peers []path.Ends) (path.Ends, bool) {
	const tried = 8
	for _, p := range peers[:min(tried, len(peers))] {
		traced := path.Trace(s, []model.Finding{f}, p)
		if slices.ContainsFunc(slices.Concat(traced.Forward, traced.Return), func(h model.PathHop) bool { return h.Finding == f.Code }) {
			return p, true
		}
	}
	return path.Ends{}, false
}

func sameFamily(pod []netip.Addr, to netip.Addr) (path.Ends, bool) {
	a := model.Find(pod, func(a netip.Addr) bool { return a.Is4() == to.Is4() && a != to })
	return path.Ends{Pod: a, To: to}, a.IsValid()
}

// Busiest are the ends of the packets that the pod itself sent, those with the
// most packets first; if none was counted, those with the most flows.
func Busiest(s *model.Snapshot, pod []netip.Addr) []path.Ends {
	count := counted(s, pod)
	if len(count) == 0 {
		for _, f := range s.Flows {
			if slices.Contains(pod, f.Original.Src) {
				count[path.Ends{Pod: f.Original.Src, To: f.Original.Dst}]++
			}
		}
	}
	return slices.SortedFunc(maps.Keys(count), func(a, b path.Ends) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), a.To.Compare(b.To), a.Pod.Compare(b.Pod))
	})
}

// counted is how many packets the pod itself sent in the window, by their ends.
func counted(s *model.Snapshot, pod []netip.Addr) map[path.Ends]uint64 {
	count, links := map[path.Ends]uint64{}, map[string]bool{}
	for _, p := range slices.Concat(s.Pods, s.PastPods) {
		if slices.ContainsFunc(pod, p.Has) {
			links[p.Link] = true
		}
	}
	for _, p := range s.Traffic.Pairs {
		if links[p.Link] && p.Direction == model.Ingress && slices.Contains(pod, p.Src) && model.Unicast(p.Dst) {
			count[path.Ends{Pod: p.Src, To: p.Dst}] += p.Packets
		}
	}
	return count
}
