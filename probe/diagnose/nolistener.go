package diagnose

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// NoListener is the code of this finding.
const NoListener model.Code = "NoListener"

var noListener = kind{
	code:     NoListener,
	severity: model.Info,
	find:     findNoListener,
	ends:     []model.HopKind{model.HopPod, model.HopLocal},
}

func findNoListener(v *view) []finding {
	nobody := func(d *model.Drop) bool {
		s := v.drops.Samples.Of(d)
		return d.NoSocket() && v.drops.Lost(d) && (d.Reason != "" || s != nil)
	}
	reply := func(d *model.Drop) bool { return v.lateReply(d, v.drops.Samples.Of(d)) }
	var out []finding
	for _, l := range v.atSockets(func(d *model.Drop) bool { return nobody(d) && !reply(d) }) {
		out = append(out, v.unheard(l))
	}
	for _, l := range v.atSockets(func(d *model.Drop) bool { return nobody(d) && reply(d) }) {
		out = append(out, v.atSocket("NoListener-late", l))
	}
	return slices.Concat(out, v.atNode(func(d *model.Drop) bool { return nobody(d) && !reply(d) }), v.atLoopback(nobody))
}

// unheard is the finding on what reached a pod where nobody listens. It may have said so.
func (v *view) unheard(l *lost) finding {
	f := v.atSocket("", l)
	pod := f.facts["pod"].(*model.Pod)
	var resets, errors uint64
	for _, h := range v.hops[l.drops[0].Dst] {
		if h.IfIndex == pod.LinkIndex && h.Direction == model.Ingress && h.Side == model.AsSource {
			resets, errors = resets+h.RST, errors+h.ICMPErrors
		}
	}
	f.facts["resets"], f.facts["errors"] = resets, errors
	return f
}

// atLoopback are the findings on pods that send what is for others to their own loopback
// address, as by a rule in the pod that leads it to a proxy (REDIRECT), where nobody listens.
func (v *view) atLoopback(match func(*model.Drop) bool) []finding {
	var out []finding
	for _, l := range lostBy(v, func(d *model.Drop) (uint32, netip.Addr) {
		if d.Dst.IsLoopback() && match(d) && v.inPod(d).IsValid() {
			return d.Netns, d.Src
		}
		return 0, netip.Addr{}
	}) {
		f := v.atSocket("NoListener-loopback", l)
		f.facts["pod"] = v.pods[sorted(l.pods)[0]][0]
		l.peers = nil // The loopback address is no other end.
		f.Severity, f.LastHopAlive = model.Warning, model.Place{Link: "lo", Role: model.RolePod, Direction: model.Ingress}
		out = append(out, f)
	}
	return out
}

// atNode are the findings on what pods send to addresses of the node where nobody
// listens.
func (v *view) atNode(match func(*model.Drop) bool) []finding {
	var out []finding
	for _, l := range lostBy(v, func(d *model.Drop) (_, pod netip.Addr) {
		if match(d) && v.nodeAddrs[d.Dst] && len(v.pods[d.Src]) > 0 && (d.Netns == 0 || d.Netns == v.Node.Netns) {
			return d.Dst, d.Src
		}
		return pod, pod
	}) {
		f := v.atSocket("NoListener-node", l)
		ports, rule := f.facts["ports"].([]string), v.redirecting(l)
		dns := slices.Contains(ports, "udp/53") || slices.Contains(ports, "tcp/53")
		if f.facts["dns"], f.facts["rule"] = dns, rule; dns || rule != nil {
			f.Severity = model.Warning
		}
		f.Cause, f.LastHopAlive = strings.Join(ports, " "), v.place(mostDropped(l.drops)[0].Link, model.Ingress)
		f.Pods, f.Peers = sorted(l.pods), hosts(sorted(l.peers))
		f.silences = silencesPeers(&f.Finding)
		out = append(out, f)
	}
	return out
}

// redirecting is a rule that leads packets to a port of the node's, at which drops were
// sampled; nil where none does.
func (v *view) redirecting(l *lost) *model.PacketRule {
	return first(v.PacketRules, func(r *model.PacketRule) bool {
		return r.Target == "REDIRECT" && r.Counter.Delta > 0 && slices.ContainsFunc(v.sampledServices(l), func(s service) bool {
			return s.port >= r.ToPorts.First && s.port <= r.ToPorts.Last
		})
	})
}

// firstEphemeral is where the ports begin that Linux gives to clients
// (net.ipv4.ip_local_port_range).
const firstEphemeral = 32768

// lateReply reports whether a sample is a datagram for a port from which the pod
// itself asked: its socket is closed, and the reply came too late. Connection tracking
// knows who began; where it has no such flow, the ports say so.
func (v *view) lateReply(d *model.Drop, s *model.Sample) bool {
	if s == nil || s.Proto() != udp {
		return false
	}
	from, to, ok := s.Ports()
	if !ok {
		return false
	}
	for f := range model.Each(v.Flows) {
		switch {
		case f.Proto != udp:
		case f.Original.Src == d.Dst && f.Original.SrcPort == to:
			return true
		case f.Reply.Src == d.Dst && f.Reply.SrcPort == to:
			return false
		}
	}
	return from < firstEphemeral && to >= firstEphemeral
}
