package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
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
		s := v.samples.Of(d)
		return d.NoSocket() && v.drops.Lost(d) && (d.Reason != "" || s != nil)
	}
	reply := func(d *model.Drop) bool { return v.lateReply(d, v.samples.Of(d)) }
	return slices.Concat(
		v.atSockets(func(d *model.Drop) bool { return nobody(d) && !reply(d) }, v.unheard),
		v.atSockets(func(d *model.Drop) bool { return nobody(d) && reply(d) }, v.lateReplies),
		v.atNode(func(d *model.Drop) bool { return nobody(d) && !reply(d) }),
		v.atLoopback(nobody))
}

// atLoopback are the findings on pods that send what is for others to their own loopback
// address, as by a rule in the pod that leads it to a proxy (REDIRECT), where nobody listens.
func (v *view) atLoopback(match func(*model.Drop) bool) []finding {
	byPod := map[uint32]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if d.Dst.IsLoopback() && match(d) && v.inPod(d).IsValid() && !v.explained(d) {
			entry(byPod, d.Netns).addFor(d.Src, d)
		}
	}
	var out []finding
	for _, l := range byPod {
		if l.packets < minDrops {
			continue
		}
		f := l.finding()
		at, _ := v.sampledPorts(l)
		p := v.pods[f.Pods[0]][0]
		f.Severity, f.Confidence, f.Peers = model.Warning, model.Likely, nil
		f.LastHopAlive = model.Place{Link: "lo", Role: model.RolePod, Direction: model.Ingress}
		f.Title = fmt.Sprintf("nobody listens at %s in %s", at, words.PodName(p))
		f.Why = fmt.Sprintf("Packets from the own address of %s end at its loopback address, as where a rule in the pod redirects them "+
			"to a proxy. Nobody listens there (%s), so nothing that is redirected leaves the pod.", words.PodName(p), at)
		f.Evidence = dropEvidence(l.drops)
		f.Alternatives = []string{"a program in the pod binds the pod's own address and connects to the loopback address"}
		f.Unseen = []string{"the rules in the pod's own namespace"}
		f.Fix = []string{words.Inside(p) + "ss -lntu # compare with the rules, and see why the proxy ended", words.Inside(p) + "nft list ruleset"}
		out = append(out, finding{Finding: f, claims: sameDrops(l.drops), silences: silencesPeers(&f)})
	}
	return out
}

// atNode are the findings on what pods send to addresses of the node where nobody
// listens.
func (v *view) atNode(match func(*model.Drop) bool) []finding {
	byAddr := map[netip.Addr]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if match(d) && v.nodeAddrs[d.Dst] && len(v.pods[d.Src]) > 0 && (d.Netns == 0 || d.Netns == v.Node.Netns) && !v.explained(d) {
			entry(byAddr, d.Dst).addFor(d.Src, d)
		}
	}
	var out []finding
	for _, a := range sorted(byAddr) {
		l := byAddr[a]
		if l.packets < minDrops {
			continue
		}
		f := l.finding()
		at, ports := v.sampledPorts(l)
		f.Cause = strings.Join(ports, " ")
		f.LastHopAlive = v.place(mostDropped(l.drops)[0].Link, model.Ingress)
		f.Title = "nobody listens at the node's address " + at
		f.Why = fmt.Sprintf("Packets of %s reached the node and no socket of its own took them: nobody listens at %s.", words.Count(uint64(len(f.Pods)), "pod"), at)
		if slices.ContainsFunc(ports, func(p string) bool { return p == "udp/53" || p == "tcp/53" }) {
			f.Severity = model.Warning
			f.Why += " Pods ask a name server there, such as the node's DNS cache: it is not running, or listens elsewhere."
		}
		f.Evidence = dropEvidence(l.drops)
		if r := v.redirecting(l); r != nil {
			f.Severity = model.Warning
			f.Why += " A rule of the node leads there what pods send elsewhere, as to a proxy: it is not running, or listens elsewhere."
			f.Evidence = append(f.Evidence, packetRuleEvidence("this rule leads there", r))
		}
		f.Fix = []string{"ss -lntup # compare with the address and port that pods ask, and start what should listen"}
		out = append(out, finding{Finding: f, claims: sameDrops(l.drops), silences: silencesPeers(&f)})
	}
	return out
}

// redirecting is a rule that leads packets to a port of the node's, at which drops were
// sampled; nil where none does.
func (v *view) redirecting(l *lost) *model.PacketRule {
	for r := range model.Each(v.PacketRules) {
		if r.Target == "REDIRECT" && r.Counter.Delta > 0 && slices.ContainsFunc(l.drops, func(d *model.Drop) bool {
			s := v.samples.Of(d)
			if s == nil {
				return false
			}
			_, port, ok := s.Ports()
			return ok && port >= r.ToPorts.First && port <= r.ToPorts.Last
		}) {
			return r
		}
	}
	return nil
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

// lateReplies is the finding on replies for which nobody waits any more.
func (v *view) lateReplies(p *model.Pod, l *lost) model.Finding {
	f := l.finding()
	at, _ := v.sampledPorts(l)
	f.Title = "late replies for " + at
	f.Why = fmt.Sprintf("Replies reached %s at %s after the socket that asked was closed: who asked had given up, or wanted one reply only. "+
		"The network is not at fault.", words.PodName(p), at)
	f.Evidence = dropEvidence(l.drops)
	f.Fix = []string{fmt.Sprintf("look at %s: whether it replies slowly or twice; and at the time that the pod waits", words.Addrs(f.Peers))}
	return f
}

func (v *view) unheard(p *model.Pod, l *lost) model.Finding {
	f := l.finding()
	at, _ := v.sampledPorts(l)
	f.Title = "nobody listens at " + at
	f.Why = fmt.Sprintf("The packets reached %s and no socket took them: nobody listens at %s. The network is not at fault.", words.PodName(p), at)
	f.Evidence = dropEvidence(l.drops)
	var resets, errors uint64
	for _, h := range v.hops[f.Pods[0]] {
		if h.IfIndex == p.LinkIndex && h.Direction == model.Ingress && h.Side == model.AsSource {
			resets, errors = resets+h.RST, errors+h.ICMPErrors
		}
	}
	if resets+errors > 0 {
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceTC, Text: fmt.Sprintf(
			"%s ingress: the pod answered with %s and %s", p.Link, words.Count(resets, "reset"), words.Count(errors, "ICMP error"))})
	}
	f.Fix = []string{words.Inside(p) + "ss -lntu # compare with the port and address that the clients use"}
	return f
}
