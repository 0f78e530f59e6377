package silence

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// silence is the traffic to destinations that never answer, by their addresses.
type unansweredByDestination map[netip.Addr]*node.Lost

func (g unansweredByDestination) sum() *node.Lost {
	x := &node.Lost{}
	for _, a := range node.Sorted(g) {
		m := g[a]
		x.Pods.AddAll(m.Pods)
		x.Peers.Add(a)
		x.Packets, x.Requests, x.Errors, x.Link = x.Packets+m.Packets, x.Requests+m.Requests, x.Errors+m.Errors, m.Link
	}
	return x
}

// NoReply reports destinations beyond the node that never reply to requests which left it.
var NoReply = fault.Kind{Code: "NoReply", Severity: model.Warning, Find: noReply, Ends: fault.Hops{model.HopBeyond},
	Objects: fault.Objects{"addr"}, Traits: model.Unheard,
	Else: fault.Else{"NoReply", "NoReply-data", "NoReply-flows", "NoReply-misaddressed", "NoReply-scan", "NoReply-strayed",
		"NoReply-untracked !rules", "NoReply-arrived", "NoReply-vacant", "NoReply-kept", "NoReply-between translated",
		"NoReply-tunnel unasked", "NoReply-tunnel unsure", "NoReply-tunnel-arrives", "NoReply-replies"}}

func noReply(v *fault.Input) {
	own, translated := unansweredByDestination{}, unansweredByDestination{}  // with the pods' addresses, and with the node's
	astray, wrongMAC := unansweredByDestination{}, unansweredByDestination{} // for addresses that links have, or should; for a MAC of no next hop
	kept := fault.Fault{Page: "NoReply-untracked", Lost: &node.Lost{}}
	var rules []*model.PacketRule
	partly, flows := map[node.Pair]bool{}, map[*model.Flow]bool{}
	for p := range model.Each(v.Peers) {
		if list, by, replies := keptOf(v.Index, p); list != nil && silencedFor(v, node.SetOf(node.Clients(list)), p) == "" {
			kept.Lost.AddPair(p, node.SetOf(node.Clients(list)), replies)
			rules, partly[node.Pair{Local: p.Local, Remote: p.Remote}] = model.With(rules, by...), true
			for _, f := range list {
				flows[f] = true
			}
		}
	}
	dying(v, flows, partly)
	otherLink(v)
	for p := range model.Each(v.Peers) {
		pods := v.Senders(p)
		if partly[node.Pair{Local: p.Local, Remote: p.Remote}] || !asksInVain(v.Index, p, pods) ||
			silencedFor(v, pods, p) != "" || excuse(v, p) != "" {
			continue
		}
		group := own
		switch {
		case v.Own[p.Remote] != nil, p.Remote.IsLinkLocalUnicast() && v.ByDefaultRoute(p.Remote):
			group = astray
		case v.LeftWithWrongMAC(p):
			group = wrongMAC
		case len(pods) > 1 || !pods[p.Local]:
			group = translated
		}
		model.GetOrInsert(group, p.Remote).AddPair(p, pods, min(askedBy(v, pods, p), p.Out.Packets))
	}
	reportScans(v)
	if l := kept.Lost; l.Requests > 0 {
		kept.Facts = words.Facts{
			"link": v.LinkName(l.Link), "replies": l.Requests, "pods": node.Sorted(l.Pods), "peers": node.Sorted(l.Peers), "rules": rules,
		}
		kept.LastHopAlive = v.Place(v.LinkName(l.Link), model.Ingress)
		v.Report(kept)
	}
	for _, a := range node.Sorted(astray) {
		v.Report(strayed(v.Index, a, astray[a]))
	}
	if len(wrongMAC) > 0 {
		v.Report(misaddressed(v.Index, wrongMAC))
	}
	both := len(own) > 0 && len(translated) > 0 && v.AllSilent(node.Sorted(own), node.Sorted(translated))
	if both {
		maps.Copy(translated, own)
	} else if len(own) > 0 {
		v.Report(unansweredDestinations(v.Index, own, true, false))
	}
	if len(translated) > 0 {
		v.Report(unansweredDestinations(v.Index, translated, both, true))
	}
}

// keptOf are flows of pods that leave with the node's address and to which connection tracking gives none of the replies that
// arrive: the node keeps these. Where the pod or others get theirs, or the node itself asks, a rule must concern the flows.
func keptOf(v *node.Index, p *model.Peer) (flows []*model.Flow, rules []*model.PacketRule, replies uint64) {
	if v.Own[p.Local] == nil || p.In.Replies+p.In.Other < node.MinAsks || !node.Lasted(p) || !v.Has(model.SourceConntrack, model.SourceDrops) {
		return nil, nil, 0
	}
	st, datagrams := v.FlowsOf(p), 0
	own := slices.ContainsFunc(st.Silent, func(f *model.Flow) bool {
		return f.Proto != model.UDP && !f.Start.IsZero() && len(v.Owners[f.Original.Src]) == 0
	})
	for _, f := range st.Silent {
		pod, by := f.Original.Src, v.OneSided(f)
		others := own || st.NewReplied || st.OldReplied || v.RepliedTranslated()[node.Pair{Local: pod, Remote: p.Remote}]
		if f.Start.IsZero() || len(v.Owners[pod]) == 0 || by == nil && (others || f.Proto == model.UDP) ||
			f.Proto == model.UDP && !v.DatagramAsks(f) || !model.Lasted(f.Start, v.Window.End) {
			continue
		}
		if flows, rules = append(flows, f), model.With(rules, by...); f.Proto == model.UDP {
			datagrams++
		}
	}
	if len(flows) < node.MinAsks || p.In.Replies < uint64(len(flows)-datagrams) || p.In.Other < uint64(datagrams) {
		return nil, nil, 0
	}
	return flows, rules, p.In.Replies + model.Either(datagrams > 0, p.In.Other, 0)
}

// silentResolver reports whether a peer is a cloud's address for DNS, among others, and
// replies to no question for a name. What else it has may not be for pods.
func silentResolver(v *node.Index, p *model.Peer) bool {
	if !node.OfCloud(p.Remote) {
		return false
	}
	asked := 0
	for f := range model.Each(v.Flows) {
		if passed, _ := v.Passed(f); passed && f.Reply.Src == p.Remote && f.Reply.Dst == p.Local &&
			f.Reply.SrcPort == node.DNSPort {
			if f.Replied && !f.Start.IsZero() {
				return false
			}
			asked++
		}
	}
	return asked >= node.MinAsks || asked > 0 && p.Out.Requests == 0 && v.Asked(p) >= node.MinAsks
}

// onlyPinged reports whether a peer is a gateway beyond which others reply, and was asked for nothing but echo
// replies: the gateways of clouds forward, and give none. Where routes or flows were not read, it may be one.
func onlyPinged(v *node.Index, p *model.Peer) bool {
	near := func(l model.Link) bool {
		return v.Outer[l.Index] && slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Contains(p.Remote) })
	}
	if !v.NextHops[p.Remote] && (v.Has(model.SourceRoutes) || !slices.ContainsFunc(v.Links, near)) {
		return false
	}
	pinged := pingedOnly(v, func(f *model.Flow) bool { return f.Reply.Src == p.Remote && f.Reply.Dst == p.Local })
	return (len(pinged) > 0 || !v.Has(model.SourceConntrack)) && len(node.Answering(v, func(a netip.Addr) bool { return a == p.Remote })) > 0
}

// pingedOnly are the addresses that flows are to, where these ask for nothing but echo replies.
func pingedOnly(v *node.Index, match func(*model.Flow) bool) (to node.AddrSet) {
	for f := range model.Each(v.Flows) {
		if match(f) && f.Proto != model.ICMP && f.Proto != model.ICMPv6 {
			return nil
		} else if match(f) {
			to.Add(f.Reply.Src)
		}
	}
	return to
}

// asksInVain reports whether pods asked a peer for something, and nothing proves that it got there.
func asksInVain(v *node.Index, p *model.Peer, pods node.AddrSet) bool {
	st := v.FlowsOf(p)
	return len(pods) > 0 && p.Out.Packets > 0 && (p.Out.Requests > 0 || st.Asking+st.Older+st.HalfOpen > 0) && !v.Answered(p)
}

// askedBy is how much of what leaves for a peer and wants a reply is of pods and of no finding's flows.
func askedBy(v *fault.Input, pods node.AddrSet, p *model.Peer) uint64 {
	n := v.Asked(p)
	if st := v.FlowsOf(p); st.Own {
		// Some of what leaves is the node's.
		n = min(p.Out.Requests, st.Wanted) + st.Datagrams
	}
	if _, left := claimedOf(v, pods, p); left > 0 {
		n = min(n, left)
	}
	return n
}

// silencedFor is the finding that claims that the peer does not reply to one of the pods, for
// which the local end stands; empty for none, and where flows are left to others.
func silencedFor(v *fault.Input, pods node.AddrSet, p *model.Peer) model.Code {
	code, left := claimedOf(v, pods, p)
	return model.Either(left == 0, code, "")
}

// claimedOf is the finding that claims it, and how many flows are to other ports than it claims.
func claimedOf(v *fault.Input, pods node.AddrSet, p *model.Peer) (code model.Code, left uint64) {
	var limited []*fault.SilenceClaim
	for _, a := range append(node.Sorted(pods), p.Local) {
		for s := range model.Each(v.Silences) {
			switch {
			case !s.Claims(a, model.Host(p.Remote)):
			case s.Flows == nil:
				return s.Code, 0
			default:
				limited = append(limited, s)
			}
		}
	}
	if len(limited) == 0 {
		return "", 0
	}
	for _, f := range v.FlowsOf(p).Silent {
		concerns := func(s *fault.SilenceClaim) bool { return s.Concerns(f) }
		if pods[f.Original.Src] && (f.Proto != model.UDP || v.DatagramAsks(f)) && !slices.ContainsFunc(limited, concerns) {
			left++
		}
	}
	return limited[0].Code, left
}

// excuse is why it is no finding that a peer does not reply; empty where it must be one.
func excuse(v *fault.Input, p *model.Peer) model.Excuse {
	switch why := v.Untold(p); {
	case v.Swept[node.Pair{Local: p.Local, Remote: p.Remote}]:
		return model.ExcusedScan
	case onlyPinged(v.Index, p):
		return model.ExcusedForwarder
	case v.Classifier.Past[p.Remote]:
		return model.ExcusedGone
	case node.OfCloud(p.Remote) && !silentResolver(v.Index, p):
		return model.ExcusedPlatform
	case !model.Unicast(p.Remote):
		return model.ExcusedGroup
	case len(v.Owners[p.Remote]) > 0:
		return model.ExcusedHere
	case why != "":
		return why
	case !node.Lasted(p):
		return model.ExcusedBrief
	case v.Reflected()[p.Local] && p.In.Requests > 0:
		return model.ExcusedReflected
	case v.RepliedTranslated()[node.Pair{Local: p.Local, Remote: p.Remote}]:
		return model.ExcusedTranslated
	case askedBy(v, v.Senders(p), p) < node.MinAsks:
		return model.ExcusedFew
	}
	return ""
}

// Unreplied are the pairs that got no reply, with what claims that or excuses it.
func Unreplied(v *fault.Input) []model.Silence {
	var out []model.Silence
	for p := range model.Each(v.Peers) {
		pods := v.Senders(p)
		if !asksInVain(v.Index, p, pods) {
			continue
		}
		x := model.Silence{Local: p.Local, Remote: p.Remote, Packets: p.Out.Packets, Code: silencedFor(v, pods, p)}
		if x.Code == "" {
			x.Ordinary = excuse(v, p)
		}
		out = append(out, x)
	}
	return out
}

// unansweredDestinations is the finding on destinations that never answer what pods send with
// their own addresses, with the node's, or with both.
func unansweredDestinations(v *node.Index, g unansweredByDestination, own, translated bool) fault.Fault {
	var f fault.Fault
	x := g.sum()
	remotes := node.Sorted(x.Peers)
	f.Pods, f.Peers, f.Packets = node.Sorted(x.Pods), model.Hosts(remotes), x.Packets
	name, tunnel, locals := v.LinkName(x.Link), v.IsTunnel(x.Link), node.AddrSet{}
	for p := range model.Each(v.Peers) {
		if g[p.Remote] != nil && p.IfIndex == x.Link && p.Out.Packets > 0 && len(v.Senders(p)) > 0 {
			locals.Add(p.Local)
		}
	}
	amiss := v.Amiss(x.Link, f.Pods[0], locals, remotes)
	f.LastHopAlive = v.Place(name, model.Egress)
	pinged := pingedOnly(v, func(f *model.Flow) bool { return x.Pods[f.Original.Src] && g[f.Reply.Src] != nil })
	flows, ports := node.UnrepliedCount(v, func(pod, remote netip.Addr) bool { return g[remote] != nil && g[remote].Pods[pod] })
	led := model.Chosen(v.Flows, func(f *model.Flow) bool {
		return !f.Replied && f.Original.Dst != f.Reply.Src && g[f.Reply.Src] != nil && g[f.Reply.Src].Pods[f.Original.Src]
	})
	leading := model.Chosen(v.PacketRules, func(r *model.PacketRule) bool {
		return r.Target == "DNAT" && g[r.To.Addr()] != nil && (r.Counter.Delta > 0 || slices.Contains(node.Servers(led), r.To.Addr()))
	})
	f.Facts = words.Facts{
		"led": node.Destinations(led), "leading": leading[:min(len(leading), node.MostEvidence)],
		"link": name, "amiss": amiss, "correct": !amiss.Is(), "queue": v.DroppingQueue(name), "dropping": v.Dropping(),
		"own": own, "translated": translated, "node": ofNode(v, f.Pods),
		"program": v.RepliesToNode != nil && own && !translated, "asks": x.Requests, "errors": x.Errors, "pods": f.Pods,
		"remotes": remotes, "tunnel": tunnel, "echoes": len(pinged) == len(remotes), "flows": flows, "ports": ports,
	}
	if v.AllSilent(remotes) {
		f.Confidence, f.Facts["alone"] = model.Possible, true
		if len(remotes) > 1 {
			deadUplink(v, &f, x.Link, remotes[0])
		}
	} else {
		f.Facts["control"] = node.Answering(v, func(a netip.Addr) bool { return g[a] != nil })
	}
	if d := v.Routing().Lookup(v.SentBy(f.Pods[0], remotes[0])); d.Rule != nil && d.Route != nil && (d.Table != node.MainTable || d.Rule.Mask != 0) {
		f.Facts["rule"], f.Facts["route"] = node.ShowRule(d.Rule), v.Shown(d.Route)
	}
	// What Cilium translates has another address by then.
	f.Facts["served"] = model.Chosen(v.Cilium.Services, func(s *model.CiliumService) bool { return g[s.Addr.Addr()] != nil })
	if services := findUntranslated(v, remotes); services != nil {
		f.Facts["services"], f.Facts["unserved"], f.Facts["gone"] = services, services.List, services.Except == "gone"
		if services.Except == "gone" || services.Except == "cilium" {
			f.Facts["unserved"] = services.List[:0]
		}
		if services.All {
			f.Cause, f.Facts["all"] = "untranslated", true
			return f
		}
	}
	f.Facts["filed"], f.Facts["below"] = filedRoutes(v, remotes), v.Below(name)
	probedSilence(v, &f, remotes)
	f.Facts["inside"] = slices.ContainsFunc(remotes, func(a netip.Addr) bool { return !node.Outside(v, a) })
	if !translated {
		routesInDoubt(v, &f, remotes)
	}
	if tunnel {
		f.Facts["outer"], f.Facts["deaf"] = v.TunnelEnds(f.Pods[0], x.Link, remotes)
	}
	f.Facts["farPod"] = model.First(remotes, func(a *netip.Addr) bool { return v.Remote(*a).IsValid() })
	f.Facts["permitted"] = !tunnel && v.Permitted(locals, remotes)
	f.Facts["azure"] = v.InAzure() && !tunnel && f.Facts["permitted"] == false
	f.Facts["far"] = !translated && v.Remote(remotes[0]).IsValid() && !v.ByDefaultRoute(remotes[0])
	return f
}

// deadUplink shows what sends packets to a link by which nothing at all comes back, and
// whether that has an address for replies.
func deadUplink(v *node.Index, f *fault.Fault, link int, remote netip.Addr) {
	f.Facts["dead"], f.Facts["route"] = true, v.Shown(v.Lookup(remote))
	l := v.LinkByName[v.NatLink(link)]
	if l != nil && !slices.ContainsFunc(l.Addresses,
		func(p netip.Prefix) bool { return p.Addr().Is4() == remote.Is4() && p.Addr().IsGlobalUnicast() }) {
		f.Facts["bare"] = l.Name
	}
}

// routesInDoubt adds the routes beyond this node, to other nodes' pods and back, that
// may be missing: those that no reply, probe or file shows to be there.
func routesInDoubt(v *node.Index, f *fault.Fault, remotes []netip.Addr) {
	var there []netip.Prefix
	back, others, hosts := false, false, false
	// Addresses of the node's subnet need no route.
	near := slices.ContainsFunc(f.Pods, func(a netip.Addr) bool { return model.InAny(v.OnLink, a) })
	for _, a := range remotes {
		cidr := v.Remote(a)
		switch {
		case node.Overlay(v.Node.Plugin) || near:
		case !cidr.IsValid():
			hosts = true
			nat := v.Tables().Source(path.Packet{Src: f.Pods[0], Dst: a})
			if model.Public(a) && nat.Rule != nil && !nat.Translated {
				f.Facts["kept"] = nat.Rule
			}
		case !v.ByDefaultRoute(a):
			others = true
		default:
			thereKnown, backKnown := routesProven(v, cidr)
			if back = back || !backKnown; !thereKnown {
				there = model.With(there, cidr)
			}
		}
	}
	f.Facts["there"], f.Facts["back"], f.Facts["hosts"], f.Facts["others"] = there, back, hosts, others
}

// probedSilence adds what the node's own echo requests tell of destinations
// that do not answer pods, and whether all of them replied to one.
func probedSilence(v *node.Index, f *fault.Fault, remotes []netip.Addr) {
	var asked []*model.Probe
	replied := 0
	for _, a := range remotes {
		p := v.Echoed(a)
		if asked = append(asked, p); p != nil && p.Answered {
			replied++
		}
		for _, r := range v.RemoteRanges() {
			if r.CIDR.Contains(a) {
				asked = slices.Concat(asked, r.Probes, v.BackProbes(r.Six()))
			}
		}
	}
	f.Facts["probes"], f.Facts["up"] = node.ProbeEvidence(asked), replied > 0 && replied == len(remotes)
}

// filedRoutes are the routes of the files that lead to silent pods of other
// nodes and back, and so are not what is missing.
func filedRoutes(v *node.Index, remotes []netip.Addr) []node.RouteFact {
	own := v.OwnCIDRs()
	if len(own) == 0 || !v.Told() {
		return nil
	}
	var out []node.RouteFact
	add := func(f node.RouteFact) {
		if f.State == node.RouteCorrect {
			out = append(out, f)
		}
	}
	self, seen := v.Self(), map[netip.Prefix]bool{{}: true}
	for _, a := range remotes {
		cidr := v.Remote(a)
		if seen[cidr] {
			continue
		}
		seen[cidr] = true
		owner := v.NodeOf(cidr)
		add(v.RouteTo(cidr, owner, self))
		for _, p := range own {
			if owner != nil {
				add(v.RouteTo(p, self, owner))
			}
		}
	}
	return slices.Compact(out)
}

// strayed is the finding on requests to an address of a link that leave the node: it has the address, and frames are bridged
// past it, or what has the address, such as the node's own name server, is gone.
func strayed(v *node.Index, a netip.Addr, m *node.Lost) fault.Fault {
	name, f := v.LinkName(m.Link), fault.Fault{Page: "NoReply-strayed", Lost: m}
	f.Cause, f.Facts = "no link has the address", words.Facts{"addr": a, "link": name, "requests": m.Requests}
	if own := v.Own[a]; own != nil {
		f.Cause, f.Facts["own"] = "bridged past the node", own.Name
	} else {
		f.Facts["route"] = v.Shown(v.Lookup(a))
	}
	f.LastHopAlive = v.Place(name, model.Egress)
	return f
}

// misaddressed is the finding on requests whose frames leave for a MAC that is no next hop's.
func misaddressed(v *node.Index, g unansweredByDestination) fault.Fault {
	x := g.sum()
	remotes, name := node.Sorted(x.Peers), v.LinkName(x.Link)
	var entries []*model.Neighbor
	for _, a := range remotes {
		for _, h := range v.Routing().Lookup(v.SentBy(node.Sorted(g[a].Pods)[0], a)).Hops {
			if n := v.NeighborAt(cmp.Or(h.Gateway, a), h.IfIndex); n != nil {
				entries = model.With(entries, n)
			}
		}
	}
	frames := model.Chosen(v.Traffic.MACs, func(m *model.MACPair) bool {
		return x.Pods[m.Addr] && m.IfIndex == x.Link && m.Side == model.AsSource && m.Direction == model.Egress
	})
	var senders []*model.Pod // which hold that MAC themselves
	for _, m := range frames {
		for _, p := range v.Owners[m.Addr] {
			if v.FramesBetween(m.Addr, p.LinkIndex, model.Ingress, model.AsSource, m.Dst) > 0 {
				senders = model.With(senders, p)
			}
		}
	}
	f := fault.Fault{Page: "NoReply-misaddressed", Lost: x, Facts: words.Facts{"senders": senders,
		"remotes": remotes, "link": name, "frames": frames[:min(len(frames), node.MostEvidence)], "requests": x.Requests, "entries": entries,
		"dropping": v.Dropping(),
	}}
	f.LastHopAlive = v.Place(name, model.Egress)
	return f
}
