package path

import (
	"fmt"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// enterBridge takes a frame in at a port of a bridge.
func (j *journey) enterBridge(b, port *model.Link) {
	s := j.add(model.PathHop{Kind: model.HopBridge, Role: model.RoleBridge, Link: b.Name})
	f := frame{src: j.src, dst: j.dst, srcMAC: j.srcMAC, dstMAC: j.dstMAC, in: port.Name, bridge: b.Name}
	s.direction = model.Ingress
	ruled := j.frames.pass("BROUTING", &f)
	if !j.obey(s, ruled) {
		return
	}
	routed := ruled.routed
	if !routed {
		ruled = j.frames.pass("PREROUTING", &f)
		if !j.obey(s, ruled) {
			return
		}
		routed = ruled.routed
	}
	j.dstMAC, j.srcMAC, j.through = f.dstMAC, f.srcMAC, port
	if routed || j.bridgeOwns(b, f.dstMAC) {
		s.Decision = join("up to the node", rewrites(ruled))
		s.after = j.at(b, model.Ingress)
		if ruled := j.frames.pass("INPUT", &f); !j.obey(s, ruled) {
			return
		}
		j.upFrom(b, s)
		return
	}
	out := j.portOf(b, f.dstMAC)
	if out == nil {
		j.flooded(s, b, ruled)
		return
	}
	if out.Index == port.Index && !port.Hairpin {
		j.die(s, "the way on is the port that it came by, and hairpin is off")
		return
	}
	s.Decision = join("bridged to "+out.Name, rewrites(ruled))
	j.bridged(s, b, out, &f)
}

// upFrom gives a frame to the node. Where bridges call the IP layer's chains,
// destinations are translated before the bridge's own link sees the packet; what
// then leaves by the same bridge never comes up.
func (j *journey) upFrom(b *model.Link, s *step) {
	dst, from := j.dst, len(j.steps)
	j.atIP(b)
	if j.dst == dst || !j.filtersBridged(isSix(dst)) {
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

// obey notes what a bridge's rules do, and reports whether the frame goes on.
func (j *journey) obey(s *step, r frameRuling) bool {
	for _, rule := range r.decides {
		s.Rules = append(s.Rules, frameRuleText(rule))
	}
	if r.policy != nil {
		s.Rules = append(s.Rules, fmt.Sprintf("%s %s policy %s", r.policy.Table, r.policy.Name, r.policy.Policy))
	}
	if r.verdict != dropped {
		return true
	}
	why := "dropped by a bridge rule"
	if n := len(r.decides); n > 0 && r.policy == nil {
		last := r.decides[n-1]
		why = fmt.Sprintf("dropped by %s %s rule %d of the bridge", last.Table, last.Chain, last.Number)
	} else if r.policy != nil {
		why = fmt.Sprintf("dropped by the policy of the bridge's %s %s", r.policy.Table, r.policy.Name)
	}
	j.die(s, why)
	return false
}

// rewrites says in words which MACs rules wrote.
func rewrites(r frameRuling) string {
	var out string
	for _, rule := range r.decides {
		switch rule.Target {
		case model.TargetDNAT:
			out = join(out, "destination MAC becomes "+rule.MAC.String())
		case model.TargetSNAT:
			out = join(out, "source MAC becomes "+rule.MAC.String())
		}
	}
	switch {
	case r.cutOff:
		out = join(out, "unknown what the bridge's rules do: there are more than lasthop follows")
	case r.verdict == unknown:
		out = join(out, "a rule with a match that was not read may decide otherwise")
	}
	return out
}

// bridgeOwns reports whether a bridge gives frames for the MAC to the node.
func (j *journey) bridgeOwns(b *model.Link, m model.MAC) bool {
	if m.IsZero() {
		return false
	}
	if m == b.MAC {
		return true
	}
	for i := range j.Links {
		if l := &j.Links[i]; l.Master == b.Index && l.MAC == m {
			return true
		}
	}
	return false
}

// portOf is the port behind which a MAC is: a pod's, one that the bridge has
// learnt, or for what is not known the port that leads off the node; nil where
// no port has it.
func (j *journey) portOf(b *model.Link, m model.MAC) *model.Link {
	if !m.IsZero() {
		for i := range j.Pods {
			p := &j.Pods[i]
			if l := j.links[p.LinkIndex]; l != nil && l.Master == b.Index && p.MAC == m {
				return l
			}
		}
		for _, e := range j.FDB {
			if l := j.links[e.IfIndex]; e.MAC == m && l != nil && l.Master == b.Index && l.Index != b.Index {
				return l
			}
		}
	}
	if p := j.pods[j.dst]; p != nil && !j.isFabric(m) {
		if l := j.links[p.LinkIndex]; m.IsZero() && l != nil && l.Master == b.Index {
			return l
		}
		if !m.IsZero() {
			// The pod is here, and the frame is for somebody else.
			return nil
		}
	}
	if up := j.uplinkOf(b); up != b {
		return up
	}
	return nil
}

// flooded ends with a frame for a MAC that no port is known to have.
func (j *journey) flooded(s *step, b *model.Link, r frameRuling) {
	j.over = true
	if j.dstMAC.IsZero() {
		s.Decision = "the frame's destination MAC is not known"
		return
	}
	s.Decision = join(fmt.Sprintf("no port of %s has %s: flooded to all", b.Name, j.dstMAC), rewrites(r))
	if p := j.pods[j.dst]; p != nil && !p.MAC.IsZero() && p.MAC != j.dstMAC {
		j.die(s, fmt.Sprintf("frames are for %s, which no port has; the pod has %s", j.dstMAC, p.MAC))
		return
	}
	s.ended = true
	s.Dead = j.Has(model.SourceBridge, model.SourcePods)
}

// bridged passes a frame on from port to port, and through the IP layer's chains
// where bridges call these.
func (j *journey) bridged(s *step, b, out *model.Link, f *frame) {
	f.out = out.Name
	for _, hook := range []string{"FORWARD", "POSTROUTING"} {
		ruled := j.frames.pass(hook, f)
		if !j.obey(s, ruled) {
			return
		}
		s.Decision = join(s.Decision, rewrites(ruled))
	}
	j.dstMAC, j.srcMAC = f.dstMAC, f.srcMAC
	if j.filtersBridged(isSix(j.dst)) {
		before := j.dst
		n := j.translateDestination("PREROUTING")
		if j.over {
			return
		}
		if j.dst != before {
			// A new destination is routed anew.
			j.routed(b, n)
			return
		}
		j.judge(flowPacket{in: b.Name, out: b.Name}, "PREROUTING", "FORWARD", "POSTROUTING")
		if j.over {
			return
		}
		j.translateSource(n, b.Name)
	}
	j.toPort(out)
}

// outOfBridge sends a packet of the node's, or one that it routed, out of a
// bridge.
func (j *journey) outOfBridge(b *model.Link) {
	s := j.add(model.PathHop{Kind: model.HopBridge, Role: model.RoleBridge, Link: b.Name})
	s.direction, s.before = model.Egress, j.at(b, model.Egress)
	if !b.Up {
		j.die(s, "the bridge is down")
		return
	}
	f := frame{src: j.src, dst: j.dst, srcMAC: j.srcMAC, dstMAC: j.dstMAC, bridge: b.Name}
	out := j.portOf(b, f.dstMAC)
	if out == nil {
		if j.bridgeOwns(b, f.dstMAC) {
			j.die(s, "the neighbour's MAC "+f.dstMAC.String()+" is the bridge's own")
			return
		}
		j.flooded(s, b, frameRuling{})
		return
	}
	f.out = out.Name
	s.Decision = "to " + out.Name
	for _, hook := range []string{"OUTPUT", "POSTROUTING"} {
		ruled := j.frames.pass(hook, &f)
		if !j.obey(s, ruled) {
			return
		}
		s.Decision = join(s.Decision, rewrites(ruled))
	}
	j.dstMAC, j.srcMAC = f.dstMAC, f.srcMAC
	j.toPort(out)
}
