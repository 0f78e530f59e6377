package audit

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// traffic is which pairs a window had packets of, as an audit tells pairs apart: what stands for a range or for the outside is
// all of it.
type traffic struct {
	*node.Index
	// asked have packets, answered a reply to a connection that began in the window.
	asked, answered map[ends]bool
	// sources are the addresses with which packets left that were replied to.
	sources map[netip.Addr]bool
}

// ends are a pod and what it connects to: an address, a range of a node's pods or, where that is zero, the outside.
type ends struct {
	pod netip.Addr
	to  netip.Prefix
}

func trafficOf(judged *node.Index) *traffic {
	t, s := &traffic{Index: judged, asked: map[ends]bool{}, answered: map[ends]bool{}, sources: map[netip.Addr]bool{}}, judged.Whole
	for f := range model.Each(s.Flows) {
		t.sources[f.Reply.Dst] = t.sources[f.Reply.Dst] || f.Replied
		for _, to := range []netip.Addr{f.Original.Dst, f.Reply.Src} {
			t.saw(f.Original.Src, to, f.Replied && !f.Start.IsZero())
		}
	}
	for p := range model.Each(s.Traffic.Peers) {
		t.saw(p.Local, p.Remote, p.In.Replies > 0)
	}
	for d := range model.Each(s.Traffic.Drops) {
		t.saw(d.Src, d.Dst, false)
	}
	return t
}

// saw notes packets between two addresses.
func (t *traffic) saw(pod, to netip.Addr, answered bool) {
	for _, e := range []ends{{pod, model.Host(to)}, {pod, t.wide(to)}} {
		t.asked[e], t.answered[e] = true, t.answered[e] || answered
	}
}

// wide is what an address stands for.
func (t *traffic) wide(to netip.Addr) netip.Prefix {
	r := t.Remote(to)
	return model.Either(r.IsValid() || node.Outside(t.Index, to), r, model.Host(to))
}

func (t *traffic) key(x model.AuditPair) ends {
	return ends{x.Pod, model.Either(x.Kind == model.AuditNode || x.Kind == model.AuditOutside, t.wide(x.To), model.Host(x.To))}
}

// passed reports whether a pair had packets, or is one that nobody needs: pods speak to what is behind their gateway.
func (t *traffic) passed(x model.AuditPair) bool {
	return x.Kind == model.AuditGateway || t.asked[t.key(x)]
}
