package pod

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// ReceiveOverflow reports sockets of pods whose receive buffer or queue of connections overflows.
var ReceiveOverflow = fault.Kind{Code: "ReceiveOverflow", Severity: model.Info, Find: receiveOverflow,
	Ends: fault.Hops{model.HopPod, model.HopLocal}, Objects: fault.Objects{"f.Pods"}}

func receiveOverflow(v *fault.Input) {
	all := v.AsksOf()
	atSockets(v, func(d *model.Drop) bool { return d.Is(model.NoRoom) }, func(_ netip.Addr, l *node.Lost) fault.Fault { return overflowed(v.Index, l, all) })
	for p := range model.Each(v.Pods) {
		if p.Backlog == nil || p.Backlog.Delta < node.MinDrops {
			continue
		}
		i := slices.IndexFunc(v.Proposed, func(f fault.Fault) bool { return slices.ContainsFunc(f.Pods, p.Has) })
		if i < 0 {
			// The kernel takes the SYNs of new connections for consumed, so no drop shows them.
			f := fault.Fault{Facts: words.Facts{"pod": p}}
			f.Packets, f.LastHopAlive = p.Backlog.Delta,
				model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
			v.Report(f)
			i = len(v.Proposed) - 1
		}
		fullQueue(p, &v.Proposed[i], all)
	}
}

func overflowed(v *node.Index, l *node.Lost, all map[node.Service]*node.Asks) fault.Fault {
	f := atSocket(v, "", l)
	f.Pods, f.Peers = node.Sorted(l.Pods), model.Hosts(node.Sorted(l.Peers))
	var unreplied []words.Facts
	for _, s := range v.SampledServices(l) {
		if a := all[s]; a != nil && s.Proto == model.UDP && s.Unanswered(a) {
			f.Severity, unreplied = model.Warning, append(unreplied, s.Facts(a))
		}
	}
	f.Facts["most"], f.Facts["unreplied"] = node.MostDropped(l.Drops)[0], unreplied
	f.Facts["limits"] = model.Chosen(v.SocketLimits, (*model.SocketLimit).Near)
	return f
}

// fullQueue adds what is known of the pod's full listeners. Connections die steadily where those of the window
// that found a listener with a queue had no reply; what asks such a listener is a peer.
func fullQueue(p *model.Pod, f *fault.Fault, all map[node.Service]*node.Asks) {
	var ports []string
	for _, l := range p.Backlog.Waiting {
		ports = model.With(ports, node.ProtoPort{Proto: model.TCP, Number: l.Addr.Port()}.String())
	}
	var asked node.Lost
	var unreplied []words.Facts
	for _, pod := range node.PodAddrs(p) {
		for _, s := range node.Services(all, pod) {
			listed := slices.Contains(ports, s.Name())
			if s.Proto != model.TCP || !listed && (len(p.Backlog.Waiting) > 0 || !node.QueueWasFull(p, s, len(all[s].Unreplied), all)) {
				continue
			}
			for _, a := range node.Clients(all[s].Unreplied) {
				asked.With(pod, a)
			}
			if s.Unanswered(all[s]) {
				ports = model.With(ports, s.Name())
				unreplied = append(unreplied, s.Facts(all[s]))
			}
		}
	}
	f.Peers = model.With(f.Peers, model.Hosts(node.Sorted(asked.Peers))...)
	slices.SortFunc(f.Peers, netip.Prefix.Compare)
	f.Pods = model.Unique(append(f.Pods, node.Sorted(asked.Pods)...))
	if len(f.Pods) == 0 {
		f.Pods = node.PodAddrs(p)
	}
	f.Facts["queues"], f.Facts["full"] = words.Say("backlog", words.Facts{"pod": p, "unreplied": unreplied}), []*model.Pod{p}
	if len(unreplied) > 0 {
		f.Severity, f.Facts["steady"] = model.Warning, ports
	}
}
