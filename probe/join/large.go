package join

import (
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// minLarge is how many packets other than requests a pair must have sent for the share
// that arrives to mean anything.
const minLarge = 10

// lostLarge makes causes of ways on which large packets alone are lost.
func (j *joint) lostLarge() {
	lost := chosen(j.ways, (*way).losesLarge)
	for _, ways := range connected(lost) {
		j.causes = append(j.causes, &cause{guess: &guess{fault: fault{shape: filtered}, large: true}, lost: ways})
	}
}

// losesLarge reports whether small packets of a way arrive and large ones do not: of
// the requests, which are small, a larger share than of all bytes, and what arrives is smaller
// than what left. Offloads may merge or cut packets on either node, but then of the bytes none
// is missing. What came back shows that both nodes watched the same: a burst in one window
// alone has replies there.
func (w *way) losesLarge() bool {
	if w.state != arrived || w.to.blind != "" || !w.to.Sees(w.dst(), w.src()) || !w.comparable() {
		return false
	}
	// Readings are so far apart that windows cut to one time still differ by some.
	apart := 1.5
	if !w.shared {
		apart = 1.1
	}
	came, back := float64(w.near.In.Packets), float64(w.far.Out.Packets)
	if came > apart*back || back > apart*came || w.near.Out.Requests < minLost || w.far.In.Requests < minLost ||
		w.near.Out.Replies+w.near.Out.Other < minLarge {
		return false
	}
	// So much arrives of what is small, and was sent while both watched.
	out, in := w.volumes()
	small, arrive := min(1, share(w.far.In.Requests, w.near.Out.Requests)), float64(in.Bytes)
	if came > 0 {
		small, arrive = min(small, back/came), arrive*min(1, came/back)
	}
	return arrive < 0.6*small*float64(out.Bytes) && w.shrinks()
}

// shrinks reports whether what arrives is smaller than what left.
func (w *way) shrinks() bool {
	out, in := w.volumes()
	return out.Packets > 0 && in.Packets > 0 && share(in.Bytes, in.Packets) < 0.6*share(out.Bytes, out.Packets)
}

func share(part, of uint64) float64 { return float64(part) / float64(of) }

// largeLoss is how many small and large packets left one node and arrived at the other, and how
// many bytes packets between the two ranges have.
type largeLoss struct {
	Asked, Others, GotAsked, GotOthers uint64
	Size, GotSize                      uint64
}

func largeLost(ways []*way) *largeLoss {
	var l largeLoss
	for _, w := range ways {
		l.Asked, l.Others = l.Asked+w.near.Out.Requests, l.Others+w.near.Out.Replies+w.near.Out.Other
		l.GotAsked, l.GotOthers = l.GotAsked+w.far.In.Requests, l.GotOthers+w.far.In.Replies+w.far.In.Other
	}
	out, in := ways[0].volumes()
	l.Size, l.GotSize = out.Bytes/out.Packets, in.Bytes/in.Packets
	return &l
}

// tooLarge is the finding on large packets that are lost between the nodes.
func (c *cause) tooLarge(f *found, senders, receivers []*node) {
	f.Code, f.page, f.Severity, f.Confidence = diagnose.PathMTU, "PathMTU-joined", model.Warning, model.Likely
	_, dst := c.ends()
	f.Peers = hosts(dst)
	f.facts["dst"], f.facts["where"] = dst, c.whereLost(senders, receivers)
}
