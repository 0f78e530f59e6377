package service

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// backend is one that flows were sent to.
type backend struct {
	silent  []*model.Flow
	answers bool
	// held are flows from before the window that had replies, and go on.
	held []*model.Flow
	// rules are those that lead there now, services Cilium's that do, whose packets have the
	// backend's address from the start.
	rules    []*model.PacketRule
	services []netip.Addr
}

// DeadBackend reports endpoints of services that no running pod has.
var DeadBackend = fault.Kind{Code: "DeadBackend", Severity: model.Warning, Find: findDeadBackend,
	Needs:   fault.Sources{model.SourcePods, model.SourceConntrack},
	Ends:    fault.Hops{model.HopNeighbor, model.HopRoute, model.HopBeyond, model.HopPod},
	Objects: fault.Objects{"addr", "server"}, Traits: model.Vacant, Else: fault.Else{"DeadBackend-none", "doubtful"}}

func findDeadBackend(v *fault.Input) {
	found, ofCilium := map[netip.Addr]*backend{}, map[netip.Addr][]netip.Addr{}
	for s := range model.Each(v.Cilium.Services) {
		for _, b := range s.Backends {
			ofCilium[b.Addr()] = model.With(ofCilium[b.Addr()], s.Addr.Addr())
		}
	}
	for f := range model.Each(v.Flows) {
		to := f.Reply.Src
		if to == f.Original.Dst && ofCilium[to] == nil || !nobody(v.Index, to) {
			continue
		}
		b := model.GetOrInsert(found, to)
		switch passed, _ := v.Passed(f); {
		case !f.Replied:
			b.silent = append(b.silent, f)
		case !f.Start.IsZero():
			b.answers = true
		case passed || f.Established():
			b.held = append(b.held, f)
		}
	}
	for _, r := range v.Tables().Translations(func(a netip.Addr) bool { return nobody(v.Index, a) }) {
		// A bridge asks for the neighbour before the flow is entered, so
		// that connection tracking may know nothing of it. nft's rules need not count.
		if a := r.To.Addr(); found[a] != nil || r.Counter.Delta > 0 || lostFor(v.Index, a).Packets > 0 {
			model.GetOrInsert(found, a).rules = append(model.GetOrInsert(found, a).rules, r)
		}
	}
	for a, services := range ofCilium {
		if nobody(v.Index, a) && (found[a] != nil || lostFor(v.Index, a).Packets > 0) {
			model.GetOrInsert(found, a).services = services
		}
	}
	reportUnservedNames(v)
	for _, a := range node.Sorted(found) {
		if b := found[a]; !b.answers && triedEnough(v.Index, a, b) {
			v.Report(deadBackend(v.Index, a, b))
		}
	}
}

// reportUnservedNames reports name servers of pods that are services of Cilium's without a
// backend: it refuses to connect to them, so that no packet shows it.
func reportUnservedNames(v *fault.Input) {
	for _, s := range v.NameServers() {
		if !unserved(v.Index, s.Server) {
			continue
		}
		f := fault.Fault{Page: "DeadBackend-none", Facts: words.Facts{"server": s.Server, "services": v.NamesOfCilium(s.Server)}}
		f.Pods, f.Peers = s.Pods, []netip.Prefix{model.Host(s.Server)}
		if slices.ContainsFunc(s.Others, func(o netip.Addr) bool { return !unserved(v.Index, o) }) {
			f.Severity, f.Facts["others"] = model.Info, true
		}
		v.Report(f)
	}
}

// nobody reports whether an address is one of pods, here or on a node that says so, and no pod has it.
func nobody(v *node.Index, a netip.Addr) bool { return v.Vacant(a) || v.Others.Vacant[a] != "" }

// triedEnough reports whether traffic of the window died there: several flows
// began in it, or packets of older ones left the node for an address of its own.
func triedEnough(v *node.Index, a netip.Addr, b *backend) bool {
	n, old := 0, map[netip.Addr]bool{}
	for _, f := range b.silent {
		if f.Start.IsZero() {
			old[f.Reply.Dst] = true
		} else {
			n++
		}
	}
	return n >= node.MinPackets || lostFor(v, a).Packets >= node.MinDrops ||
		slices.ContainsFunc(v.Peers, func(p model.Peer) bool {
			return p.Remote == a && old[p.Local] && p.Out.Packets >= node.MinDrops && p.In.Packets == 0 && node.Lasted(&p)
		})
}

// lostFor are the drops of packets for an address that nobody has, and the pods that sent them.
func lostFor(v *node.Index, a netip.Addr) *node.Lost {
	l := &node.Lost{Drops: model.Chosen(v.Traffic.Drops, lostTo(a))}
	for _, d := range l.Drops {
		if l.Packets += d.Packets; len(v.Owners[d.Src]) > 0 {
			l.With(d.Src, netip.Addr{})
		}
	}
	return l
}

// lostTo accounts for drops of packets for an address that nobody has: it has no neighbour, or the route that
// keeps the pods' range together discards what is for none of them (Calico's), or there is no route; or the
// packets went out by the default route and came back until their TTL ended, or the reverse path filter refused them; or a
// bridge floods them, since the node still has the neighbour of a pod that is gone.
func lostTo(a netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return d.Dst == a && (d.Is(model.NeighborFailed|model.LookupRefused|model.Expired|model.ReverseFiltered|model.OtherHost) ||
			d.Cilium.Reason.NoTarget())
	}
}

func deadBackend(v *node.Index, a netip.Addr, b *backend) fault.Fault {
	l, flows := lostFor(v, a), slices.Concat(b.silent, b.held)
	for _, src := range node.Clients(flows) {
		if len(v.Owners[src]) > 0 {
			l.With(src, netip.Addr{})
		}
	}
	services := append(node.Destinations(flows), node.Translated(b.rules)...)
	if b.services != nil {
		services = append(b.services, model.Filter(services, func(s netip.Addr) bool { return s != a })...)
	}
	services = model.Unique(services)
	node := v.Others.Vacant[a]
	f := fault.Fault{Lost: l, Claims: lostTo(a), Facts: words.Facts{
		"addr": a, "services": services, "rules": b.rules, "node": node, "silent": b.silent, "held": b.held, "flows": b.held,
		"flow": cmp.Or(b.silent...), "older": cmp.Or(b.held...), "cilium": b.services != nil,
		"agent":    slices.ContainsFunc(b.rules, func(r *model.PacketRule) bool { return r.Keeper() == "kube-proxy" }),
		"doubtful": node == "" && !v.OwnRange(a), "contained": node == "" && !model.InAny(v.Ranges.Local, a),
	}}
	if len(b.rules) == 0 && b.services == nil {
		f.Confidence, f.Facts["flows"] = model.Likely, flows
	}
	f.Peers, f.LastHopAlive = model.Hosts(append(services, a)), v.Entering(l.Pods)
	return f
}
