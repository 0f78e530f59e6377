package join

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// minLarge is how many packets other than requests a pair must have sent for the share
// that arrives to mean anything.
const minLarge = 10

// lostLarge are the ways on which large packets alone are lost, one cause for each two
// nodes.
func (j *joint) lostLarge() []*cause {
	by := map[fault]*cause{}
	var out []*cause
	for _, w := range j.ways {
		if !w.losesLarge() {
			continue
		}
		k := fault{shape: filtered, node: w.from, to: w.to}
		if by[k] == nil {
			by[k] = &cause{guess: &guess{fault: k, large: true}}
			out = append(out, by[k])
		}
		by[k].lost = append(by[k].lost, w)
	}
	return out
}

// losesLarge reports whether small packets of a way arrive and large ones do not: of
// the requests, which are small, a far larger share than of the others, and what
// arrives is smaller than what left. Offloads may merge or cut packets on either node,
// but then the smaller ones are more, and of the bytes none is missing. What came back
// shows that both nodes watched the same: a burst in one window alone has replies there.
func (w *way) losesLarge() bool {
	if w.state != arrived || w.to.blind != "" || !w.to.Sees(w.dst, w.src) {
		return false
	}
	asked, others := w.out.Requests, w.out.Replies+w.out.Other
	gotAsked, gotOthers := w.in.Requests, w.in.Replies+w.in.Other
	if 2*w.came > 3*w.back || 2*w.back > 3*w.came {
		return false
	}
	if asked < minLost || gotAsked < minLost || others < minLarge || !lower(gotOthers, others, gotAsked, asked) {
		return false
	}
	out, in := w.volumes()
	return out.Packets > 0 && in.Packets > 0 && lower(in.Bytes, out.Bytes, gotAsked, asked) && lower(in.Bytes, in.Packets, out.Bytes, out.Packets)
}

// lower reports whether a of b is a share that is well below c of d.
func lower(a, b, c, d uint64) bool {
	return float64(a)/float64(b) < 0.6*float64(c)/float64(d)
}

// volumes are what left for the range of the way's destination, and what arrived from
// that of its source.
func (w *way) volumes() (out, in diagnose.Volume) {
	return volume(w.from.Leaving, w.dst), volume(w.to.Arriving, w.src)
}

// volume is that of the narrowest range that holds an address.
func volume(by map[netip.Prefix]diagnose.Volume, a netip.Addr) diagnose.Volume {
	for bits := a.BitLen(); bits >= 0; bits-- {
		if p, err := a.Prefix(bits); err == nil && by[p] != (diagnose.Volume{}) {
			return by[p]
		}
	}
	return diagnose.Volume{}
}

// observeLarge adds how many small and large packets left one node and arrived at the
// other.
func observeLarge(f *model.Finding, from, to *node, ways []*way) {
	var asked, others, gotAsked, gotOthers uint64
	for _, w := range ways {
		asked, others = asked+w.out.Requests, others+w.out.Replies+w.out.Other
		gotAsked, gotOthers = gotAsked+w.in.Requests, gotOthers+w.in.Replies+w.in.Other
	}
	out, in := ways[0].volumes()
	f.Evidence = append(f.Evidence,
		seen(from, "%s egress: %d requests and %s of other kinds; packets for these pods' range have %d bytes on average", from.Uplink.Link, asked, packets(others), out.Bytes/out.Packets),
		seen(to, "%s ingress: %d of the requests and %s of other kinds; those from there have %d bytes on average", to.Uplink.Link, gotAsked, packets(gotOthers), in.Bytes/in.Packets))
	f.Packets += others - min(others, gotOthers)
	addNode(f, from.name())
	addNode(f, to.name())
}

// tooLarge is the finding on large packets that are lost between the nodes.
func (c *cause) tooLarge(f *model.Finding, senders, receivers []*node) {
	f.Code, f.Severity, f.Confidence = diagnose.PathMTU, model.Warning, model.Likely
	_, dst := c.ends()
	for _, a := range dst {
		f.Peers = append(f.Peers, netip.PrefixFrom(a, a.BitLen()))
	}
	f.Title = fmt.Sprintf("large packets for %s are lost between %s and %s", addrs(dst), nodeNames(senders), nodeNames(receivers))
	f.Why = fmt.Sprintf("Small packets leave %s and arrive at %s, and large ones do not: a link between the nodes has a smaller MTU, "+
		"and no ICMP error tells the sender. So connections open and then hang.", nodeNames(senders), nodeNames(receivers))
	f.Unseen = []string{"the MTUs between the nodes"}
	f.Alternatives = []string{"something between the nodes drops data by what it holds, or limits its rate"}
	f.Fix = []string{"give the links on the way one MTU, let ICMP errors (fragmentation needed) through, or clamp TCP's segment size",
		fmt.Sprintf("ping -M do -s 1400 %s # from the other pod or its node; smaller until it replies", dst[0])}
}
