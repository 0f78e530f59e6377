package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// minAsks is how many requests must stay without a reply: the first packets
// of a connection get lost now and then, and are sent again.
const minAsks = 3

// silence is the traffic to destinations that never answer, by their addresses.
type unansweredByDestination map[netip.Addr]*lost

func (g unansweredByDestination) sum() *lost {
	x := &lost{}
	for _, a := range sorted(g) {
		m := g[a]
		x.pods.addAll(m.pods)
		x.peers.add(a)
		x.packets, x.requests, x.errors, x.link = x.packets+m.packets, x.requests+m.requests, x.errors+m.errors, m.link
	}
	return x
}

func findNoReply(v *view) {
	own, translated := unansweredByDestination{}, unansweredByDestination{}     // with the pods' addresses, and with the node's
	byDefault, wrongMAC := unansweredByDestination{}, unansweredByDestination{} // for addresses of links, by the default route; for a MAC of no next hop
	kept := finding{page: "NoReply-untracked", lost: &lost{}}
	var rules []*model.PacketRule
	for p := range model.Each(v.peers) {
		if pods := v.keptFrom(p); len(pods) > 0 && v.silencedFor(pods, p) == "" {
			kept.lost.addPair(p, pods, p.In.Replies)
			for _, f := range v.flowsOf(p).silent {
				if pods[f.Original.Src] {
					rules = model.With(rules, v.oneSided(f)...)
				}
			}
		}
		pods := v.senders(p)
		if !v.asksInVain(p, pods) || v.silencedFor(pods, p) != "" || v.excuse(p) != "" {
			continue
		}
		group := own
		switch {
		case p.Remote.IsLinkLocalUnicast() && v.byDefaultRoute(p.Remote):
			group = byDefault
		case v.leftWithWrongMAC(p):
			group = wrongMAC
		case !pods[p.Local]:
			group = translated
		}
		model.GetOrInsert(group, p.Remote).addPair(p, pods, min(v.askedBy(pods, p), p.Out.Packets))
	}
	v.reportScans()
	if l := kept.lost; l.requests > 0 {
		kept.facts = facts{
			"link": v.linkName(l.link), "replies": l.requests, "pods": sorted(l.pods), "peers": sorted(l.peers), "rules": rules,
		}
		if len(rules) == 0 {
			kept.Confidence = model.Likely
		}
		kept.LastHopAlive = v.place(v.linkName(l.link), model.Ingress)
		v.report(kept)
	}
	for _, a := range sorted(byDefault) {
		v.report(v.sentByDefault(a, byDefault[a]))
	}
	if len(wrongMAC) > 0 {
		v.report(v.misaddressed(wrongMAC))
	}
	both := len(own) > 0 && len(translated) > 0 && v.allSilent(sorted(own), sorted(translated))
	if both {
		maps.Copy(translated, own)
	} else if len(own) > 0 {
		v.report(unansweredDestinations(v.index, own, true, false))
	}
	if len(translated) > 0 {
		v.report(unansweredDestinations(v.index, translated, both, true))
	}
}

// keptFrom are pods whose requests to a peer leave with the node's address, and to none of which connection tracking
// gives the replies that arrive: the node keeps them. Where others get theirs, a rule must concern these pods.
func (v *index) keptFrom(p *model.Peer) addrSet {
	m, st := v.unrepliedFlows()[pair{p.Local, p.Remote}], v.flowsOf(p)
	if m == nil || m.own || !v.nodeAddrs[p.Local] || m.asks < minAsks || p.In.Replies < m.asks || !lasted(p) ||
		!v.Has(model.SourceConntrack, model.SourceDrops) {
		return nil
	}
	return setOf(slices.DeleteFunc(sorted(m.pods), func(pod netip.Addr) bool {
		ruled := func(f *model.Flow) bool { return f.Original.Src == pod && len(v.oneSided(f)) > 0 }
		return v.repliedTranslated()[pair{pod, p.Remote}] || (st.newReplied || st.oldReplied) && !slices.ContainsFunc(st.silent, ruled)
	}))
}

// dropsCarrier is a rule that drops datagrams of the node's own, as those that carry a
// tunnel are, as many at least as the tunnel got; nil where none does.
func (v *index) dropsCarrier(packets uint64) *model.PacketRule {
	return model.First(v.PacketRules, func(r *model.PacketRule) bool {
		return (r.Target == "DROP" || r.Target == "REJECT") && (r.Proto == 0 || r.Proto == udp && !r.ProtoNot) &&
			r.Counter.Delta >= packets && slices.ContainsFunc(v.Chains, func(c model.Chain) bool {
			return c.Name == r.Chain && c.Table == r.Table && c.Family == r.Family && c.Backend == r.Backend &&
				(c.Hook == "INPUT" || c.Hook == "OUTPUT")
		})
	})
}

// allSilent reports whether nobody beyond the uplinks replies, but for these addresses
// neither: what is silent may then have one cause.
func (v *index) allSilent(remotes ...[]netip.Addr) bool {
	all := slices.Concat(remotes...)
	return len(answering(v, func(a netip.Addr) bool { return slices.Contains(all, a) })) == 0 &&
		!slices.ContainsFunc(all, func(a netip.Addr) bool { return v.echoAnswered(a.Is6()) })
}

// findRepliedTranslated are the pairs of which the peer replies to the same pod's flows that are
// translated: then it is not what is silent.
func (v *index) findRepliedTranslated() map[pair]bool {
	out := map[pair]bool{}
	for f := range model.Each(v.Flows) {
		if f.Replied && !f.Start.IsZero() && f.Reply.Dst != f.Original.Src {
			out[pair{f.Original.Src, f.Reply.Src}] = true
		}
	}
	return out
}

// silentResolver reports whether a peer is a cloud's address for DNS, among others, and
// replies to no question for a name. What else it has may not be for pods.
func (v *index) silentResolver(p *model.Peer) bool {
	if !ofCloud(p.Remote) {
		return false
	}
	asked := 0
	for f := range model.Each(v.Flows) {
		if passed, _ := v.passed(f); passed && f.Reply.Src == p.Remote && f.Reply.Dst == p.Local &&
			f.Reply.SrcPort == dnsPort {
			if f.Replied && !f.Start.IsZero() {
				return false
			}
			asked++
		}
	}
	return asked >= minAsks || asked > 0 && p.Out.Requests == 0 && v.asked(p) >= minAsks
}

// onlyPinged reports whether a peer is a gateway beyond which others reply, and was asked for nothing but echo
// replies: the gateways of clouds forward, and give none. Where routes or flows were not read, it may be one.
func (v *index) onlyPinged(p *model.Peer) bool {
	near := func(l model.Link) bool {
		return v.Outer[l.Index] && slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Contains(p.Remote) })
	}
	if !v.nextHops[p.Remote] && (v.Has(model.SourceRoutes) || !slices.ContainsFunc(v.Links, near)) {
		return false
	}
	pinged := v.pingedOnly(func(f *model.Flow) bool { return f.Reply.Src == p.Remote && f.Reply.Dst == p.Local })
	return (len(pinged) > 0 || !v.Has(model.SourceConntrack)) && len(answering(v, func(a netip.Addr) bool { return a == p.Remote })) > 0
}

// pingedOnly are the addresses that flows are to, where these ask for nothing but echo replies.
func (v *index) pingedOnly(match func(*model.Flow) bool) (to addrSet) {
	for f := range model.Each(v.Flows) {
		if match(f) && f.Proto != icmp4 && f.Proto != icmp6 {
			return nil
		} else if match(f) {
			to.add(f.Reply.Src)
		}
	}
	return to
}

// lasted reports whether requests left over some time, as far as that is known:
// a destination that was just taken away is asked for a moment more.
func lasted(p *model.Peer) bool { return p.LastOut.IsZero() || model.Lasted(p.FirstOut, p.LastOut) }

// asksInVain reports whether pods asked a peer for something, and nothing proves that it got there.
func (v *index) asksInVain(p *model.Peer, pods addrSet) bool {
	st := v.flowsOf(p)
	asks := p.Out.Packets > 0 && (p.Out.Requests > 0 || st.asking+st.older+st.halfOpen > 0)
	return len(pods) > 0 && asks && !v.answered(p)
}

// askedBy is how much of what leaves for a peer and wants a reply is of pods and of no finding's flows.
func (v *view) askedBy(pods addrSet, p *model.Peer) uint64 {
	n := v.asked(p)
	if m := v.unrepliedFlows()[pair{p.Local, p.Remote}]; !pods[p.Local] && m != nil && m.own {
		// Some of what leaves is the node's.
		n = min(p.Out.Requests, m.asks) + m.datagrams
	}
	if _, left := v.claimedOf(pods, p); left > 0 {
		n = min(n, left)
	}
	return n
}

// silencedFor is the finding that claims that the peer does not reply to one of the pods, for
// which the local end stands; empty for none, and where flows are left to others.
func (v *view) silencedFor(pods addrSet, p *model.Peer) model.Code {
	code, left := v.claimedOf(pods, p)
	return model.Either(left == 0, code, "")
}

// claimedOf is the finding that claims it, and how many flows are to other ports than it claims.
func (v *view) claimedOf(pods addrSet, p *model.Peer) (code model.Code, left uint64) {
	var limited []*silenceClaim
	for _, a := range append(sorted(pods), p.Local) {
		for s := range model.Each(v.silences) {
			switch {
			case !s.claims(a, model.Host(p.Remote)):
			case s.flows == nil:
				return s.code, 0
			default:
				limited = append(limited, s)
			}
		}
	}
	if len(limited) == 0 {
		return "", 0
	}
	for _, f := range v.flowsOf(p).silent {
		concerns := func(s *silenceClaim) bool { return s.concerns(f) }
		if pods[f.Original.Src] && (f.Proto != udp || v.datagramAsks(f)) && !slices.ContainsFunc(limited, concerns) {
			left++
		}
	}
	return limited[0].code, left
}

// excuse is why it is no finding that a peer does not reply; empty where it must be one.
func (v *view) excuse(p *model.Peer) model.Excuse {
	switch why := v.untold(p); {
	case v.swept[pair{p.Local, p.Remote}]:
		return model.ExcusedScan
	case v.onlyPinged(p):
		return model.ExcusedForwarder
	case v.past[p.Remote]:
		return model.ExcusedGone
	case ofCloud(p.Remote) && !v.silentResolver(p):
		return model.ExcusedPlatform
	case !model.Unicast(p.Remote):
		return model.ExcusedGroup
	case v.nodeAddrs[p.Remote] || len(v.Owners[p.Remote]) > 0:
		return model.ExcusedHere
	case why != "":
		return why
	case !lasted(p):
		return model.ExcusedBrief
	case v.reflected()[p.Local] && p.In.Requests > 0:
		return model.ExcusedReflected
	case v.repliedTranslated()[pair{p.Local, p.Remote}]:
		return model.ExcusedTranslated
	case v.askedBy(v.senders(p), p) < minAsks:
		return model.ExcusedFew
	}
	return ""
}

// unreplied are the pairs that got no reply, with what claims that or excuses it.
func (v *view) unreplied() []model.Silence {
	var out []model.Silence
	for p := range model.Each(v.peers) {
		pods := v.senders(p)
		if !v.asksInVain(p, pods) {
			continue
		}
		x := model.Silence{Local: p.Local, Remote: p.Remote, Packets: p.Out.Packets, Code: v.silencedFor(pods, p)}
		if x.Code == "" {
			x.Ordinary = v.excuse(p)
		}
		out = append(out, x)
	}
	return out
}

// unansweredDestinations is the finding on destinations that never answer what pods send with
// their own addresses, with the node's, or with both.
func unansweredDestinations(v *index, g unansweredByDestination, own, translated bool) finding {
	var f finding
	x := g.sum()
	remotes := sorted(x.peers)
	f.Pods, f.Peers, f.Packets = sorted(x.pods), model.Hosts(remotes), x.packets
	name, tunnel := v.linkName(x.link), v.isTunnel(x.link)
	f.LastHopAlive = v.place(name, model.Egress)
	pinged := v.pingedOnly(func(f *model.Flow) bool { return x.pods[f.Original.Src] && g[f.Reply.Src] != nil })
	flows, ports := unrepliedCount(v, func(pod, remote netip.Addr) bool { return g[remote] != nil && g[remote].pods[pod] })
	led := model.Chosen(v.Flows, func(f *model.Flow) bool {
		return !f.Replied && f.Original.Dst != f.Reply.Src && g[f.Reply.Src] != nil && g[f.Reply.Src].pods[f.Original.Src]
	})
	leading := model.Chosen(v.PacketRules, func(r *model.PacketRule) bool {
		return r.Target == "DNAT" && g[r.To.Addr()] != nil && (r.Counter.Delta > 0 || slices.Contains(servers(led), r.To.Addr()))
	})
	f.facts = facts{
		"led": destinations(led), "leading": leading[:min(len(leading), mostEvidence)],
		"link": name, "queue": v.droppingQueue(name), "own": own, "translated": translated,
		"program": v.repliesToNode != nil && own && !translated, "asks": x.requests, "errors": x.errors, "pods": f.Pods,
		"remotes": remotes, "tunnel": tunnel, "echoes": len(pinged) == len(remotes), "flows": flows, "ports": ports,
	}
	if v.allSilent(remotes) {
		f.Confidence, f.facts["alone"] = model.Possible, true
		if len(remotes) > 1 {
			v.deadUplink(&f, x.link, remotes[0])
		}
	} else {
		f.facts["control"] = answering(v, func(a netip.Addr) bool { return g[a] != nil })
	}
	if d := v.Routing().Lookup(v.sentBy(f.Pods[0], remotes[0])); d.Rule != nil && d.Route != nil && d.Table != mainTable {
		f.facts["rule"], f.facts["route"] = showRule(d.Rule), v.shown(d.Route)
	}
	if services := v.findUntranslated(remotes); services != nil {
		f.facts["services"], f.facts["unserved"] = services, services.List
		if services.All {
			f.Cause, f.facts["all"] = "untranslated", true
			return f
		}
	}
	f.facts["filed"], f.facts["below"] = filedRoutes(v, remotes), v.below(name)
	probedSilence(v, &f, remotes)
	f.facts["inside"] = slices.ContainsFunc(remotes, func(a netip.Addr) bool { return !outside(v, a) })
	if !translated {
		routesInDoubt(v, &f, remotes)
	}
	if tunnel {
		f.facts["carrier"] = v.dropsCarrier(f.Packets)
	}
	f.facts["unprobed"] = len(v.Probes) == 0
	f.facts["farPod"] = model.First(remotes, func(a *netip.Addr) bool { return v.remote(*a).IsValid() })
	f.facts["azure"] = v.inAzure() && !tunnel
	f.facts["far"] = !translated && v.remote(remotes[0]).IsValid() && !v.byDefaultRoute(remotes[0])
	return f
}

// deadUplink shows what sends packets to a link by which nothing at all comes back, and
// whether that has an address for replies.
func (v *index) deadUplink(f *finding, link int, remote netip.Addr) {
	f.facts["dead"], f.facts["route"] = true, v.shown(v.lookup(remote))
	l := v.byName[v.natLink(link)]
	if l != nil && !slices.ContainsFunc(l.Addresses,
		func(p netip.Prefix) bool { return p.Addr().Is4() == remote.Is4() && p.Addr().IsGlobalUnicast() }) {
		f.facts["bare"] = l.Name
	}
}

// routesInDoubt adds the routes beyond this node, to other nodes' pods and back, that
// may be missing: those that no reply, probe or file shows to be there.
func routesInDoubt(v *index, f *finding, remotes []netip.Addr) {
	var there []netip.Prefix
	back, others, hosts := false, false, false
	// Addresses of the node's subnet need no route.
	near := slices.ContainsFunc(f.Pods, func(a netip.Addr) bool { return model.InAny(v.onLink, a) })
	for _, a := range remotes {
		cidr := v.remote(a)
		switch {
		case overlay(v.Node.Plugin) || near:
		case !cidr.IsValid():
			hosts = true
			nat := v.Tables().Source(path.Packet{Src: f.Pods[0], Dst: a})
			if model.Public(a) && nat.Rule != nil && !nat.Translated {
				f.facts["kept"] = nat.Rule
			}
		case !v.byDefaultRoute(a):
			others = true
		default:
			thereKnown, backKnown := v.routesProven(cidr)
			if back = back || !backKnown; !thereKnown {
				there = model.With(there, cidr)
			}
		}
	}
	f.facts["there"], f.facts["back"], f.facts["hosts"], f.facts["others"] = there, back, hosts, others
}

// probedSilence adds what the node's own echo requests tell of destinations
// that do not answer pods, and whether all of them replied to one.
func probedSilence(v *index, f *finding, remotes []netip.Addr) {
	var asked []*model.Probe
	replied := 0
	for _, a := range remotes {
		p := v.echoed(a)
		if asked = append(asked, p); p != nil && p.Answered {
			replied++
		}
		for _, r := range v.remoteRanges() {
			if r.cidr.Contains(a) {
				asked = slices.Concat(asked, r.probes, v.backProbes(r.six()))
			}
		}
	}
	f.facts["probes"], f.facts["up"] = probeEvidence(asked), replied > 0 && replied == len(remotes)
}

// filedRoutes are the routes of the files that lead to silent pods of other
// nodes and back, and so are not what is missing.
func filedRoutes(v *index, remotes []netip.Addr) []routeFact {
	own := v.ownCIDRs()
	if len(own) == 0 || !v.Has(model.SourceCloud) {
		return nil
	}
	var out []routeFact
	add := func(f routeFact) {
		if f.state == routeCorrect {
			out = append(out, f)
		}
	}
	self, seen := v.self(), map[netip.Prefix]bool{{}: true}
	for _, a := range remotes {
		cidr := v.remote(a)
		if seen[cidr] {
			continue
		}
		seen[cidr] = true
		owner := v.nodeOf(cidr)
		add(v.routeTo(cidr, owner, self))
		for _, p := range own {
			if owner != nil {
				add(v.routeTo(p, self, owner))
			}
		}
	}
	return slices.Compact(out)
}

// droppingQueue is the queue of a link where it dropped packets; nil where it did not.
func (v *index) droppingQueue(link string) *model.Queue {
	return model.First(v.Queues, func(q *model.Queue) bool { return q.Link == link && q.DropsDelta > 0 })
}

// sentByDefault is the finding on requests to an address of a link that leave by the
// default route: what has the address, such as the node's own name server, is gone.
func (v *index) sentByDefault(a netip.Addr, m *lost) finding {
	name := v.linkName(m.link)
	f := finding{page: "NoReply-strayed", lost: m}
	f.facts = facts{"addr": a, "link": name, "requests": m.requests, "route": v.shown(v.lookup(a))}
	f.Confidence, f.LastHopAlive, f.Cause = model.Proven, v.place(name, model.Egress), "no link has the address"
	return f
}

// misaddressed is the finding on requests whose frames leave for a MAC that is no next hop's.
func (v *index) misaddressed(g unansweredByDestination) finding {
	x := g.sum()
	remotes, name := sorted(x.peers), v.linkName(x.link)
	var entries []*model.Neighbor
	for _, a := range remotes {
		for _, h := range v.Routing().Lookup(v.sentBy(sorted(g[a].pods)[0], a)).Hops {
			if n := v.NeighborAt(cmp.Or(h.Gateway, a), h.IfIndex); n != nil {
				entries = model.With(entries, n)
			}
		}
	}
	frames := model.Chosen(v.Traffic.MACs, func(m *model.MACPair) bool {
		return x.pods[m.Addr] && m.IfIndex == x.link && m.Side == model.AsSource && m.Direction == model.Egress
	})
	f := finding{page: "NoReply-misaddressed", lost: x, facts: facts{
		"remotes": remotes, "link": name, "frames": frames[:min(len(frames), mostEvidence)], "requests": x.requests, "entries": entries,
	}}
	f.Confidence, f.LastHopAlive = model.Likely, v.place(name, model.Egress)
	return f
}
