package path

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// fromPod starts in a pod: its own route and neighbour, then the node's end of its link.
func (j *journey) fromPod(p *model.Pod) {
	if p.Has(j.dst) || j.dst.IsLoopback() {
		j.inside(p, j.dst)
		return
	}
	s := j.add(model.PathHop{Kind: model.HopPod, Role: model.RolePod, Link: p.Interface})
	s.netns, s.direction = p.Netns, model.Egress
	l := j.ByIndex[p.LinkIndex]
	if l != nil {
		s.after = j.at(l, model.Ingress)
	}
	j.srcMAC = p.MAC
	if j.connect(s) {
		return
	}
	j.podRoute(s, p)
	switch {
	case j.over:
	case !p.Up:
		j.die(s, "interface-down", words.Facts{"link": p.Interface})
	case j.refusedInside(s, p, j.packet("", p.Interface), "OUTPUT", "POSTROUTING"):
	case l == nil:
		j.add(model.PathHop{Kind: model.HopLink, Role: model.RolePodLink, Link: p.Link}).say("not-read", nil)
		j.over = true
	default:
		j.fromPodLink(l, s.next)
	}
}

// inside is the whole path between a pod and an address of its own, loopback
// included: it stays in the pod's namespace, where nothing is counted.
func (j *journey) inside(p *model.Pod, own netip.Addr) {
	h := model.PathHop{Kind: model.HopPod, Role: model.RolePod, Link: model.Either(own.IsLoopback(), "lo", p.Interface)}
	j.add(h).say("inside", words.Facts{"own": own})
	j.over = true
}

// podRoute looks up the pod's own routes, and the next hop, which stays invalid where it is not known.
func (j *journey) podRoute(s *step, p *model.Pod) {
	route := PodRoute(p, j.dst)
	rule, by := PodRuled(p, j.packet("", ""))
	if rule != nil {
		s.show("pod-rule", words.Facts{"rule": words.RoutingRuleText(rule)})
	}
	switch {
	case rule == nil:
	case by == nil:
		j.die(s, "discarded", words.Facts{"what": words.RoutingRuleText(rule)})
		return
	case by.Link != "" && by.Link != p.Interface:
		s.say("elsewhere", nil).Rules = []string{words.RouteText(by, by.Link)}
		j.over = true
		return
	default:
		route = by
	}
	switch {
	case elsewhere(p, j.dst, route):
		s.say("elsewhere", nil)
		j.over = true
	case !p.Has(j.src) && slices.Contains(p.Given, j.src):
		j.die(s, "pod-lacks", words.Facts{"link": p.Interface, "addr": j.src})
	case route != nil:
		j.byPodRoute(s, p, route)
	case len(p.Routes) == 0 && !j.Has(model.SourcePods):
		s.say("routes-unread", nil)
	case j.left():
		s.say("table-unread", words.Facts{"dst": j.dst})
	case j.Has(model.SourcePods):
		j.die(s, "no-route-in-pod", words.Facts{"dst": j.dst})
	default:
		s.say("route-unread", words.Facts{"dst": j.dst})
	}
}

// byPodRoute follows a route of the pod's to the MAC of its gateway or, on the link, of the destination.
func (j *journey) byPodRoute(s *step, p *model.Pod, route *model.Route) {
	text := words.RouteText(route, p.Interface)
	s.Rules = []string{text}
	s.say("route", words.Facts{"route": text})
	if route.Type != "unicast" && route.Type != "" {
		j.die(s, "route", words.Facts{"route": text})
		return
	}
	s.next = route.Gateway
	if !s.next.IsValid() {
		s.next = j.dst
		j.dstMAC = j.askFor(p, s)
	}
	gw := model.First(p.Gateways, func(n *model.Neighbor) bool { return n.Addr == s.next })
	if gw == nil {
		return
	}
	j.dstMAC = gw.MAC
	s.show("neighbour", words.Facts{"entry": gw})
	if right, who := j.GatewayMACs(p, gw.Addr); len(right) > 0 && Resolved(gw) && !slices.Contains(right, gw.MAC) {
		j.wrongMAC = words.Facts{"mac": gw.MAC, "who": who, "right": right[0], "entry": gw}
	}
	l := j.ByIndex[p.LinkIndex]
	switch {
	case !gw.MAC.IsZero() || l != nil && !(l.Up && l.Carrier):
		// It is resolved, or cannot be as the link is down.
	case gw.State == "FAILED" || gw.State == "INCOMPLETE":
		// It may have answered all along but for the last moment: a finding says whether packets end here.
		s.say("gateway-silent", words.Facts{"awaited": gw.State == "INCOMPLETE"}).ended = true
	}
}

// PodRoute is the route that a pod's own table has for an address by its interface to the
// node: of those with the longest prefix the one with the lowest metric, nil for none.
func PodRoute(p *model.Pod, dst netip.Addr) *model.Route {
	return longest(p.Routes, dst, func(*model.Route) bool { return true })
}

// PodLed is the route by which a pod sends a packet, as its routing rules have it; nil for none.
func PodLed(p *model.Pod, x Packet) *model.Route {
	_, by := podDecides(p, x)
	return by
}

// podDecides is the rule in a pod that decides on a packet, nil where its main table does, and the route that it takes, if any.
func podDecides(p *model.Pod, x Packet) (*model.RoutingRule, *model.Route) {
	rule, by := PodRuled(p, x)
	if rule == nil {
		by = PodRoute(p, x.Dst)
	}
	return rule, by
}

func longest(list []model.Route, dst netip.Addr, of func(*model.Route) bool) (best *model.Route) {
	for r := range model.Each(list) {
		if r.Dst.IsValid() && r.Dst.Contains(dst) && of(r) && (best == nil || r.Dst.Bits() > best.Dst.Bits() ||
			r.Dst.Bits() == best.Dst.Bits() && r.Priority < best.Priority) {
			best = r
		}
	}
	return best
}

// PodRuled is the rule in a pod that decides on a packet before its main table, and the route of another table, if one does; nil
// for none, and where that is not known.
func PodRuled(p *model.Pod, x Packet) (*model.RoutingRule, *model.Route) {
	q, of := queryOf(x), model.Either(isIPv6(x.Dst), 6, 4)
	for r := range model.Each(p.Rules) {
		if r.Family != of {
			continue
		}
		switch fit, d := q.fits(r), (Decision{Type: r.Action}); {
		case fit == No:
		case fit == Yes && d.Discards():
			return r, nil
		case fit == Maybe || r.Action != "lookup":
			return nil, nil
		case r.Table == tableMain:
			if own := PodRoute(p, q.Dst); own != nil && own.Dst.Bits() >= r.MinBits || elsewhere(p, q.Dst, own) {
				return nil, nil
			}
		default:
			route := longest(p.Tables, q.Dst, func(x *model.Route) bool { return x.Table == r.Table && x.Type != "throw" })
			if route != nil && route.Dst.Bits() >= r.MinBits {
				return r, route
			}
		}
	}
	return nil, nil
}

// PodDiscards is the rule, the route, or the rule and its route, in a pod that discards a packet; nil for none.
func PodDiscards(p *model.Pod, x Packet) (*model.RoutingRule, *model.Route) {
	rule, by := podDecides(p, x)
	if rule == nil && (by == nil || elsewhere(p, x.Dst, by)) || by != nil && !model.Discards(by.Type) {
		return nil, nil
	}
	return rule, by
}

// elsewhere reports whether the pod routes an address by another interface than
// the one to the node, rather than by the route given.
func elsewhere(p *model.Pod, dst netip.Addr, route *model.Route) bool {
	return slices.ContainsFunc(p.Elsewhere, func(x netip.Prefix) bool {
		return x.IsValid() && x.Contains(dst) && (route == nil || x.Bits() > route.Dst.Bits())
	})
}

// askFor is the MAC that a pod learns by ARP for an address on its link: that of an arpreply rule of the
// bridge, else that of the pod or node that has the address; zero where it is not known.
func (j *journey) askFor(p *model.Pod, s *step) model.MAC {
	l := j.ByIndex[p.LinkIndex]
	b := j.Bridge(l)
	if b == nil {
		if l != nil && j.Settings[LinkSetting(l.Name, "proxy_arp")] == "1" {
			return l.MAC
		}
		return model.MAC{}
	}
	if !isIPv6(j.dst) {
		ask := j.frame(b, l.Name)
		ask.SrcMAC, ask.DstMAC, ask.ARP = p.MAC, model.Broadcast, 1
		d := j.Frames().pass(&ask, "PREROUTING")
		for _, r := range d.rules {
			if r.Target == model.TargetARPReply {
				s.show("frame-rule", words.Facts{"rule": r})
				return r.MAC
			}
		}
		if d.cutOff {
			return model.MAC{}
		}
	}
	switch holder := j.pods[j.dst]; {
	case holder != nil && j.Bridge(j.ByIndex[holder.LinkIndex]) == b:
		return holder.MAC
	case j.Own[j.dst] != nil:
		return b.MAC
	}
	return model.MAC{}
}

// fromPodLink is the node's end of the pod's link.
func (j *journey) fromPodLink(l *model.Link, next netip.Addr) {
	s := j.add(model.PathHop{Kind: model.HopLink, Role: l.Role, Link: l.Name})
	s.direction, s.before = model.Ingress, j.at(l, model.Ingress)
	switch b := j.Bridge(l); {
	case !l.Up:
		j.die(s, "link-down", nil)
	case !l.Carrier:
		j.die(s, "no-carrier", nil)
	case b != nil:
		s.say("port-of", words.Facts{"bridge": b.Name})
		switch {
		case !j.dstMAC.IsZero():
		case j.Own[next] != nil:
			j.dstMAC = b.MAC
		case j.pods[next] == nil:
			// What has the address replies to the pod as it does to the node.
			if n := j.NeighborAt(next, b.Index); n != nil {
				j.dstMAC = n.MAC
			}
		}
		j.enterBridge(b, l)
	case !j.dstMAC.IsZero() && !l.MAC.IsZero() && j.dstMAC != l.MAC:
		s.Rules = append(s.Rules, l.Name+" has "+l.MAC.String())
		j.die(s, "misled", words.Facts{"mac": j.dstMAC, "who": "the link", "right": l.MAC, "entry": j.wrongMAC["entry"]})
	default:
		s.say("up", words.Facts{"filter": j.reverseFilter(l)})
		j.atIP(l)
	}
}

// toPort sends the frame out of a link: a pod's, or one that leads off the node.
func (j *journey) toPort(l *model.Link) {
	s := j.add(model.PathHop{Kind: model.HopLink, Role: l.Role, Link: l.Name}).say("goes-out", nil)
	s.direction, s.before = model.Egress, j.at(l, model.Egress)
	p := j.behind()[l.Index]
	switch {
	case !l.Up:
		j.die(s, "link-down", nil)
	case !l.Carrier && p != nil:
		j.die(s, "no-carrier", nil)
	case p != nil:
		j.toPod(p, l)
	case l.Role == model.RolePodLink:
		s.say("pod-unknown", nil)
	default:
		if j.src != j.ends.Pod && !j.reply {
			s.instead("goes-out", words.Facts{"src": j.src})
		}
		j.leave(l)
	}
}

// throughQueue is the hop of a link's queue, where it has one. It returns the point behind it.
func (j *journey) throughQueue(l *model.Link) *point {
	end := j.at(l, model.Egress)
	if q := j.queue(l); q != nil {
		s := j.add(model.PathHop{Kind: model.HopQueue, Role: l.Role, Link: l.Name, Rules: []string{q.String()}})
		s.say("queued", words.Facts{"queue": q})
		s.direction, s.before, end.queued = model.Egress, j.at(l, model.Egress), true
	}
	return end
}

func (j *journey) toPod(p *model.Pod, l *model.Link) {
	end := j.throughQueue(l)
	s := j.add(model.PathHop{Kind: model.HopPod, Role: model.RolePod, Link: p.Interface}).say("delivered",
		words.Facts{"dst": j.dst})
	s.direction, s.netns, s.before = model.Ingress, p.Netns, end
	if t := j.socket; t != nil && j.reply {
		s.say("cilium-again", words.Facts{"asked": words.AddrPort(t.asked.To, t.asked.Port)})
	}
	j.over = true
	switch {
	case !p.Up:
		j.die(s, "interface-down", words.Facts{"link": p.Interface})
	case !j.dstMAC.IsZero() && !p.MAC.IsZero() && !j.dstMAC.IsMulticast() && j.dstMAC != p.MAC:
		j.die(s, "misled", words.Facts{"mac": j.dstMAC, "who": "the pod", "right": p.MAC})
	case j.src == j.dst && !j.mayMask():
		j.die(s, "own-source", nil)
	case !p.Has(j.dst) && slices.ContainsFunc(j.steps, func(x *step) bool { return p.Has(x.next) }):
		s.instead("by-pod", nil)
	case !p.Has(j.dst):
		j.die(s, "other-pod", words.Facts{"dst": j.dst})
	default:
		j.refusedInside(s, p, j.packet(p.Interface, ""), "PREROUTING", "INPUT")
	}
}

// refusedInside asks the chains of a pod's own namespace, and reports whether they drop the packet.
func (j *journey) refusedInside(s *step, p *model.Pod, x Packet, hooks ...string) bool {
	t := j.guards()[p]
	return t != nil && j.refused(s, t.filter(x, hooks...))
}
