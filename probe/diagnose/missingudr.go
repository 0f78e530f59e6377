package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// MissingUDR is the code of this finding.
const MissingUDR model.Code = "MissingUDR"

var missingUDR = kind{
	code:     MissingUDR,
	severity: model.Critical,
	find:     findMissingUDR,
	ends:     []model.HopKind{model.HopBeyond},
}

func findMissingUDR(v *view) []finding {
	if overlay(v.Node.Plugin) {
		return nil
	}
	s := udrSearch{view: v, all: v.unclaimedRanges(v.remoteRanges()), own: v.ownCIDRs()}
	s.readFiles()
	var out []finding
	for _, c := range s.causes {
		out = append(out, s.noReturn(c.ranges, c, missingUnknown))
	}
	var silent []*remoteRange
	answering := 0
	for _, r := range s.all {
		switch {
		case r.answers:
			answering++
		case len(r.silent) > 0 && !s.settled[r.cidr] && !v.silenced(netip.Addr{}, r.cidr):
			silent = append(silent, r)
		}
	}
	return append(out, s.inferred(silent, answering)...)
}

// udrSearch is what is known of the other nodes' ranges.
type udrSearch struct {
	*view
	all []*remoteRange
	own []netip.Prefix
	// causes are what the files say is missing. For the other ranges filed is
	// what they say of the routes, and settled holds those that they leave no
	// doubt about, and those with a cause.
	causes  []*udrCause
	filed   map[netip.Prefix][]model.Evidence
	settled map[netip.Prefix]bool
}

// missingRoute is which routes are missing, as far as that is known.
type missingRoute int

const (
	missingUnknown missingRoute = iota
	// missingNone: both paths work, something else loses the packets.
	missingNone
	// missingOwn: the route to this node's own pods.
	missingOwn
	// missingTheirs: the route to the range.
	missingTheirs
	// missingBoth: both.
	missingBoth
	// missingBack: the route to this node's own pods, and perhaps the other too.
	missingBack
)

// whichMissing is which missing route makes the range silent.
func (s *udrSearch) whichMissing(r *remoteRange) missingRoute {
	back := r.back
	if s.backShared(r) {
		back = reachWorks
	}
	switch {
	case r.there == reachWorks && back == reachWorks:
		return missingNone
	case r.there == reachWorks && back == reachFails:
		return missingOwn
	case r.there == reachUnknown && back == reachFails:
		return missingBack
	case r.there == reachFails && back == reachWorks:
		return missingTheirs
	case r.there == reachFails && back == reachFails:
		return missingBoth
	}
	return missingUnknown
}

// byMissing groups the silent ranges by the route that is missing. answering is how many
// ranges answer this node's pods.
func (s *udrSearch) byMissing(silent []*remoteRange, answering int) map[missingRoute][]*remoteRange {
	by := map[missingRoute][]*remoteRange{}
	move := func(from, to missingRoute) {
		by[to] = append(by[to], by[from]...)
		delete(by, from)
	}
	for _, r := range silent {
		l := s.whichMissing(r)
		by[l] = append(by[l], r)
	}
	reached := func(r *remoteRange) bool { return r.there != reachFails }
	if unknown := by[missingUnknown]; answering == 0 && len(unknown) > 1 && !slices.ContainsFunc(unknown, reached) {
		move(missingUnknown, missingBoth)
	}
	// Without the return path every range is silent, those too that were not
	// asked about.
	cause := missingOwn
	switch {
	case len(by[missingOwn]) > 0:
		// The table applies, so the rows of the others are missing.
		move(missingBoth, missingTheirs)
	case len(by[missingBoth]) > 0:
		cause = missingBoth
	}
	move(missingBack, cause)
	if answering == 0 && len(by[cause]) > 0 {
		back, rest := splitRanges(by[missingUnknown], func(r *remoteRange) bool { return r.back == reachWorks })
		by[missingUnknown], by[cause] = back, append(by[cause], rest...)
	}
	return by
}

// inferred are the findings on ranges that are silent for a reason that no file
// names.
func (s *udrSearch) inferred(silent []*remoteRange, answering int) []finding {
	by := s.byMissing(silent, answering)
	var out []finding
	together := func(list []*remoteRange, l missingRoute) {
		if len(list) > 0 {
			slices.SortFunc(list, func(a, b *remoteRange) int { return comparePrefix(a.cidr, b.cidr) })
			out = append(out, s.noReturn(list, nil, l))
		}
	}
	together(by[missingOwn], missingOwn)
	together(by[missingBoth], missingBoth)
	for _, r := range by[missingTheirs] {
		together([]*remoteRange{r}, missingTheirs)
	}
	alone, rest := splitRanges(by[missingUnknown], func(r *remoteRange) bool { return answering > 0 || r.back == reachWorks })
	for _, r := range alone {
		if one := []*remoteRange{r}; s.suffices(one) {
			together(one, missingUnknown)
		}
	}
	// Of ranges that are reached only the return path is in doubt, and no probe
	// asked for that.
	_, rest = splitRanges(rest, func(r *remoteRange) bool { return r.there == reachWorks })
	if s.suffices(rest) {
		together(rest, missingUnknown)
	}
	return out
}

// suffices reports whether the silence of the ranges shows that a route is missing:
// several addresses are silent, or the node's own echo is lost too, while others
// reply. One address alone may be down, slow, or denied by a policy (NoReply).
func (s *udrSearch) suffices(silent []*remoteRange) bool {
	remotes := s.sumPeers(silentPeers(silent)).remotes
	return (len(remotes) > 1 || slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.there == reachFails })) &&
		(s.controls(silent) != "" || slices.ContainsFunc(silent, func(r *remoteRange) bool { return s.echoAnswered(r.six()) }))
}

// noReturn is the finding on one silent range, or on all of them, or on those
// that a cause in the files explains. missing is what other signs say.
func (s *udrSearch) noReturn(silent []*remoteRange, cause *udrCause, missing missingRoute) finding {
	v := s.view
	f := model.Finding{
		Confidence: model.Likely,
		Unseen:     []string{"the route table itself: no row of it is visible from a node"},
		Alternatives: []string{
			byNSG,
			"a NIC does not forward (IP forwarding off): that of the node on the other side, or this node's",
			"the other node or its pods are down",
			"network policies on the other side drop what these pods send",
		},
	}
	var asks uint64
	for _, r := range silent {
		f.Peers = append(f.Peers, r.cidr)
		asks += r.asks
	}
	x := v.sumPeers(silentPeers(silent))
	f.Pods, f.Packets = sorted(x.pods), x.packets
	if len(f.Pods) == 0 {
		f.Pods = slices.DeleteFunc(v.podsIn(s.own), func(a netip.Addr) bool {
			return !slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.six() == a.Is6() })
		})
	}
	name := v.linkName(x.link)
	f.LastHopAlive = v.place(name, model.Egress)
	f.Title = "no return from " + words.Addrs(f.Peers)
	if len(x.remotes) > 0 {
		observe(&f, model.SourceTC,
			"%s egress: %s (%s) from %s to %s of %s; ingress: no reply", name, words.Count(f.Packets, "packet"), words.Count(x.requests, "request"), words.Count(uint64(len(x.pods)), "pod"), words.Plural(uint64(len(x.remotes)), "address", "addresses"), words.Addrs(f.Peers))
	}
	f.Evidence = append(f.Evidence, framesToGateway(v, silent)...)
	if n, _ := unrepliedCount(v, func(_, remote netip.Addr) bool { return inRanges(silent, remote) }); n > 0 {
		observe(&f, model.SourceConntrack, "%s from pods into that range UNREPLIED", words.Count(n, "flow"))
	}
	control := s.controls(silent)
	switch {
	case control != "":
		observe(&f, model.SourceTC, "replies come from %s", control)
	case slices.ContainsFunc(silent, func(r *remoteRange) bool { return v.echoAnswered(r.six()) }):
		// The probes' own lines tell.
	case cause.state == routeUnlisted:
		f.Confidence = model.Possible
		f.Unseen = append(f.Unseen, "any answer at the uplink: without one the uplink itself may be dead")
	}
	if x.errors > 0 {
		observe(&f, model.SourceTC,
			"%s ingress: %s about these packets: a router has no route, or the other node none of these pods", name, words.Count(x.errors, "ICMP error"))
	}
	if asks > 0 {
		observe(&f, model.SourceTC,
			"%s arrive from there: the path to this node works, the return path does not", words.Count(asks, "request"))
	}
	f.Evidence = append(f.Evidence, s.known(silent)...)
	if slices.ContainsFunc(silent, v.ownerSilent) {
		f.Alternatives[2] = "the other node is down: its own address does not answer an echo either"
	}
	f.Why = s.whyNoReturn(name, silent)
	s.addUDRFix(&f, silent)
	switch {
	case cause != nil:
		proveByFile(v, &f, silent, cause)
	case missing != missingUnknown:
		f.Why = v.leftCorrectly(words.Addrs(f.Peers), name)
		switch missing {
		case missingOwn:
			ownRouteMissing(v, &f, silent)
		case missingTheirs:
			theirRouteMissing(v, &f, silent)
		case missingBoth:
			bothRoutesMissing(v, &f, silent)
		}
	}
	return finding{Finding: f, silences: s.silencesNetwork(&f)}
}

// known is what the cluster, the files and the probes say of the ranges and of the
// paths to and from them.
func (s *udrSearch) known(ranges []*remoteRange) []model.Evidence {
	v := s.view
	var out []model.Evidence
	var asked []*model.Probe
	for _, r := range ranges {
		asked = append(asked, r.probes...)
		n := v.nodeOf(r.cidr)
		if n != nil && n.NoRoute != "" {
			out = append(out, seen(model.SourceNodes, "node %s: NetworkUnavailable, %s", n.Name, n.NoRoute))
		}
		for _, a := range v.ownerAddrs(r) {
			if p := v.echoed(a); p != nil {
				asked = append(asked, p)
			}
		}
		out = append(out, s.filed[r.cidr]...)
	}
	for _, six := range []bool{false, true} {
		if slices.ContainsFunc(ranges, func(r *remoteRange) bool { return r.six() == six }) {
			asked = append(asked, v.backProbes(six)...)
		}
	}
	return append(out, probeEvidence(asked)...)
}

// What else can look like a missing route.
const (
	byNSG      = "a network security group drops the pods' addresses"
	byOwnNIC   = "this node's NIC does not forward (IP forwarding off)"
	byTheirNIC = "the NIC of the node on the other side does not forward (IP forwarding off)"
	byWrongUDR = "the route is there and leads to another machine"
)

func ownRouteMissing(v *view, f *model.Finding, silent []*remoteRange) {
	f.Title = "no route to this node's own pods: nothing returns from " + words.Addrs(f.Peers)
	f.Fix, f.Rows = nil, nil
	AddRows(f, v.ownRows(silent, nil)...)
	if slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.there == reachWorks }) {
		f.Why += "The node itself is answered from there, so the fabric knows the way: the route back to this node's own pods is missing."
	} else {
		f.Why += "An echo from this node's own pod range to another machine gets no answer either, though one from the node's address does: " +
			"the route back to this node's own pods is missing."
		f.Fix = append(f.Fix, v.tableFix()...)
	}
	f.Alternatives = []string{byNSG, byOwnNIC, byWrongUDR}
}

func theirRouteMissing(v *view, f *model.Finding, silent []*remoteRange) {
	f.Title = "no route to " + words.Addrs(f.Peers)
	if silent[0].back == reachWorks {
		f.Why += "The return path to this node's own pods works. "
	}
	f.Why += "This node's own echo to the other node's end of that range is lost as well: the fabric lacks the route to this range."
	f.Fix, f.Rows = nil, nil
	f.Alternatives = []string{"a network security group drops what is for these pods", byTheirNIC, byWrongUDR}
	for _, r := range silent {
		AddRows(f, v.rangeRow(r.cidr, nil))
		if v.nodeOf(r.cidr) == nil {
			// Whether its node answers is not known.
			f.Alternatives = append(f.Alternatives, "the other node or its pods are down")
		}
	}
}

func bothRoutesMissing(v *view, f *model.Finding, silent []*remoteRange) {
	f.Title = "no route to " + words.Addrs(f.Peers) + ": the route table seems not to apply"
	f.Why += "This node's own echo to the other nodes' end of their ranges is lost as well, though nodes answer each other. "
	if slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.back == reachFails }) {
		f.Title = "no route either way between this node's pods and " + words.Addrs(f.Peers) + ": the route table seems not to apply"
		f.Why += "So is one from this node's own pod range to another node. "
	}
	f.Why += "The subnet seems to have no route table."
	f.Fix, f.Rows = v.tableFix(), nil
	AddRows(f, v.ownRows(silent, nil)...)
	f.Alternatives = []string{"the table applies and lacks all of these rows", byNSG, "NICs do not forward (IP forwarding off)"}
}

// leftCorrectly is how the explanation of a silence begins.
func (v *view) leftCorrectly(where, uplink string) string {
	return fmt.Sprintf("Packets of pods to %s leave %s with their own source address, for the gateway, and nothing returns. %s. ",
		where, uplink, v.nothingDropped(uplink))
}

func (s *udrSearch) whyNoReturn(uplink string, silent []*remoteRange) string {
	if len(silent) > 1 {
		return s.leftCorrectly("any other node's pods", uplink) +
			"Since every other node's pods are silent, the subnet has no route table, or the table lacks this node's own pods."
	}
	why := s.leftCorrectly("that range", uplink) + "Other targets answer in the same window, so the fabric lacks the route to this range"
	if s.anyAnswers() {
		return why + "."
	}
	return why + ", or the one back to this node's own pods."
}

// anyAnswers reports whether another node's pods reply to this node's.
func (s *udrSearch) anyAnswers() bool {
	return slices.ContainsFunc(s.all, func(r *remoteRange) bool { return r.answers })
}

// framesToGateway shows that the packets left with the correct MACs.
func framesToGateway(v *view, silent []*remoteRange) []model.Evidence {
	for _, r := range silent {
		for _, p := range r.silent {
			for _, m := range v.macPairs[p.Local] {
				if m.IfIndex == p.IfIndex && m.Side == model.AsSource && m.Direction == model.Egress && v.isGatewayMAC(m.Dst) {
					return []model.Evidence{seen(model.SourceTC,
						"%s egress: frames from %s to %s, %s; source %s is not translated", m.Link, m.Src, m.Dst, v.owner(m.Dst), p.Local)}
				}
			}
		}
	}
	return nil
}

// controls names what does answer at the uplinks in the same window: other
// nodes' pods first, then anything else.
func (s *udrSearch) controls(silent []*remoteRange) string {
	var ranges []netip.Prefix
	for _, r := range s.all {
		if r.answers {
			ranges = append(ranges, r.cidr)
		}
	}
	if len(ranges) > 0 {
		return words.Addrs(ranges)
	}
	return words.Addrs(answering(s.view, func(a netip.Addr) bool { return inRanges(silent, a) }))
}

// inRanges reports whether one of the ranges holds the address.
func inRanges(list []*remoteRange, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(r *remoteRange) bool { return r.cidr.Contains(a) })
}

// addUDRFix gives the az commands with the values that are known.
func (s *udrSearch) addUDRFix(f *model.Finding, silent []*remoteRange) {
	if len(silent) > 1 {
		f.Fix = s.tableFix()
		AddRows(f, s.ownRows(silent, nil)...)
		return
	}
	for _, r := range silent {
		AddRows(f, s.rangeRow(r.cidr, nil))
	}
	if !s.anyAnswers() {
		AddRows(f, s.ownRows(silent, nil)...)
	}
	f.Fix = append(f.Fix, s.tableFix()...)
}

// nothingDropped says what this node dropped of packets that left by a link.
func (v *view) nothingDropped(link string) string {
	if q := v.droppingQueue(link); q != nil {
		return fmt.Sprintf("Packets that the queue of %s dropped (%d of any sender in the window) are not counted here", link, q.DropsDelta)
	}
	return "Nothing is dropped on this node"
}
