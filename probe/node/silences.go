package node

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// SilencesPeers are the requests of a finding's pods to its peers, and those to its pods
// from its peers or, where it has none, from anywhere.
func SilencesPeers(f *model.Finding) func(netip.Addr, netip.Prefix) bool {
	pods, peers, alone := SetOf(f.Pods), len(f.Peers), map[netip.Addr]bool{}
	var ranges []netip.Prefix
	for _, p := range f.Peers {
		if p.IsSingleIP() {
			alone[p.Addr()] = true
		} else {
			ranges = append(ranges, p)
		}
	}
	peer := func(p netip.Prefix) bool {
		return p.IsSingleIP() && alone[p.Addr()] ||
			slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
	}
	return func(asker netip.Addr, asked netip.Prefix) bool {
		if (len(pods) == 0 || !asker.IsValid() || pods[asker]) && peer(asked) {
			return true
		}
		return asked.IsSingleIP() && pods[asked.Addr()] && (peers == 0 || !asker.IsValid() || peer(model.Host(asker)))
	}
}

// SilencesAll are all requests of pods, and to them.
func SilencesAll(list []netip.Addr) func(netip.Addr, netip.Prefix) bool {
	pods := SetOf(list)
	return func(asker netip.Addr, asked netip.Prefix) bool {
		return pods[asker] || asked.IsSingleIP() && pods[asked.Addr()]
	}
}

// MinAsks is how many requests must stay without a reply: the first packets
// of a connection get lost now and then, and are sent again.
const MinAsks = 3

// AllSilent reports whether no address beyond the uplinks replies, but for these addresses
// neither: what is silent may then have one cause.
func (v *Index) AllSilent(remotes ...[]netip.Addr) bool {
	all := slices.Concat(remotes...)
	return len(Answering(v, func(a netip.Addr) bool { return slices.Contains(all, a) })) == 0 &&
		!slices.ContainsFunc(all, func(a netip.Addr) bool { return v.EchoAnswered(a.Is6()) })
}

// findRepliedTranslated are the pairs of which the peer replies to the same pod's flows that are
// translated: then it is not what is silent. The peer may be a service by whose address the pod's newer flows are replied to.
func (v *Index) findRepliedTranslated() map[Pair]bool {
	out := map[Pair]bool{}
	for f := range model.Each(v.Flows) {
		if f.Replied && !f.Start.IsZero() && f.Reply.Dst != f.Original.Src {
			out[Pair{f.Original.Src, f.Reply.Src}] = true
		}
		if st := v.FlowStates[Pair{f.Original.Src, f.Original.Dst}]; st != nil && f.Replied && !f.Start.IsZero() && f.Reply.Src != f.Original.Dst &&
			!slices.ContainsFunc(st.Silent, func(o *model.Flow) bool { return !o.Start.IsZero() }) {
			out[Pair{f.Original.Src, f.Original.Dst}] = true
		}
	}
	return out
}

// Lasted reports whether requests left over some time, as far as that is known:
// a destination that was just taken away is asked for a moment more.
func Lasted(p *model.Peer) bool { return p.LastOut.IsZero() || model.Lasted(p.FirstOut, p.LastOut) }

// DroppingQueue is the queue of a link where it dropped packets; nil where it did not.
func (v *Index) DroppingQueue(link string) *model.Queue {
	return model.First(v.Queues, func(q *model.Queue) bool { return q.Link == link && q.DropsDelta > 0 })
}
