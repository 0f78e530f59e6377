package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

func findReceiveOverflow(v *view) {
	all := v.asksOf()
	v.atSockets(func(d *model.Drop) bool { return d.Is(model.NoRoom) }, func(_ netip.Addr, l *lost) finding { return v.overflowed(l, all) })
	for p := range model.Each(v.Pods) {
		if p.Backlog == nil || p.Backlog.Delta < minDrops {
			continue
		}
		i := slices.IndexFunc(v.proposed, func(f finding) bool { return slices.ContainsFunc(f.Pods, p.Has) })
		if i < 0 {
			// The kernel takes the SYNs of new connections for consumed, so no drop shows them.
			f := finding{facts: facts{"pod": p}}
			f.Packets, f.LastHopAlive = p.Backlog.Delta,
				model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
			v.report(f)
			i = len(v.proposed) - 1
		}
		v.fullQueue(p, &v.proposed[i], all)
	}
}

func (v *index) overflowed(l *lost, all map[service]*asks) finding {
	f := v.atSocket("", l)
	f.Pods, f.Peers = sorted(l.pods), model.Hosts(sorted(l.peers))
	var unreplied []facts
	for _, s := range v.sampledServices(l) {
		if a := all[s]; a != nil && s.proto == udp && s.unanswered(a) {
			f.Severity = model.Warning
			unreplied = append(unreplied, s.facts(a))
		}
	}
	f.facts["most"], f.facts["unreplied"] = mostDropped(l.drops)[0], unreplied
	f.facts["limits"] = model.Chosen(v.SocketLimits, (*model.SocketLimit).Near)
	return f
}

func (v *index) sampledServices(l *lost) []service {
	var out []service
	for _, d := range l.drops {
		if _, port, ok := v.drops.Samples.Of(d).Ports(); ok {
			out = append(out, service{d.Dst, d.Proto, port})
		}
	}
	slices.SortFunc(out, service.compare)
	return slices.Compact(out)
}

// fullQueue adds what is known of the pod's full listeners. Connections die steadily where those of the window
// that found a listener with a queue had no reply; what asks such a listener is a peer.
func (v *index) fullQueue(p *model.Pod, f *finding, all map[service]*asks) {
	var ports []string
	for _, l := range p.Backlog.Waiting {
		ports = model.With(ports, protoPort{proto: tcp, number: l.Addr.Port()}.String())
	}
	var asked lost
	var unreplied []facts
	for _, pod := range podAddrs(p) {
		for _, s := range services(all, pod) {
			listed := slices.Contains(ports, s.name())
			if s.proto != tcp || !listed && (len(p.Backlog.Waiting) > 0 || !queueWasFull(p, s, len(all[s].unreplied), all)) {
				continue
			}
			for _, a := range clients(all[s].unreplied) {
				asked.with(pod, a)
			}
			if s.unanswered(all[s]) {
				ports = model.With(ports, s.name())
				unreplied = append(unreplied, s.facts(all[s]))
			}
		}
	}
	f.Peers = model.With(f.Peers, model.Hosts(sorted(asked.peers))...)
	slices.SortFunc(f.Peers, netip.Prefix.Compare)
	f.Pods = model.Unique(append(f.Pods, sorted(asked.pods)...))
	if len(f.Pods) == 0 {
		f.Pods = podAddrs(p)
	}
	f.facts["queues"], f.facts["full"] = words.Say("backlog", facts{"pod": p, "unreplied": unreplied}), []*model.Pod{p}
	if len(unreplied) > 0 {
		f.Severity, f.facts["steady"] = model.Warning, ports
	}
}

// facts are what connection tracking holds of a service's requests.
func (s service) facts(a *asks) facts {
	return facts{"addr": s.pod, "port": s.name(), "unreplied": len(a.unreplied), "replied": len(a.replied),
		"clients": clients(a.unreplied)}
}
