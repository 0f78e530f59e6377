package path

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// enterBridge takes a frame in at a port of a bridge.
func (j *journey) enterBridge(b, port *model.Link) {
	s := j.add(model.PathHop{Kind: model.HopBridge, Role: model.RoleBridge, Link: b.Name})
	s.direction = model.Ingress
	if shut(port) {
		j.die(s, "port-shut", words.Facts{"port": port})
		return
	}
	f := j.frame(b, port.Name)
	ruled := j.Frames().pass(&f, "BROUTING", "PREROUTING")
	if !j.obey(s, ruled) {
		return
	}
	j.dstMAC, j.srcMAC, j.through = f.DstMAC, f.SrcMAC, port
	owned := j.bridgeOwns(b, f.DstMAC)
	switch {
	case !ruled.routed && !slices.Contains(j.Takes(port), f.DstMAC) && (owned || j.local(b, port, f.DstMAC)):
		j.die(s, "not-the-nodes", words.Facts{"mac": f.DstMAC})
		return
	case ruled.routed || owned:
		s.say("to-node", nil).rewritten(ruled)
		s.after = j.at(b, model.Ingress)
		if j.obey(s, j.Frames().pass(&f, "INPUT")) {
			j.upFrom(b, s)
		}
		return
	case j.wrongMAC != nil && len(ruled.rules) == 0:
		j.die(s, "misled", j.wrongMAC)
		return
	}
	switch out := j.portOf(b, f.DstMAC); {
	case out == nil:
		j.flooded(s, b, ruled)
	case out.Index == port.Index && !port.Hairpin:
		j.die(s, "no-hairpin", nil)
	case port.Port != nil && out.Port != nil && port.Port.Isolated && out.Port.Isolated:
		j.die(s, "isolated", words.Facts{"in": port.Name, "out": out.Name})
	default:
		s.say("bridged", words.Facts{"link": out.Name}).rewritten(ruled)
		j.bridged(s, b, out, &f)
	}
}

// shut reports whether a port is known to be in a state in which it forwards nothing. Where
// its link is down, that ends what it sends.
func shut(port *model.Link) bool {
	return port.Up && port.Carrier && port.Port != nil && port.Port.State != "" && port.Port.State != model.PortForwarding
}

// frame is the packet as a bridge's rules see it that came in by a port, or by none.
func (j *journey) frame(b *model.Link, in string) Frame {
	bridge := []string{b.Name}
	return Frame{
		Src: j.src, Dst: j.dst, SrcMAC: j.srcMAC, DstMAC: j.dstMAC,
		In: []string{in}, Out: []string{""}, LogicalIn: bridge, LogicalOut: bridge,
	}
}

// upFrom gives a frame to the node. Where bridges call the IP layer's chains, the destination is translated before the
// bridge's own link sees the packet; a packet that then leaves by the same bridge never passes that link.
func (j *journey) upFrom(b *model.Link, s *step) {
	dst, from := j.dst, len(j.steps)
	j.atIP(b)
	if j.dst == dst || !j.filtersBridged(isIPv6(dst)) {
		return
	}
	s.after.dst = j.dst
	back := slices.IndexFunc(j.steps[from:], func(s *step) bool {
		return s.Kind == model.HopBridge && s.Link == b.Name && s.direction == model.Egress
	})
	if back < 0 {
		return
	}
	s.after, j.steps[from+back].before = nil, nil
	for _, passed := range j.steps[from : from+back] {
		passed.after = nil
	}
}

// obey records what a bridge's rules do, and reports whether the frame goes on.
func (j *journey) obey(s *step, r frameDecision) bool {
	for _, rule := range r.rules {
		s.show("frame-rule", words.Facts{"rule": rule})
	}
	if r.policy != nil {
		s.show("policy", words.Facts{"policy": r.policy})
	}
	if r.does != drops {
		return true
	}
	facts := words.Facts{"policy": r.policy}
	if n := len(r.rules); n > 0 && r.policy == nil {
		facts["rule"] = r.rules[n-1]
	}
	j.die(s, "bridge-rule", facts)
	return false
}

// pass takes a frame through a bridge's hooks to a port, and reports whether it leaves by it.
func (j *journey) pass(s *step, f *Frame, out *model.Link, hooks ...string) bool {
	if shut(out) {
		j.die(s, "port-shut", words.Facts{"port": out})
		return false
	}
	f.Out = []string{out.Name}
	ruled := j.Frames().pass(f, hooks...)
	if !j.obey(s, ruled) {
		return false
	}
	s.rewritten(ruled)
	j.dstMAC, j.srcMAC = f.DstMAC, f.SrcMAC
	return true
}

func (s *step) rewritten(r frameDecision) {
	for _, rule := range r.rules {
		if rule.Target == model.TargetDNAT || rule.Target == model.TargetSNAT {
			s.say("mac-becomes", words.Facts{"destination": rule.Target == model.TargetDNAT, "mac": rule.MAC})
		}
	}
	if r.cutOff || r.does == unknown {
		s.say("bridge-unknown", words.Facts{"cutOff": r.cutOff})
	}
}

// AppliesTo reports whether a bridge looks a forwarding entry up for frames by a port, or
// for the node's own with the bridge for port: by VLAN only where it filters.
func AppliesTo(e *model.FDBEntry, b, port *model.Link) bool {
	if e.Bridge != b.Index {
		return false
	}
	if b.Bridge == nil || !b.Bridge.VLANFiltering {
		return e.VLAN == 0
	}
	return port.VLANs != nil && e.VLAN != 0 && e.VLAN == port.VLANs.PVID
}

// local reports whether somebody wrote an entry by which frames for the MAC are the node's.
func (j *journey) local(b, port *model.Link, m model.MAC) bool {
	return slices.ContainsFunc(j.hw().fdb[m], func(e *model.FDBEntry) bool { return e.Local && AppliesTo(e, b, port) })
}

// bridgeOwns reports whether a bridge gives frames for the MAC to the node.
func (j *journey) bridgeOwns(b *model.Link, m model.MAC) bool {
	if m.IsZero() {
		return false
	}
	return m == b.MAC || slices.ContainsFunc(j.hw().links[m], func(l *model.Link) bool { return l.Master == b.Index })
}

// portOf is the port behind which a MAC is: a pod's, one that the bridge has learnt, or for an unknown MAC the
// port that leads off the node; nil where no port has it.
func (j *journey) portOf(b *model.Link, m model.MAC) *model.Link {
	isPort := func(ifindex int) bool {
		l := j.ByIndex[ifindex]
		return l != nil && l.Master == b.Index && l.Index != b.Index
	}
	if !m.IsZero() {
		from := model.Either(j.through != nil && j.through.Master == b.Index, j.through, b)
		// A static entry does not follow the pod.
		known := j.hw()
		static := func(e *model.FDBEntry) bool { return e.Static && AppliesTo(e, b, from) }
		if e := model.Find(known.fdb[m], static); e != nil && j.ByIndex[e.IfIndex] != nil {
			return j.ByIndex[e.IfIndex]
		}
		if p := model.Find(known.pods[m], func(p *model.Pod) bool { return isPort(p.LinkIndex) }); p != nil {
			return j.ByIndex[p.LinkIndex]
		}
		if e := model.Find(known.fdb[m], func(e *model.FDBEntry) bool { return isPort(e.IfIndex) }); e != nil {
			return j.ByIndex[e.IfIndex]
		}
	}
	switch p := j.pods[j.dst]; {
	case p == nil || j.IsFabric(m):
	case !m.IsZero():
		// The pod is here, and the frame is for somebody else.
		return nil
	case isPort(p.LinkIndex):
		return j.ByIndex[p.LinkIndex]
	}
	if up := j.uplinkOf(b); up != b {
		return up
	}
	return nil
}

// flooded ends with a frame for a MAC that no port is known to have.
func (j *journey) flooded(s *step, b *model.Link, r frameDecision) {
	j.over = true
	if j.dstMAC.IsZero() {
		s.instead("mac-unknown", nil)
		return
	}
	s.instead("flooded", words.Facts{"bridge": b.Name, "mac": j.dstMAC})
	s.rewritten(r)
	if p := j.pods[j.dst]; p != nil && !p.MAC.IsZero() && p.MAC != j.dstMAC {
		rule := model.Find(r.rules, func(x *model.FrameRule) bool { return x.Target == model.TargetDNAT && x.MAC == j.dstMAC })
		j.die(s, "no-port-has", words.Facts{"mac": j.dstMAC, "right": p.MAC, "rule": rule})
		return
	}
	s.ended, s.Dead = true, j.Has(model.SourceBridge, model.SourcePods)
}

// bridged takes a frame from port to port, and through the IP layer's chains where bridges call them.
func (j *journey) bridged(s *step, b, out *model.Link, f *Frame) {
	if !j.pass(s, f, out, "FORWARD", "POSTROUTING") {
		return
	}
	if !j.filtersBridged(isIPv6(j.dst)) && j.reply && j.src != j.ends.To {
		j.die(s, "past-translation", words.Facts{"from": j.src, "asked": j.ends.To, "setting": BridgeCalls(isIPv6(j.dst))})
		return
	}
	if j.filtersBridged(isIPv6(j.dst)) {
		before := j.dst
		n := j.translateDestination("PREROUTING")
		if j.dst != before {
			// A new destination is routed anew.
			j.routed(b, j.Query(j.packet(b.Name, "")), n)
			return
		}
		if !j.over {
			j.filtered(b.Name, b.Name, "PREROUTING", "FORWARD", "POSTROUTING")
		}
		if j.over {
			return
		}
		j.translateSource(n, b.Name)
	}
	j.toPort(out)
}

// outOfBridge sends a packet of the node's, or one that it routed, out of a bridge.
func (j *journey) outOfBridge(b *model.Link) {
	s := j.add(model.PathHop{Kind: model.HopBridge, Role: model.RoleBridge, Link: b.Name})
	s.direction, s.before = model.Egress, j.at(b, model.Egress)
	f := j.frame(b, "")
	switch out := j.portOf(b, f.DstMAC); {
	case !b.Up:
		j.die(s, "bridge-down", nil)
	case out == nil && j.bridgeOwns(b, f.DstMAC):
		j.die(s, "bridges-own", words.Facts{"mac": f.DstMAC})
	case out == nil:
		j.flooded(s, b, frameDecision{})
	case out == j.through && !out.Hairpin && !b.Promisc && !j.reply && j.dst != j.ends.To && j.filtersBridged(isIPv6(j.dst)):
		// Netfilter of a bridge sends what it translated on from port to port.
		j.die(s, "no-hairpin", nil)
	default:
		s.say("to", words.Facts{"link": out.Name})
		if j.pass(s, &f, out, "OUTPUT", "POSTROUTING") {
			j.toPort(out)
		}
	}
}
