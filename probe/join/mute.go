package join

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// ending is what becomes of packets at a far end that sends nothing back.
type ending int

const (
	// vacant: no pod has the address.
	vacant ending = iota
	// handed: they are handed to the pod that has it.
	handed
	// kept: they are for the node itself.
	kept
	// astray: they get lost on the node, nobody knows where.
	astray
)

// muteEnd is a far end that does not reply: those of one node whose packets end alike.
type muteEnd struct {
	far *node
	how ending
	// addr is the one that is vacant: each is a cause of its own. If one pod asks for
	// many, it is the pod: it looks for what is there.
	addr netip.Addr
}

// ending says where the packets of a talk end that the far end is sure not to have
// replied to: what came to it and what left it was counted, or nobody there has the
// address. It is false where that is not sure.
func (t *talk) ending() (muteEnd, bool) {
	n := t.far
	switch {
	case n.blind != "", n.Node[t.b] && t.asker.Node[t.a] && len(t.pair.Behind) == 0:
		// What nodes say to each other is not for pods.
		return muteEnd{}, false
	case t.there == nil:
		gone := !n.Pods[t.b] && !n.Node[t.b] && !n.Fresh[t.b] && n.PodsKnown && (inAny(n.Own, t.b) || n.rangeOf(t.b).IsValid()) &&
			overlaps(t.asker, n, t.pair.First, t.pair.Last)
		return muteEnd{n, vacant, t.b}, gone
	case n.Node[t.b]:
		return muteEnd{far: n, how: kept}, n.Sees(t.b, t.a)
	case n.Delivered[t.b] > 0:
		return muteEnd{far: n, how: handed}, n.Sees(t.b, t.a)
	}
	return muteEnd{far: n, how: astray}, n.Sees(t.b, t.a)
}

// maxVacant is how many vacant addresses of a node one pod may ask for before they are
// one cause, not one each.
const maxVacant = 3

// scans are the pods that ask for more vacant addresses of a node than maxVacant.
func (j *joint) scans() map[muteEnd]bool {
	asked := map[muteEnd][]netip.Addr{}
	for _, t := range j.talks {
		if m, ok := t.ending(); ok && m.how == vacant {
			m.addr = t.a
			asked[m] = append(asked[m], t.b)
		}
	}
	out := map[muteEnd]bool{}
	for m, list := range asked {
		out[m] = len(unique(list)) > maxVacant
	}
	return out
}

// vacated are the addresses that a node's pods ask for and that no pod has, with the
// node that says so.
func (j *joint) vacated(n *node) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for _, c := range j.causes {
		if c.mute == nil || c.mute.how != vacant {
			continue
		}
		for _, t := range c.talks {
			if t.asker == n {
				out[t.b] = t.far.name()
			}
		}
	}
	return out
}

// unanswered is the finding on packets to which nobody at the far node replied.
func (c *cause) unanswered() model.Finding {
	var dst, src []netip.Addr
	for _, t := range c.talks {
		src = append(src, t.a)
		if !t.leadsOn(c.node) {
			dst = append(dst, t.b)
		}
	}
	dst, src = unique(dst), unique(src)
	f := model.Finding{
		Code: diagnose.NoReply, Severity: model.Warning, Confidence: model.Likely, Nodes: []string{c.node.name()},
		LastHopAlive: model.Place{Link: c.node.Uplink.Link, Role: c.node.Uplink.Role, Direction: model.Ingress},
		Pods:         unique(slices.Concat(podsOf(c), src)),
		Verify:       "lasthop check --only " + string(diagnose.NoReply),
	}
	for _, a := range dst {
		f.Peers = append(f.Peers, netip.PrefixFrom(a, a.BitLen()))
	}
	c.observeTalks(&f)
	for _, t := range c.talks {
		if !t.leadsOn(c.node) {
			f.Packets += t.pair.Out.Packets
		}
	}
	switch c.mute.how {
	case vacant:
		f.LastHopAlive = c.talks[0].asker.Uplink
		c.observeVacant(&f)
		f.Evidence = append(f.Evidence,
			model.Evidence{Source: model.SourcePods, Text: fmt.Sprintf("no pod on this node holds %s", addrs(dst)), Node: c.node.name()})
		f.Title = fmt.Sprintf("%s has no pod with %s", c.node.name(), addrs(dst))
		f.Why = fmt.Sprintf("Pods of other nodes ask %s, which is in the pod range of %s, and no pod there has it: it is gone, or was never there.", addrs(dst), c.node.name())
		f.Alternatives = []string{"the packets are lost before they arrive: of an address that no pod has, none is counted"}
		f.Fix = []string{fmt.Sprintf("find out who still uses %s: a stale endpoint, a cached name, a fixed address in a configuration", addrs(dst))}
	case handed:
		f.Code, f.Verify = diagnose.PodNotReplying, "lasthop check --only "+string(diagnose.PodNotReplying)
		f.LastHopAlive = model.Place{Role: model.RolePodLink, Direction: model.Egress}
		f.Title = fmt.Sprintf("packets arrive at %s on %s, and nobody replies", addrs(dst), c.node.name())
		f.Why = "What is asked leaves the other node, arrives at this one and is handed over there; no reply leaves. The network between the nodes is not at fault."
		f.Alternatives = []string{"nothing listens and a firewall of the pod hides that", "the process hangs", "the pod's own firewall or routes lose the replies"}
		f.Fix = []string{fmt.Sprintf("look inside the pod on %s: its listeners, its firewall, its route to %s", c.node.name(), addrs(src))}
	case kept:
		f.Title = fmt.Sprintf("packets arrive at %s on %s, and nobody replies", addrs(dst), c.node.name())
		f.Why = "What is asked leaves the other node and arrives at this one, whose own address that is; no reply leaves. The network between the nodes is not at fault."
		f.Alternatives = []string{"nothing listens and a firewall of the node hides that", "the process hangs", "the node sends them on to another, which does not reply"}
		f.Fix = []string{fmt.Sprintf("on %s: ss -lntup; its firewall, its route to %s, and where the port leads: conntrack -L -d %s", c.node.name(), addrs(src), dst[0])}
	default:
		f.Title = fmt.Sprintf("packets for %s arrive at %s and do not reach the pod", addrs(dst), c.node.name())
		f.Why = fmt.Sprintf("They come in at %s of %s, and none is handed to the pod. The network between the nodes is not at fault; no finding of that node says what loses them.", c.node.Uplink.Link, c.node.name())
		f.Fix = []string{fmt.Sprintf("on %s: lasthop explain %s --to %s", c.node.name(), dst[0], src[0])}
	}
	return f
}

// observeVacant adds what each node sent for addresses that no pod has.
func (c *cause) observeVacant(f *model.Finding) {
	var askers []*node
	sent, dst := map[*node]uint64{}, map[*node][]netip.Addr{}
	for _, t := range c.talks {
		askers = append(askers, t.asker)
		sent[t.asker] += t.pair.Out.Packets
		dst[t.asker] = append(dst[t.asker], t.b)
	}
	for _, n := range union(askers, nil) {
		f.Evidence = append(f.Evidence, seen(n, "%s egress: %s for %s, without a reply", n.Uplink.Link, packets(sent[n]), addrs(unique(dst[n]))))
	}
}

func podsOf(c *cause) []netip.Addr {
	var out []netip.Addr
	for _, t := range c.talks {
		if t.far.Pods[t.b] {
			out = append(out, t.b)
		}
		out = append(out, t.pair.Behind...)
	}
	return out
}
