package path

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Fate is what the tables do with the packets of two ends, and with the replies to them.
type Fate struct {
	// Dead: they end at a hop of this kind and link, for this reason. Reply: replies do. Src and Dst are the addresses
	// there, In is the link by which the packet came, if there was one.
	Dead, Reply  bool
	Kind         model.HopKind
	Link, Reason string
	Src, Dst     netip.Addr
	In           *model.Link
	// Netns is the namespace of that hop, 0 for the node's. By is the rule, chain or route that ends them, if it is one.
	Netns uint32
	By    any
	// Silent is the entry of a next hop that did not answer when it was last asked, nil where none is on the way.
	Silent *model.Neighbor
	// Unsure names what the tables leave open on the way, in the order of the hops: as in the pages of paths.
	Unsure []string
	// Masked: a rule that may match may translate the source, or that is not known.
	Masked bool
	// Exit is the link by which the packets leave the node, nil where they do not. As is the source that they have then.
	Exit *model.Link
	As   netip.Addr
	// Narrow is where large packets alone end, nil for nowhere.
	Narrow *Narrow
}

// open are the decisions of which a part is not known.
var open = map[string]bool{
	"routes-unread": true, "table-unread": true, "route-unread": true, "not-read": true, "link-unknown": true, "bridge-unknown": true,
	"mac-unknown": true, "unless-rule": true, "routes-not-whole": true, "hop-unread": true, "rules-unread": true,
	"rules-too-many": true, "rules-may-decide": true, "neighbours-unread": true, "dnat-unknown": true,
	"elsewhere": true, "by-pod": true,
}

// Follow follows a new connection of a pod's and the replies to it, by the tables alone: it heeds no count and makes no words.
// Trace says the same of one pair in words. It is not for concurrent use.
func (st *State) Follow(e Ends) Fate {
	e, socket := st.atSocket(e)
	t := newTracer(st, e)
	t.socket = socket
	there := &journey{tracer: t, src: e.Pod, dst: e.To, dstPort: e.Port}
	there.from()
	f := Fate{Exit: there.exit, As: there.src, Dst: there.dst, Narrow: there.narrow(), Masked: there.mayMask()}
	if there.fate(&f) {
		return f
	}
	back := &journey{tracer: t, src: there.dst, dst: there.src, srcPort: there.dstPort, reply: true, arrival: there.exit}
	back.from()
	f.Reply = back.fate(&f)
	return f
}

// fate adds where the journey ends, and what is open before, and reports whether it ends by the tables.
func (j *journey) fate(f *Fate) bool {
	for _, s := range j.steps {
		for _, x := range s.says {
			if open[x.name] && !slices.Contains(f.Unsure, x.name) {
				f.Unsure = append(f.Unsure, x.name)
			}
		}
		if p := cmp.Or(s.after, s.before); p != nil && s.direction == model.Ingress && s.Kind != model.HopPod {
			f.In = p.link
		}
		if n := j.asked(s); n != nil && f.Silent == nil {
			f.Silent = n
		}
		if s.Dead && s.ended {
			f.Dead, f.Kind, f.Link, f.Reason = true, s.Kind, s.Link, s.Reason
			f.By, f.Src, f.Dst, f.Netns = s.by, s.src, s.dst, s.netns
			return true
		}
	}
	return false
}

// asked is the entry of a gateway that a hop asked for, and that did not answer; nil for none.
func (j *journey) asked(s *step) *model.Neighbor {
	if s.Kind != model.HopNeighbor || s.next == s.dst || s.after == nil {
		return nil
	}
	n := j.NeighborAt(s.next, s.after.link.Index)
	return model.Either(n == nil || !n.MAC.IsZero() || n.State != "FAILED" && n.State != "INCOMPLETE", nil, n)
}
