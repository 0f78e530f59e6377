package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// ReceiveOverflow is the code of this finding.
const ReceiveOverflow model.Code = "ReceiveOverflow"

var receiveOverflow = kind{
	code:     ReceiveOverflow,
	severity: model.Info,
	find:     findReceiveOverflow,
	ends:     []model.HopKind{model.HopPod, model.HopLocal},
}

func findReceiveOverflow(v *view) []finding {
	all := v.asksOf()
	out := v.atSockets(func(d *model.Drop) bool { return whatWasFull(d) != "" }, func(p *model.Pod, l *lost) model.Finding {
		return v.overflowed(p, l, all)
	})
	for p := range model.Each(v.Pods) {
		if p.Backlog == nil || p.Backlog.Delta < minDrops {
			continue
		}
		i := slices.IndexFunc(out, func(f finding) bool { return slices.ContainsFunc(f.Pods, p.Has) })
		if i < 0 {
			i, out = len(out), append(out, finding{Finding: v.unaccepted(p)})
		}
		v.fullQueue(p, &out[i].Finding, all)
	}
	return out
}

// overflowed is the finding on a pod whose sockets dropped packets.
func (v *view) overflowed(p *model.Pod, l *lost, all map[service]*asks) model.Finding {
	f := l.finding()
	most := mostDropped(l.drops)[0]
	at, _ := v.sampledPorts(l)
	f.Title = "the application at " + at + " does not keep up"
	f.Why = fmt.Sprintf("The packets reached %s and %s (%s). The network is not at fault.", words.PodName(p), whatWasFull(most), most.Reason)
	f.Evidence = dropEvidence(l.drops)
	f.Fix = []string{words.Inside(p) + "ss -lntum # kubectl top pod: is it short of processor time? A larger SO_RCVBUF or net.core.rmem_max helps against bursts"}
	for _, s := range v.sampledServices(l) {
		if a := all[s]; a != nil && s.proto == udp && s.unanswered(a) {
			f.Severity = model.Warning
			f.Evidence = append(f.Evidence, unrepliedEvidence(s, a))
		}
	}
	return f
}

// sampledServices are the ports that samples of the drops were for.
func (v *view) sampledServices(l *lost) []service {
	var out []service
	for _, d := range l.drops {
		if s := v.samples.Of(d); s != nil {
			if _, port, ok := s.Ports(); ok {
				out = append(out, service{d.Dst, d.Proto, port})
			}
		}
	}
	slices.SortFunc(out, service.compare)
	return slices.Compact(out)
}

// unaccepted is the finding on a pod that dropped new connections only. The kernel
// takes these SYNs for consumed, so no drop shows them.
func (v *view) unaccepted(p *model.Pod) model.Finding {
	return model.Finding{
		Confidence: model.Proven, Packets: p.Backlog.Delta,
		Title: fmt.Sprintf("a server in %s does not accept connections fast enough", words.PodName(p)),
		Why: fmt.Sprintf("New connections reached %s, and the queue of those to be accepted was full. The network is not at fault.",
			words.PodName(p)),
		LastHopAlive: model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress},
	}
}

// fullQueue adds what is known of the pod's full listeners. Connections die steadily
// where those of the window that found a listener with a queue had no reply; what
// asks such a listener is a peer.
func (v *view) fullQueue(p *model.Pod, f *model.Finding, all map[service]*asks) {
	observe(f, model.SourcePods, "the kernel dropped %s in %s in the window, since a listener's queue was full (ListenOverflows)",
		words.Count(p.Backlog.Delta, "new connection"), words.PodName(p))
	var ports []string
	for _, l := range p.Backlog.Waiting {
		port := fmt.Sprintf("tcp/%d", l.Addr.Port())
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		observe(f, model.SourcePods, "the listener %s has %s that it has not accepted", l.Addr, words.Count(uint64(l.Queue), "connection"))
	}
	asking, about := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	steady := false
	for _, pod := range podAddrs(p) {
		for _, s := range services(all, pod) {
			listed := slices.Contains(ports, s.name())
			if s.proto != tcp || !listed && (len(p.Backlog.Waiting) > 0 || !queueWasFull(p, s, len(all[s].unreplied), all)) {
				continue
			}
			for _, a := range clients(all[s].unreplied) {
				asking[a], about[pod] = true, true
			}
			if s.unanswered(all[s]) {
				steady = true
				if !listed {
					ports = append(ports, s.name())
				}
				f.Evidence = append(f.Evidence, unrepliedEvidence(s, all[s]))
			}
		}
	}
	f.Peers = union(f.Peers, hosts(sorted(asking)), comparePrefix)
	f.Pods = union(f.Pods, sorted(about), netip.Addr.Compare)
	if len(f.Pods) == 0 {
		f.Pods = podAddrs(p)
	}
	f.Fix = append(f.Fix, words.Inside(p)+"ss -lnt # a Recv-Q above Send-Q is a full queue: the process hangs, or is short of processor time; "+
		"a larger backlog (net.core.somaxconn and the application's own) helps against bursts")
	if steady {
		f.Severity = model.Warning
		f.Title = fmt.Sprintf("the application at %s %s accepts no connections", f.Pods[0], strings.Join(ports, ", "))
	}
}

// unrepliedEvidence is what connection tracking holds of a service's requests.
func unrepliedEvidence(s service, a *asks) model.Evidence {
	return seen(model.SourceConntrack, "%s to %s %s UNREPLIED that began in the window, from %s; %s with a reply",
		words.Count(uint64(len(a.unreplied)), "flow"), s.pod, s.name(), words.Addrs(clients(a.unreplied)), words.Count(uint64(len(a.replied)), "flow"))
}
