package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// NoReply is the code of this finding.
const NoReply model.Code = "NoReply"

var noReply = kind{
	code:     NoReply,
	severity: model.Warning,
	find:     findNoReply,
	ends:     []model.HopKind{model.HopBeyond},
}

// minAsks is how many requests must stay without a reply: the first packets
// of a connection get lost now and then, and are sent again.
const minAsks = 3

// silence is the traffic to destinations that never answer, by their addresses.
type silence map[netip.Addr]*silentDestination

type silentDestination struct {
	pods map[netip.Addr]bool
	// requests are at most packets; errors are the ICMP errors that came back.
	requests, packets, errors uint64
	link                      int
}

func findNoReply(v *view) []finding {
	own, translated := silence{}, silence{} // with the pods' addresses, and with the node's
	strayed := silence{}                    // for addresses of links, by the default route
	unreplied := v.unrepliedFlows()
	reflected, replied := v.reflected(), v.repliedTranslated()
	for p := range model.Each(v.peers) {
		if !v.unanswered(p) || v.excuse(p) != "" || v.sentAstray(p) || !v.elsewhere(p.Remote) && !v.silentResolver(p) || reflected[p.Local] && p.In.Requests > 0 {
			continue
		}
		pods, group, requests := map[netip.Addr]bool{}, own, v.asked(p)
		if len(v.pods[p.Local]) > 0 {
			pods[p.Local] = true
		} else if v.nodeAddrs[p.Local] {
			flows := unreplied[pair{p.Local, p.Remote}]
			if flows == nil {
				continue
			}
			pods, group = flows.pods, translated
			if flows.own {
				// Some of what leaves is the node's.
				requests = min(p.Out.Requests, flows.asks) + flows.datagrams
			}
		}
		if requests < minAsks || len(pods) == 0 || replied[pair{p.Local, p.Remote}] || v.silencedFor(pods, p) != "" {
			continue
		}
		if p.Remote.IsLinkLocalUnicast() && v.byDefaultRoute(p.Remote) {
			group = strayed
		}
		m := group[p.Remote]
		if m == nil {
			m = &silentDestination{pods: map[netip.Addr]bool{}, link: p.IfIndex}
			group[p.Remote] = m
		}
		maps.Copy(m.pods, pods)
		m.requests += min(requests, p.Out.Packets)
		m.packets += p.Out.Packets
		m.errors += p.In.ICMPErrors
	}
	out := v.scanned()
	for _, a := range sorted(strayed) {
		out = append(out, v.strayedRequests(a, strayed[a]))
	}
	if len(own) > 0 && len(translated) > 0 && v.allSilent(sorted(own), sorted(translated)) {
		maps.Copy(translated, own)
		return append(out, unansweredDestinations(v, translated, "with the pods' own addresses or the node's, which stands for theirs", true))
	}
	if len(own) > 0 {
		with := "with the pods' own addresses"
		if v.repliesToNode != nil {
			with += " unless a program there gives them the node's"
		}
		out = append(out, unansweredDestinations(v, own, with, false))
	}
	if len(translated) > 0 {
		out = append(out, unansweredDestinations(v, translated, "with the node's address, which stands for the pods'", true))
	}
	return out
}

// dropsCarrier is a rule that drops datagrams of the node's own, as those that carry a
// tunnel are, as many at least as the tunnel got; nil where none does.
func (v *view) dropsCarrier(packets uint64) *model.PacketRule {
	for r := range model.Each(v.PacketRules) {
		if (r.Target == "DROP" || r.Target == "REJECT") && (r.Proto == 0 || r.Proto == udp && !r.ProtoNot) && r.Counter.Delta >= packets &&
			slices.ContainsFunc(v.Chains, func(c model.Chain) bool {
				return c.Name == r.Chain && c.Table == r.Table && c.Family == r.Family && c.Backend == r.Backend && (c.Hook == "INPUT" || c.Hook == "OUTPUT")
			}) {
			return r
		}
	}
	return nil
}

// allSilent reports whether nobody beyond the uplinks replies, but for these addresses
// neither: what is silent may then have one cause.
func (v *view) allSilent(remotes ...[]netip.Addr) bool {
	all := slices.Concat(remotes...)
	return len(answering(v, func(a netip.Addr) bool { return slices.Contains(all, a) })) == 0 &&
		!slices.ContainsFunc(all, func(a netip.Addr) bool { return v.echoAnswered(a.Is6()) })
}

// repliedTranslated are the pairs of which the peer replies to the same pod's flows that are
// translated: then it is not what is silent.
func (v *view) repliedTranslated() map[pair]bool {
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
func (v *view) silentResolver(p *model.Peer) bool {
	if !ofCloud(p.Remote) {
		return false
	}
	asked := 0
	for f := range model.Each(v.Flows) {
		if passed, _ := v.passed(f); passed && f.Reply.Src == p.Remote && f.Reply.Dst == p.Local && f.Reply.SrcPort == dnsPort {
			if f.Replied && !f.Start.IsZero() {
				return false
			}
			asked++
		}
	}
	return asked >= minAsks || asked > 0 && p.Out.Requests == 0 && v.asked(p) >= minAsks
}

// onlyPinged reports whether a peer is a gateway beyond which others reply, and
// was asked for nothing but echo replies: the gateways of clouds forward, and
// give none.
func (v *view) onlyPinged(p *model.Peer) bool {
	if !v.Has(model.SourceConntrack) || !v.nextHops[p.Remote] {
		return false
	}
	pinged := false
	for f := range model.Each(v.Flows) {
		if f.Reply.Src != p.Remote || f.Reply.Dst != p.Local {
			continue
		}
		if f.Proto != icmp4 && f.Proto != icmp6 {
			return false
		}
		pinged = true
	}
	return pinged && len(answering(v, func(a netip.Addr) bool { return a == p.Remote })) > 0
}

// lasted reports whether requests left over some time, as far as that is known:
// a destination that was just taken away is asked for a moment more.
func lasted(p *model.Peer) bool {
	return p.LastOut.IsZero() || p.LastOut.Sub(p.FirstOut) >= 2*settled
}

// silencedFor is the finding that claims that the peer does not reply to one of the pods, for
// which the local end stands; empty for none.
func (v *view) silencedFor(pods map[netip.Addr]bool, p *model.Peer) model.Code {
	for _, a := range sorted(pods) {
		if code := v.silencedBy(a, host(p.Remote)); code != "" {
			return code
		}
	}
	return v.silencedBy(p.Local, host(p.Remote))
}

// excuse is why a peer does not reply in a healthy network either; empty where that is not known.
func (v *view) excuse(p *model.Peer) model.Excuse {
	switch {
	case v.swept[pair{p.Local, p.Remote}]:
		return model.ExcusedScan
	case v.onlyPinged(p):
		return model.ExcusedForwarder
	case v.past[p.Remote]:
		return model.ExcusedGone
	case ofCloud(p.Remote) && !v.silentResolver(p):
		return model.ExcusedPlatform
	case !lasted(p):
		return model.ExcusedBrief
	}
	return ""
}

// unreplied are the pairs that got no reply, with what claims that or excuses it.
func (v *view) unreplied() []model.Silence {
	flows := v.unrepliedFlows()
	var out []model.Silence
	for p := range model.Each(v.peers) {
		pods := map[netip.Addr]bool{p.Local: true}
		if behind := flows[pair{p.Local, p.Remote}]; len(v.pods[p.Local]) == 0 && behind != nil {
			pods = behind.pods
		} else if len(v.pods[p.Local]) == 0 {
			continue
		}
		if v.unanswered(p) {
			x := model.Silence{Local: p.Local, Remote: p.Remote, Packets: p.Out.Packets, Code: v.silencedFor(pods, p)}
			if x.Code == "" {
				x.Ordinary = v.excuse(p)
			}
			out = append(out, x)
		}
	}
	return out
}

// inAnyPod reports whether the pods have addresses of the node's subnet, which
// need no route.
func inAnyPod(v *view, pods map[netip.Addr]bool) bool {
	for a := range pods {
		if inAny(v.onLink, a) {
			return true
		}
	}
	return false
}

// unansweredDestinations is the finding on destinations that never answer.
func unansweredDestinations(v *view, g silence, what string, translated bool) finding {
	f := model.Finding{
		Confidence: model.Likely,
		Unseen:     []string{"whether the packets arrive: that shows only at the destination"},
	}
	pods := map[netip.Addr]bool{}
	var asks, errors uint64
	var link int
	remotes := sorted(g)
	for _, a := range remotes {
		m := g[a]
		maps.Copy(pods, m.pods)
		asks += m.requests
		errors += m.errors
		f.Packets += m.packets
		f.Peers = append(f.Peers, host(a))
		link = m.link
	}
	f.Pods = sorted(pods)
	name := v.linkName(link)
	f.LastHopAlive = v.place(name, model.Egress)
	f.Title = NoReplyFrom(f.Peers)
	f.Why = fmt.Sprintf("These requests of pods leave %s correctly, %s, but there is no reply. %s: what loses them is beyond it.",
		name, what, v.nothingDropped(name))
	if v.isTunnel(link) {
		observe(&f, model.SourceConntrack, "%s of the window from %s to %s by the tunnel %s, none replied to", count(asks, "connection"),
			count(uint64(len(pods)), "pod"), addrs(remotes), name)
	} else {
		observe(&f, model.SourceTC,
			"%s egress: %s to %s, %d of them requests, from %s; ingress: none", name, count(f.Packets, "packet"), addrs(remotes), asks, count(uint64(len(pods)), "pod"))
	}
	if errors > 0 {
		f.Why = fmt.Sprintf("These requests of pods leave %s correctly, %s. There is no reply, but ICMP errors come back: a router on the way has no route, "+
			"the last one finds no such machine, or a firewall refuses. %s.", name, what, v.nothingDropped(name))
		observe(&f, model.SourceTC, "%s ingress: %s about these packets", name, count(errors, "ICMP error"))
	}
	untranslated := v.sayUntranslated(&f, remotes)
	if v.echoesAlone(remotes, pods) {
		f.Alternatives = []string{"echo requests alone are dropped on the way, as security groups and firewalls do: nothing else was asked"}
		observe(&f, model.SourceConntrack, "nothing but echo requests was sent there")
	}
	if n, ports := unrepliedCount(v, func(pod, remote netip.Addr) bool { return g[remote] != nil && g[remote].pods[pod] }); n > 0 {
		observe(&f, model.SourceConntrack, "%s of pods to there UNREPLIED%s", count(n, "flow"), ports)
	}
	if v.allSilent(remotes) {
		f.Confidence = model.Possible
		f.Unseen = append(f.Unseen, "any answer at the uplink: without one the uplink itself may be dead")
		if len(remotes) > 1 {
			f.Alternatives = append(f.Alternatives, v.deadUplink(&f, link, remotes[0])...)
		}
	} else if control := addrs(answering(v, func(a netip.Addr) bool { return g[a] != nil })); control != "" {
		observe(&f, model.SourceTC, "replies come from %s", control)
	}
	if untranslated {
		f.Cause = "untranslated"
		return finding{Finding: f}
	}
	f.Evidence = append(f.Evidence, filedRoutes(v, remotes)...)
	up := probedSilence(v, &f, remotes)
	f.Alternatives = append(f.Alternatives, causesOfSilence(v, remotes, pods, translated, up)...)
	if v.isTunnel(link) {
		f.Alternatives = append([]string{"the network drops what carries the tunnel between the nodes: a security group, or a firewall"}, f.Alternatives...)
		if r := v.dropsCarrier(f.Packets); r != nil {
			f.Alternatives = append([]string{"a rule of this node drops what carries the tunnel, if its ports are the tunnel's"}, f.Alternatives...)
			f.Evidence = append(f.Evidence, seen(model.SourceNAT, "%s %s rule %d (%s): %s — counted %s of the node's own in the window",
				r.Table, r.Chain, r.Number, r.Backend, r.Text, count(r.Counter.Delta, "packet")))
			f.Fix = append(f.Fix, undoPacketRule(r)+" # if its ports are the tunnel's")
		}
		f.Fix = append(f.Fix, fmt.Sprintf("ip -d link show dev %s # then look on both nodes for packets of the tunnel itself, by its port: tcpdump -ni any", shellWord(name)))
	}
	if len(v.Probes) == 0 {
		f.Fix = append([]string{"lasthop check --active"}, f.Fix...)
	}
	if i := slices.IndexFunc(remotes, func(a netip.Addr) bool { return v.remote(a).IsValid() }); i >= 0 {
		f.Fix = append(f.Fix, "see whether a network policy that selects the pod "+remotes[i].String()+" leaves out these pods: kubectl get networkpolicies --all-namespaces")
	}
	if translated {
		f.Fix = append(f.Fix, "at the destination, or the firewall before it: look for packets from this node's address, and which way the answers take")
	} else {
		f.Fix = append(f.Fix, fmt.Sprintf("at the destination: tcpdump -ni any host %s", f.Pods[0]))
	}
	if v.inAzure() && !v.isTunnel(link) {
		f.Fix = append(f.Fix, "az network watcher test-ip-flow --direction Outbound --protocol TCP --vm NODE --local LOCAL_IP:PORT --remote "+
			remotes[0].String()+":PORT")
	}
	if !translated && v.remote(remotes[0]).IsValid() && !v.byDefaultRoute(remotes[0]) {
		f.Fix = append(f.Fix, fmt.Sprintf("on the node that has %s: %s route get %s", remotes[0], ip(f.Pods[0]), f.Pods[0]))
	}
	return finding{Finding: f}
}

// NoReplyFrom is the title of a finding on destinations of which nothing else is known.
func NoReplyFrom(peers []netip.Prefix) string {
	var list []netip.Addr
	for _, p := range peers {
		list = append(list, p.Addr())
	}
	return "no reply from " + addrs(list)
}

// deadUplink is what may be wrong with a link by which nothing at all comes back. It
// shows what sends packets there, and whether the link has an address for replies.
func (v *view) deadUplink(f *model.Finding, link int, remote netip.Addr) []string {
	name := v.linkName(link)
	if r := v.lookup(remote); r != nil {
		observe(f, model.SourceRoutes, "the lookup for %s ends at: %s", remote, v.routeText(r))
	}
	out := []string{fmt.Sprintf("%s leads nowhere: the wrong network or VLAN, a VPN that is gone, or a gateway that knows another MAC for this node", name)}
	l := v.links[link]
	if l != nil && l.Master != 0 {
		l = v.links[l.Master]
	}
	if l != nil && !slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == remote.Is4() && p.Addr().IsGlobalUnicast() }) {
		observe(f, model.SourceLinks, "%s has no %s address", l.Name, familyName(remote.Is6()))
		out = append(out, l.Name+" has lost its address: what configures the node's network has it, such as DHCP")
	}
	return out
}

// echoesAlone reports whether pods asked destinations for nothing but echo replies.
func (v *view) echoesAlone(remotes []netip.Addr, pods map[netip.Addr]bool) bool {
	asked := map[netip.Addr]bool{}
	for f := range model.Each(v.Flows) {
		if !pods[f.Original.Src] || !slices.Contains(remotes, f.Reply.Src) {
			continue
		}
		if f.Proto != icmp4 && f.Proto != icmp6 {
			return false
		}
		asked[f.Reply.Src] = true
	}
	return len(asked) == len(remotes)
}

// causesOfSilence are what may lose the requests to destinations that never reply,
// the likeliest first. up says that all of them replied to the node's own echo.
func causesOfSilence(v *view, remotes []netip.Addr, pods map[netip.Addr]bool, translated, up bool) []string {
	var out []string
	if slices.ContainsFunc(remotes, func(a netip.Addr) bool { return !outside(v, a) }) {
		out = append(out, "a network policy on the other side drops what these pods send")
	}
	if !translated {
		out = append(out, routesInDoubt(v, remotes, pods)...)
	}
	out = append(out,
		"a network security group of a subnet or NIC drops the sender's addresses",
		"a firewall on the way drops them, or sees only one way of them (asymmetric routes)")
	if up {
		return append(out, "the destination itself drops them (a firewall, a full queue)")
	}
	return append(out, "the destination is down, slow to reply, or drops them itself")
}

// routesInDoubt are the routes beyond this node, to other nodes' pods and back, that
// may be missing: those that no reply, probe or file shows to be there.
func routesInDoubt(v *view, remotes []netip.Addr, pods map[netip.Addr]bool) []string {
	var there []netip.Prefix
	back, others, hosts := false, false, false
	for _, a := range remotes {
		cidr := v.remote(a)
		switch {
		case overlay(v.Node.Plugin) || inAnyPod(v, pods):
		case !cidr.IsValid():
			// Who has a public address never gets a pod's.
			hosts = hosts || a.IsPrivate()
		case !v.byDefaultRoute(a):
			others = true
		default:
			thereKnown, backKnown := v.routesProven(cidr)
			if !thereKnown && !slices.Contains(there, cidr) {
				there = append(there, cidr)
			}
			back = back || !backKnown
		}
	}
	var out []string
	switch {
	case len(there) > 0 && back:
		out = append(out, "the network lacks the route to "+addrs(there)+", or the one back to this node's pods")
	case len(there) > 0:
		out = append(out, "the network lacks the route to "+addrs(there))
	case back:
		out = append(out, "the network lacks the route back to this node's pods")
	}
	if hosts {
		out = append(out, "the destination, or a router on the way, lacks the route back to this node's pods")
	}
	if others {
		out = append(out, "the node of these pods has no route back to this node's")
	}
	return out
}

// probedSilence adds what the node's own echo requests tell of destinations
// that do not answer pods, and reports whether all of them replied to one.
func probedSilence(v *view, f *model.Finding, remotes []netip.Addr) (up bool) {
	var asked []*model.Probe
	replied := 0
	for _, a := range remotes {
		if p := v.echoed(a); p != nil {
			asked = append(asked, p)
			if p.Answered {
				replied++
			}
		}
		for _, r := range v.remoteRanges() {
			if r.cidr.Contains(a) {
				asked = append(asked, r.probes...)
				asked = append(asked, v.backProbes(r.six())...)
			}
		}
	}
	f.Evidence = append(f.Evidence, probeEvidence(asked)...)
	if replied > 0 && replied == len(remotes) {
		f.Why += " The node's own echo gets a reply from " + addrs(remotes) + ": up, and the forward path works."
		return true
	}
	return false
}

// filedRoutes are the routes of the files that lead to silent pods of other
// nodes and back, and so are not what is missing.
func filedRoutes(v *view, remotes []netip.Addr) []model.Evidence {
	own := v.ownCIDRs()
	if len(own) == 0 || !v.Has(model.SourceCloud) {
		return nil
	}
	var out []model.Evidence
	seen := map[netip.Prefix]bool{}
	self := v.self()
	for _, a := range remotes {
		cidr := v.remote(a)
		if !cidr.IsValid() || seen[cidr] {
			continue
		}
		seen[cidr] = true
		owner := v.nodeOf(cidr)
		if f := v.routeTo(cidr, owner, self); f.state == routeCorrect {
			out = append(out, f.evidence())
		}
		if owner == nil {
			continue
		}
		for _, p := range own {
			if f := v.routeTo(p, self, owner); f.state == routeCorrect {
				out = append(out, f.evidence())
			}
		}
	}
	return slices.CompactFunc(out, func(a, b model.Evidence) bool { return a.Text == b.Text })
}

// nothingDropped says what this node dropped of packets that left by a link.
func (v *view) nothingDropped(link string) string {
	for _, q := range v.Queues {
		if q.Link == link && q.DropsDelta > 0 {
			return fmt.Sprintf("Packets that the queue of %s dropped (%d of any sender in the window) are not counted here", link, q.DropsDelta)
		}
	}
	return "Nothing is dropped on this node"
}

// strayedRequests is the finding on requests to an address of a link that leave by the
// default route: what has the address, such as the node's own name server, is gone.
func (v *view) strayedRequests(a netip.Addr, m *silentDestination) finding {
	name := v.linkName(m.link)
	f := model.Finding{
		Confidence: model.Proven, Pods: sorted(m.pods), Peers: []netip.Prefix{host(a)}, Packets: m.packets, LastHopAlive: v.place(name, model.Egress),
		Cause: "no link has the address",
		Title: fmt.Sprintf("no reply from %s, which no link of the node has", a),
		Why: fmt.Sprintf("%s is an address for one link alone, and no link of this node has it: requests of pods to it leave %s by the default route, where "+
			"nobody has it. An agent that should have the address on each node, such as NodeLocal DNSCache, does not run here.", a, name),
		Alternatives: []string{"a service of the cloud has the address, and does not reply to these pods"},
		Fix: []string{
			"kubectl get pods -A -o wide --field-selector spec.nodeName=NODE # is the agent that serves " + a.String() + " running? Start it, or let pods ask another address",
			"ip -4 addr show to " + a.String() + " # the agent adds it to a dummy link",
		},
	}
	observe(&f, model.SourceTC, "%s egress: %s to %s, %d of them requests; ingress: none", name, count(m.packets, "packet"), a, m.requests)
	if r := v.lookup(a); r != nil {
		observe(&f, model.SourceRoutes, "the lookup for %s ends at: %s", a, v.routeText(r))
	}
	return finding{Finding: f}
}
