package join

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	faults "github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// ending is what becomes of packets at a far end that sends nothing back.
type ending int

const (
	// vacant: no pod has the address.
	vacant ending = iota
	// delivered: they are handed to the pod that has it.
	delivered
	// forNode: they are for the node itself.
	forNode
	// lostOnNode: they get lost on the node, nobody knows where.
	lostOnNode
)

// silentReceiver is a far end that does not reply: those of one node whose packets end alike.
type silentReceiver struct {
	far *node
	how ending
	// addr is the one that is vacant: each is a cause of its own. If one pod asks for
	// many, it is the pod: it looks for what is there.
	addr netip.Addr
}

// ending says where the packets of a conversation end that the far end is sure not to have replied to: what
// came to it and what left it was counted, or nobody there has the address. It is false where that is not sure.
func (t *conversation) ending() (silentReceiver, bool) {
	n := t.far
	switch {
	case n.blind != "", n.Node[t.b] && t.asker.Node[t.a] && len(t.pair.Behind) == 0:
		// What nodes say to each other is not for pods.
		return silentReceiver{}, false
	case t.forward == nil:
		gone := !n.Pods[t.b] && !n.Node[t.b] && !n.Fresh[t.b] && n.PodsKnown &&
			(model.InAny(n.Own, t.b) || n.rangeOf(t.b).IsValid()) && overlaps(t.asker, n, t.pair.First, t.pair.Last)
		return silentReceiver{n, vacant, t.b}, gone
	case n.Node[t.b]:
		return silentReceiver{far: n, how: forNode}, n.Sees(t.b, t.a)
	case n.Delivered[t.b] > 0:
		return silentReceiver{far: n, how: delivered}, n.Sees(t.b, t.a)
	}
	return silentReceiver{far: n, how: lostOnNode}, n.Sees(t.b, t.a)
}

// maxVacant is how many vacant addresses of a node one pod may ask for before they are one cause, not one each.
const maxVacant = 3

// scans are the vacant addresses of a node that a pod asks for: its conversations have each once.
func (j *joint) scans() map[silentReceiver]int {
	asked := map[silentReceiver]int{}
	for _, t := range j.conversations {
		if m, ok := t.ending(); ok && m.how == vacant {
			m.addr = t.a
			asked[m]++
		}
	}
	return asked
}

// unanswered is the finding on packets to which nobody at the far node replied.
func (c *cause) unanswered() model.Finding {
	var dst, src []netip.Addr
	var packets uint64
	for _, t := range c.conversations {
		src = append(src, t.a)
		if !t.leadsOn(c.node) {
			dst, packets = append(dst, t.b), packets+t.pair.Out.Packets
		}
	}
	dst, src = model.Unique(dst), model.Unique(src)
	up := c.node.Uplink
	f := faults.Fault{Page: "NoReply-arrived", Facts: words.Facts{"dst": dst, "src": src, "node": c.node}}
	f.Finding = model.Finding{Code: "NoReply", Nodes: []string{c.node.String()},
		LastHopAlive: model.Place{Link: up.Link, Role: up.Role, Direction: model.Ingress},
		Pods:         model.Unique(slices.Concat(c.pods(), src)), Peers: model.Hosts(dst),
	}
	f.Packets, f.Facts["talks"] = packets, c.observeTalks(&f.Finding)
	switch c.silent.how {
	case vacant:
		f.LastHopAlive, f.Page, f.Facts["asked"] = c.conversations[0].asker.Uplink, "NoReply-vacant", c.vainlyAsked()
	case delivered:
		f.Code, f.Page, f.LastHopAlive = "PodNotReplying", "PodNotReplying-joined",
			model.Place{Role: model.RolePodLink, Direction: model.Egress}
	case forNode:
		f.Page = "NoReply-kept"
	}
	return diagnose.Joined(f)
}

// vainlyAsked is what each node sent in vain.
func (c *cause) vainlyAsked() []sent {
	by := map[*node]*sent{}
	for _, t := range c.conversations {
		x := model.GetOrInsert(by, t.asker)
		x.From, x.Link, x.Packets, x.Dst = t.asker, t.asker.Uplink.Link, x.Packets+t.pair.Out.Packets, append(x.Dst, t.b)
	}
	var out []sent
	for _, n := range sortedNodes(maps.Keys(by)) {
		by[n].Dst = model.Unique(by[n].Dst)
		out = append(out, *by[n])
	}
	return out
}
