// Package agree holds what is found of a node against the paths of its packets. Only tests import it.
package agree

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// few is how many packets a pod may send somewhere without a finding on what becomes of them.
const few = 3

// question is a path that is asked for.
type question struct {
	// sent are the packets that the pod sent.
	sent uint64
	// codes are the findings that account for losses on it.
	codes []model.Code
}

// Disagreements are the paths on which packets end and nothing was found, and those on which
// a finding accounts for losses and has no place. causes are those of the snapshot's drops.
func Disagreements(s *model.Snapshot, findings []model.Finding, causes []model.DropCause) []string {
	var out []string
	asked := questions(s, findings, causes)
	for _, e := range slices.SortedFunc(maps.Keys(asked), func(a, b path.Ends) int {
		return slices.CompareFunc([]netip.Addr{a.Pod, a.To}, []netip.Addr{b.Pod, b.To}, netip.Addr.Compare)
	}) {
		q, p := asked[e], path.Trace(s, findings, e)
		hops := slices.Concat(p.Forward, p.Return)
		dead := p.Dead()
		if dead != nil && dead.Finding == "" && q.sent >= few {
			out = append(out, fmt.Sprintf("%s to %s: the path ends at hop %d, %s (%s), and no finding has its place there", e.Pod, e.To, dead.N, dead.Name(), dead.Decision))
		}
		if dead != nil && dead.In.Known && dead.Lost.Known && dead.Lost.N < dead.In.N/2 && informs(findings, dead.Finding) {
			out = append(out, fmt.Sprintf("%s to %s: the path ends at hop %d, %s, where %s is for information and %d of %d packets are lost", e.Pod, e.To, dead.N, dead.Name(), dead.Finding, dead.Lost.N, dead.In.N))
		}
		for _, c := range q.codes {
			named := slices.ContainsFunc(hops, func(h model.PathHop) bool { return h.Finding == c })
			if !named && (dead == nil || dead.Finding == "") {
				out = append(out, fmt.Sprintf("%s to %s: %s accounts for losses, and has no place on the path: %+v", e.Pod, e.To, c, hops))
			}
		}
	}
	return out
}

func informs(findings []model.Finding, code model.Code) bool {
	return code != "" && !slices.ContainsFunc(findings, func(f model.Finding) bool { return f.Code == code && f.Severity != model.Info })
}

// questions are the paths of packets that were seen, and of those that findings are about.
func questions(s *model.Snapshot, findings []model.Finding, causes []model.DropCause) map[path.Ends]*question {
	pods, nodes := map[netip.Addr]*model.Pod{}, map[netip.Addr]bool{}
	for p := range model.Each(s.Pods) {
		for _, a := range p.Addresses {
			pods[a.Addr()] = p
		}
	}
	for l := range model.Each(s.Links) {
		for _, a := range l.Addresses {
			nodes[a.Addr()] = true
		}
	}
	out := map[path.Ends]*question{}
	ask := func(pod, to netip.Addr) *question {
		e := path.Ends{Pod: pod, To: to}
		if pods[pod] == nil || pod == to || !model.Unicast(to) {
			return &question{}
		}
		return model.GetOrInsert(out, e)
	}
	for c := range model.Each(s.Traffic.Pairs) {
		if p := pods[c.Src]; p != nil && c.Direction == model.Ingress && c.IfIndex == p.LinkIndex {
			ask(c.Src, c.Dst).sent += c.Packets
		}
	}
	for p := range model.Each(s.Traffic.Peers) {
		if p.Remote.IsValid() && len(s.Traffic.Pairs) == 0 {
			ask(p.Local, p.Remote).sent += p.Out.Packets
		}
	}
	for f := range model.Each(findings) {
		if f.Severity == model.Info || f.Passes || f.Packets == 0 {
			continue
		}
		counted := false
		for i := range causes {
			// Of the node are errors about other packets.
			d := &s.Traffic.Drops[i]
			if causes[i].Code != f.Code || d.Range.IsValid() || nodes[d.Src] {
				continue
			}
			counted = true
			if d.Packets < few {
				continue // late packets of connections that ended
			}
			q := ask(d.Dst, d.Src)
			if pods[d.Src] != nil {
				q = ask(d.Src, sentTo(s, d))
			}
			if (slices.Contains(f.Pods, d.Src) || slices.Contains(f.Pods, d.Dst)) && !slices.Contains(q.codes, f.Code) {
				q.codes = append(q.codes, f.Code)
			}
		}
		for _, pod := range f.Pods {
			for _, peer := range f.Peers {
				if q := ask(pod, peer.Addr()); !counted && peer.IsSingleIP() && q.sent > 0 {
					q.codes = append(q.codes, f.Code)
				}
			}
		}
	}
	return out
}

// sentTo is where the pod sent a dropped packet, which may be translated since.
func sentTo(s *model.Snapshot, d *model.Drop) netip.Addr {
	for f := range model.Each(s.Flows) {
		if f.Original.Src == d.Src && f.Reply.Src == d.Dst && f.Proto == d.Proto {
			return f.Original.Dst
		}
	}
	return d.Dst
}
