package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// silentReceiver is a pod's address with the services that do not reply.
type silentReceiver struct {
	pod      *model.Pod
	addr     netip.Addr
	services []service
	// flows are those without a reply, silent how many SYNs went in for which no SYN-ACK came out.
	flows  []*model.Flow
	silent uint64
	in     *model.HopCount
	// partly: a service replies to other clients.
	partly bool
}

func findPodNotReplying(v *view) {
	all := v.asksOf()
	for p := range model.Each(v.Pods) {
		if !v.presentWholeWindow(p) {
			continue
		}
		for _, a := range podAddrs(p) {
			in := v.hop(a, p.LinkIndex, model.Egress, model.AsDestination)
			if in == nil || len(v.Owners[a]) != 1 {
				continue
			}
			d := silentReceiver{pod: p, addr: a, in: in, silent: in.SYN - min(in.SYN, v.synAcks(a))}
			for _, s := range services(all, a) {
				if v.silentTo(s, all, &d) {
					d.services = append(d.services, s)
				}
			}
			if len(d.services) > 0 || v.untrackedSilence(&d, all) {
				v.report(v.notReplying(&d))
			}
		}
	}
}

func (v *index) synAcks(a netip.Addr) (most uint64) {
	for _, h := range v.hops[a] {
		if h.Direction == model.Ingress && h.Side == model.AsSource {
			most = max(most, h.SYNACK)
		}
	}
	return most
}

// silentTo reports whether requests of the window to a service were not replied to, and no other finding says
// why: none at all, or none of certain clients, each of which asked several times. It adds these flows to d.
func (v *view) silentTo(s service, all map[service]*asks, d *silentReceiver) bool {
	a := all[s]
	if s.proto != tcp && s.proto != udp || !s.wants(a) {
		return false
	}
	replied := setOf(clients(a.replied))
	asked := map[netip.Addr]int{}
	for _, f := range a.unreplied {
		asked[f.Original.Src]++
	}
	flows := slices.DeleteFunc(slices.Clone(a.unreplied), func(f *model.Flow) bool {
		client := f.Original.Src
		return replied[client] || s.proto == udp && s.port != dnsPort && !a.before[client] ||
			len(replied) > 0 && asked[client] < minAsks || v.settledFor(s.pod, f)
	})
	if len(flows) < minAsks || s.proto == tcp && (d.silent < minAsks || queueWasFull(d.pod, s, len(flows), all)) {
		return false
	}
	d.partly = d.partly || len(replied) > 0
	d.flows = append(d.flows, flows...)
	return true
}

// queueWasFull reports whether the full queue of a listener, which ReceiveOverflow tells of, explains that
// connections to a service got no reply. Which listener it was is known only while its queue holds something; a
// server that is slow replies to some, and where one service alone is silent it is that one's queue.
func queueWasFull(p *model.Pod, s service, silent int, all map[service]*asks) bool {
	if p.Backlog == nil || p.Backlog.Delta < uint64(silent) {
		return false
	}
	full := func(l model.Listener) bool { return l.Addr.Port() == s.port }
	others := func(o service) bool { return o != s && o.proto == tcp && len(all[o].unreplied) > 0 }
	return len(all[s].replied) > 0 || slices.ContainsFunc(p.Backlog.Waiting, full) ||
		!slices.ContainsFunc(services(all, s.pod), others)
}

// settledFor reports whether a flow to a pod has a finding already: it claims the silence, for
// the pod or the service's address that the client asked, or a drop between both. What a pod asks
// of itself comes back with its own address, which the kernel refuses.
func (v *view) settledFor(pod netip.Addr, flow *model.Flow) bool {
	client, to := flow.Original.Src, flow.Original.Dst
	if client == pod || v.silencedBy(client, model.Host(pod), flow) != "" ||
		v.silencedBy(client, model.Host(to), flow) != "" || v.silencedBy(to, model.Host(pod), flow) != "" {
		return true
	}
	// A rule may keep its datagrams from connection tracking.
	if flow.Proto == udp && len(v.oneSided(flow)) > 0 {
		return true
	}
	// Its replies may wait in the pod for a gateway that does not answer. Nor does connection tracking see one of which a
	// rule drops the node's copy, while a bridge forwards it.
	for d := range model.Each(v.Traffic.Drops) {
		if by := v.byDrop[d]; d.Proto != 0 && d.Proto != flow.Proto || !by.concerns(flow) {
			continue
		}
		if d.Src == pod && d.Dst == client && d.Is(model.Netfilter) && d.Packets >= minDrops || (d.Src == pod && d.Dst == client || d.Src == client && d.Dst == pod) && v.drops.Lost(d) &&
			(v.explained(d) || refused(d)) {
			return true
		}
	}
	return false
}

// manySYNs is more than one connection attempt sends in a window.
const manySYNs = 9

// untrackedSilence reports whether a pod replies to no connection at all, where
// connection tracking has no flow to it to tell them apart.
func (v *view) untrackedSilence(d *silentReceiver, all map[service]*asks) bool {
	if d.silent < manySYNs || d.silent < d.in.SYN || !model.Lasted(d.in.First, d.in.Last) {
		return false
	}
	tracked := slices.ContainsFunc(services(all, d.addr), func(s service) bool { return s.proto == tcp })
	spoilt := slices.ContainsFunc(v.Traffic.Drops, func(x model.Drop) bool {
		return x.Dst == d.addr && x.Packets >= manyRefused && refused(&x)
	})
	out := v.hop(d.addr, d.pod.LinkIndex, model.Ingress, model.AsSource)
	refuses := out != nil && out.RST+out.ICMPErrors > 0
	return !tracked && !spoilt && !refuses && !v.silenced(netip.Addr{}, model.Host(d.addr))
}

func (v *view) notReplying(d *silentReceiver) finding {
	watched, asking := v.Has(model.SourceDrops), clients(d.flows)
	l := &lost{drops: model.Chosen(v.Traffic.Drops, func(x *model.Drop) bool {
		return (x.Dst == d.addr || x.Src == d.addr) && v.inPod(x).IsValid() && v.drops.Lost(x) && !v.explained(x)
	})}
	translated := slices.DeleteFunc(slices.Clone(d.flows),
		func(f *model.Flow) bool { return f.Original.Dst == f.Reply.Src })
	ports := model.Map(d.services, service.name)
	astray := model.Filter(d.pod.Elsewhere, func(x netip.Prefix) bool {
		return x.IsValid() && x.Bits() > 0 && slices.ContainsFunc(asking, x.Contains)
	})
	f := finding{lost: l, facts: facts{
		"pod": d.pod, "addr": d.addr, "ports": ports, "partly": d.partly, "clients": asking, "in": d.in,
		"astray": astray, "synAcks": v.synAcks(d.addr), "flows": d.flows,
		"virtual": destinations(translated), "clean": watched && len(l.drops) == 0, "watched": watched,
		"accepting": d.pod.Backlog != nil && d.pod.Backlog.Delta == 0,
		"datagrams": slices.ContainsFunc(d.services, func(s service) bool { return s.proto == udp }),
	}}
	f.Pods, f.Peers, f.LastHopAlive = []netip.Addr{d.addr}, model.Hosts(asking), v.place(d.pod.Link, model.Egress)
	f.Packets = max(d.silent, uint64(len(d.flows)))
	if len(d.flows) == 0 || !watched {
		f.Confidence = model.Possible
	}
	return f
}
