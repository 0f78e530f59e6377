package diagnose

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

func findNoListener(v *view) {
	nobody := func(d *model.Drop) bool {
		return d.Is(model.NoSocket) && v.drops.Lost(d) && (d.Reason != "" || v.drops.Samples.Of(d) != nil)
	}
	v.atSockets(nobody, func(pod netip.Addr, l *lost) finding { return v.unheard(pod, l) })
	v.atNode(nobody)
	v.atLoopback(nobody)
}

// unheard is the finding on what reached a pod where nobody listens. It may have said so.
func (v *index) unheard(pod netip.Addr, l *lost) finding {
	f := v.atSocket("", l)
	var resets, errors uint64
	for _, h := range v.hops[pod] {
		if h.IfIndex == v.Owners[pod][0].LinkIndex && h.Direction == model.Ingress && h.Side == model.AsSource {
			resets, errors = resets+h.RST, errors+h.ICMPErrors
		}
	}
	f.facts["resets"], f.facts["errors"], f.facts["loopback"] = resets, errors, v.atLoopbackOnly(v.Owners[pod][0], l)
	return f
}

// atLoopbackOnly are the sockets of the pod's loopback address for the ports that drops were sampled at.
func (v *index) atLoopbackOnly(pod *model.Pod, l *lost) []string {
	var out []string
	if pod.Inside == nil {
		return nil
	}
	asked := v.sampledServices(l)
	for _, s := range pod.Inside.Loopback {
		if slices.ContainsFunc(asked, func(a service) bool { return a.proto == s.Proto && a.port == s.Addr.Port() }) {
			out = append(out, s.Addr.Addr().String()+" "+protoPort{proto: s.Proto, number: s.Addr.Port()}.String())
		}
	}
	return out
}

// atLoopback are the findings on pods that send what is for others to their own loopback
// address, as by a rule in the pod that leads it to a proxy (REDIRECT), where nobody listens.
func (v *view) atLoopback(match func(*model.Drop) bool) {
	reportBy(v, func(d *model.Drop) (netns uint32, pod netip.Addr) {
		if d.Dst.IsLoopback() && match(d) && v.inPod(d).IsValid() {
			return d.Netns, d.Src
		}
		return netns, pod
	}, func(_ uint32, l *lost) finding {
		f := v.atSocket("NoListener-loopback", l)
		pod := v.Owners[sorted(l.pods)[0]][0]
		f.facts["pod"] = pod
		if pod.Inside != nil {
			f.facts["rule"] = v.redirecting(pod.Inside.PacketRules, l)
		}
		l.peers = nil // The loopback address is no other end.
		f.Severity, f.LastHopAlive = model.Warning, model.Place{Link: "lo", Role: model.RolePod, Direction: model.Ingress}
		return f
	})
}

// atNode are the findings on what pods send to addresses of the node where nobody listens.
func (v *view) atNode(match func(*model.Drop) bool) {
	reportBy(v, func(d *model.Drop) (_, pod netip.Addr) {
		if match(d) && v.nodeAddrs[d.Dst] && len(v.Owners[d.Src]) > 0 && (d.Netns == 0 || d.Netns == v.Node.Netns) {
			return d.Dst, d.Src
		}
		return pod, pod
	}, func(_ netip.Addr, l *lost) finding {
		f := v.atSocket("NoListener-node", l)
		ports, rule := f.facts["ports"].([]string), v.redirecting(v.PacketRules, l)
		dns := slices.Contains(ports, "udp/53") || slices.Contains(ports, "tcp/53")
		if f.facts["dns"], f.facts["rule"] = dns, rule; dns || rule != nil {
			f.Severity = model.Warning
		}
		f.Cause, f.LastHopAlive = strings.Join(ports, " "), v.place(mostDropped(l.drops)[0].Link, model.Ingress)
		f.Pods, f.Peers = sorted(l.pods), model.Hosts(sorted(l.peers))
		f.silences = silencesPeers(&f.Finding)
		return f
	})
}

// redirecting is a rule that leads packets to a port of its own namespace, at which drops were
// sampled; nil where none does.
func (v *index) redirecting(rules []model.PacketRule, l *lost) *model.PacketRule {
	asked := v.sampledServices(l)
	return model.First(rules, func(r *model.PacketRule) bool {
		return r.Target == "REDIRECT" && (r.Counter.Delta > 0 || r.Counter.Restarted) &&
			slices.ContainsFunc(asked, func(s service) bool { return r.ToPorts.First <= s.port && s.port <= r.ToPorts.Last })
	})
}
