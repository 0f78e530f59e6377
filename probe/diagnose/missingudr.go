package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// MissingUDR is the code of this finding.
const MissingUDR model.Code = "MissingUDR"

var missingUDR = kind{
	page: Page{
		Code:     MissingUDR,
		Severity: model.Critical,
		Title:    "traffic to another node's pods leaves this node right and nothing of it returns: the subnet's route table lacks that route",
		Meaning: "On an AKS kubenet cluster the Azure fabric learns where each node's pods are from user-defined routes in a route " +
			"table of the subnet. When the table is not associated with the subnet, or a node's row is missing, the fabric " +
			"discards packets for that node's pods without a word. No node drops anything.",
		Evidence: "packets leave the uplink with the pod's source address and the gateway's MAC; nothing proves that one arrived; " +
			"connection tracking stays UNREPLIED; another target answers in the same window. Proven by what az prints of the " +
			"route table, the subnet or the effective routes (--routes), with or without traffic. With --active, echo requests " +
			"of the node's own tell whether the route there is missing, the one back to this node's pods, or both.",
		Fix: "associate the route table with the subnet (az network vnet subnet update … --route-table …), or create the " +
			"node's row (az network route-table route create …).",
	},
	find:  findMissingUDR,
	after: []model.Code{RoutingLoop, WrongUDR, NICForwarding, MissingNodeRoute},
	ends:  []model.HopKind{model.HopBeyond},
}

func findMissingUDR(v *view) []finding {
	if overlay(v.Node.Plugin) {
		return nil
	}
	all := v.remoteRanges()
	for _, r := range all {
		r.silent = slices.DeleteFunc(r.silent, v.loops)
	}
	own := v.ownCIDRs()
	if slices.ContainsFunc(own, func(p netip.Prefix) bool { return v.rangeBlamed(p, WrongUDR, NICForwarding) }) {
		// What does not find the way back explains every silence.
		return nil
	}
	var out []finding
	groups, order := filedRanges(v, all, own)
	for _, c := range order {
		out = append(out, noReturn(v, groups[c], all, c, lackUntold))
	}
	var silent []*remoteRange
	answering := 0
	for _, r := range all {
		switch {
		case r.answers:
			answering++
		case len(r.silent) > 0 && !r.settled && !v.rangeBlamed(r.cidr, WrongUDR, NICForwarding, MissingNodeRoute):
			silent = append(silent, r)
		}
	}
	return append(out, tell(v, silent, all, answering)...)
}

// lack is which routes are missing, as far as that can be told.
type lack int

const (
	lackUntold lack = iota
	// lackNone: both ways work, something else loses the packets.
	lackNone
	// lackOwn: the route to this node's own pods.
	lackOwn
	// lackTheirs: the route to the range.
	lackTheirs
	// lackAll: both.
	lackAll
	// lackBack: the route to this node's own pods, and perhaps the other too.
	lackBack
)

// lacking tells which route's lack makes the range silent.
func lacking(v *view, r *remoteRange, all []*remoteRange) lack {
	back := r.back
	if v.near(r) && slices.ContainsFunc(all, func(o *remoteRange) bool { return o.answers && v.near(o) }) {
		// Under the same table another range answers this node's pods.
		back = reachWorks
	}
	switch {
	case r.there == reachWorks && back == reachWorks:
		return lackNone
	case r.there == reachWorks:
		return lackOwn
	case r.there == reachUnknown && back == reachFails:
		return lackBack
	case r.there == reachFails && back == reachWorks:
		return lackTheirs
	case r.there == reachFails && back == reachFails:
		return lackAll
	}
	return lackUntold
}

// lackGroups groups the silent ranges by what they lack. answering is how many
// ranges answer this node's pods.
func lackGroups(v *view, silent, all []*remoteRange, answering int) map[lack][]*remoteRange {
	by := map[lack][]*remoteRange{}
	move := func(from, to lack) {
		by[to] = append(by[to], by[from]...)
		delete(by, from)
	}
	for _, r := range silent {
		l := lacking(v, r, all)
		by[l] = append(by[l], r)
	}
	unlost := func(r *remoteRange) bool { return r.there != reachFails }
	if untold := by[lackUntold]; answering == 0 && len(untold) > 1 && !slices.ContainsFunc(untold, unlost) {
		move(lackUntold, lackAll)
	}
	// Without the way back every range is silent, those too that were not
	// asked about.
	cause := lackOwn
	switch {
	case len(by[lackOwn]) > 0:
		// The table applies, so others lack rows of their own.
		move(lackAll, lackTheirs)
	case len(by[lackAll]) > 0:
		cause = lackAll
	}
	move(lackBack, cause)
	if answering == 0 && len(by[cause]) > 0 {
		back, rest := splitRanges(by[lackUntold], func(r *remoteRange) bool { return r.back == reachWorks })
		by[lackUntold], by[cause] = back, append(by[cause], rest...)
	}
	return by
}

// tell is the verdicts on the silent ranges.
func tell(v *view, silent, all []*remoteRange, answering int) []finding {
	by := lackGroups(v, silent, all, answering)
	var out []finding
	together := func(list []*remoteRange, l lack) {
		if len(list) > 0 {
			slices.SortFunc(list, func(a, b *remoteRange) int { return comparePrefix(a.cidr, b.cidr) })
			out = append(out, noReturn(v, list, all, nil, l))
		}
	}
	together(by[lackOwn], lackOwn)
	together(by[lackAll], lackAll)
	for _, r := range by[lackTheirs] {
		together([]*remoteRange{r}, lackTheirs)
	}
	alone, rest := splitRanges(by[lackUntold], func(r *remoteRange) bool { return answering > 0 || r.back == reachWorks })
	for _, r := range alone {
		together([]*remoteRange{r}, lackUntold)
	}
	together(rest, lackUntold)
	return out
}

// udrCause is what the files say is missing: this node's own route, or that of
// one other node, or with unassociated all of a subnet's.
type udrCause struct {
	routeFact
	own bool
}

// filedRanges groups the other nodes' ranges by what the files say about them:
// those that lack a route, whether or not there was traffic for them. It marks
// as settled those that the files tell all about.
func filedRanges(v *view, all []*remoteRange, own []netip.Prefix) (map[*udrCause][]*remoteRange, []*udrCause) {
	groups := map[*udrCause][]*remoteRange{}
	var order []*udrCause
	if len(own) == 0 || !v.Has(model.SourceCloud) {
		return groups, order
	}
	self := v.self()
	for _, r := range v.fabricRanges() {
		if r.answers || v.rangeBlamed(r.cidr, WrongUDR, NICForwarding) {
			continue
		}
		cause := v.udrCause(r, self, own)
		if cause == nil {
			continue
		}
		at := slices.IndexFunc(order, func(c *udrCause) bool {
			return c.own && cause.own || c.unassociated && cause.unassociated && c.own == cause.own
		})
		if at < 0 {
			order = append(order, cause)
			at = len(order) - 1
		}
		r.settled = true
		groups[order[at]] = append(groups[order[at]], r)
	}
	return groups, order
}

// udrCause is what the files say is missing for the range to be reached and to
// reach this node; nil where they name nothing. A range whose routes are right
// both ways is settled: its silence has another cause.
func (v *view) udrCause(r *remoteRange, self *model.ClusterNode, own []netip.Prefix) *udrCause {
	owner := v.nodeOf(r.cidr)
	peer := owner
	if peer == nil {
		// Supposed to be in this node's subnet.
		peer = self
	}
	there := v.routeTo(r.cidr, owner, self)
	back := routeFact{}
	for _, p := range own {
		if p.Addr().Is4() == r.cidr.Addr().Is4() {
			back = v.routeTo(p, self, peer)
		}
	}
	silent := len(r.silent) > 0
	missing := func(f routeFact) bool { return f.state == routeMissing || silent && f.state == routeLacking }
	switch {
	case missing(there) && !r.nodeAnswers:
		return &udrCause{routeFact: there}
	case missing(back) && r.back != reachWorks:
		return &udrCause{routeFact: back, own: true}
	}
	r.settled = (there.state == routeRight || r.there == reachWorks) && (back.state == routeRight || r.back == reachWorks)
	if there.state != routeUnknown {
		r.filed = append(r.filed, there.evidence())
	}
	if back.state != routeUnknown {
		r.filed = append(r.filed, back.evidence())
	}
	return nil
}

// noReturn is the verdict on one silent range, or on all of them, or on those
// that the cause in the files explains. missing is what is lacking by other
// signs.
func noReturn(v *view, silent, all []*remoteRange, cause *udrCause, missing lack) finding {
	f := model.Finding{
		Confidence: model.Likely,
		Unseen:     []string{"the route table itself: no row of it is visible from a node"},
		Alternatives: []string{
			byNSG,
			"a NIC does not forward (IP forwarding off): that of the node on the other side, or this node's",
			"the other node or its pods are down",
		},
	}
	pods := map[netip.Addr]bool{}
	remotes := map[netip.Addr]bool{}
	var link int
	var asks, syn, errors uint64
	for _, r := range silent {
		f.Peers = append(f.Peers, r.cidr)
		asks += r.asks
		for _, p := range r.silent {
			pods[p.Local], remotes[p.Remote] = true, true
			link = p.IfIndex
			f.Packets += p.Out.Packets
			syn += p.Out.Requests
			errors += p.In.ICMPErrors
		}
	}
	f.Pods = slices.Collect(maps.Keys(pods))
	if len(pods) == 0 {
		f.Pods = v.podsIn(v.ownCIDRs())
	}
	name := v.linkName(link)
	f.LastHopAlive = v.place(name, model.Egress)
	f.Title = "no return from " + addrs(f.Peers)
	if len(remotes) > 0 {
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceTC, Text: fmt.Sprintf(
			"%s egress: %s (%s wanting an answer) from %s to %s of %s; ingress: no answer",
			name, count(f.Packets, "packet"), plural(syn, "one", "of them"), count(uint64(len(pods)), "pod"),
			plural(uint64(len(remotes)), "address", "addresses"), addrs(f.Peers))})
	}
	f.Evidence = append(f.Evidence, rightFrames(v, silent)...)
	f.Evidence = append(f.Evidence, v.unreplied(silent)...)
	control := controls(v, silent, all)
	switch {
	case control != "":
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceTC, Text: "answers come from " + control})
	case slices.ContainsFunc(silent, func(r *remoteRange) bool { return v.echoAnswered(r.six()) }):
		// The probes' own lines tell.
	case cause == nil || cause.state == routeLacking:
		f.Confidence = model.Possible
		f.Unseen = append(f.Unseen, "any answer at the uplink: without one the uplink itself may be dead")
	}
	if errors > 0 {
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceTC, Text: fmt.Sprintf(
			"%s ingress: %s about these packets: a router has no route, or the other node none of these pods", name, plural(errors, "ICMP error", "ICMP errors"))})
	}
	if asks > 0 {
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceTC, Text: fmt.Sprintf(
			"%s that want an answer arrive from there: the way to this node works, the way back does not", count(asks, "packet"))})
	}
	f.Evidence = append(f.Evidence, toldOf(v, silent)...)
	if slices.ContainsFunc(silent, v.ownerSilent) {
		f.Alternatives[2] = "the other node is down: its own address does not answer an echo either"
	}
	f.Why = whyNoReturn(v, name, &f, len(silent) > 1)
	f.Fix = v.udrFix(silent)
	switch {
	case cause != nil:
		fileCause(v, &f, silent, cause)
	case missing != lackUntold:
		lackCause(v, &f, silent, name, missing)
	}
	return finding{Finding: f}
}

// toldOf is what the cluster, the files and the probes tell of the ranges and of
// the ways to and from them.
func toldOf(v *view, ranges []*remoteRange) []model.Evidence {
	var out []model.Evidence
	var asked []*model.Probe
	for _, r := range ranges {
		asked = append(asked, r.probes...)
		n := v.nodeOf(r.cidr)
		if n != nil && n.NoRoute != "" {
			out = append(out, model.Evidence{Source: model.SourceNodes, Text: fmt.Sprintf("node %s: NetworkUnavailable, %s", n.Name, n.NoRoute)})
		}
		for _, a := range v.ownerAddrs(r) {
			if p := v.echoed(a); p != nil {
				asked = append(asked, p)
			}
		}
		out = append(out, r.filed...)
	}
	for _, six := range []bool{false, true} {
		if slices.ContainsFunc(ranges, func(r *remoteRange) bool { return r.six() == six }) {
			asked = append(asked, v.backProbes(six)...)
		}
	}
	return append(out, probed(asked)...)
}

// lackCause narrows the inference to the routes that are told to be missing.
func lackCause(v *view, f *model.Finding, silent []*remoteRange, uplink string, missing lack) {
	f.Why = leftRight(addrs(f.Peers), uplink)
	switch missing {
	case lackOwn:
		lackingOwn(v, f, silent)
	case lackTheirs:
		lackingTheirs(v, f, silent)
	case lackAll:
		lackingAll(v, f, silent)
	}
}

// What else can look like a missing route.
const (
	byNSG      = "a network security group drops the pods' addresses"
	byOwnNIC   = "this node's NIC does not forward (IP forwarding off)"
	byTheirNIC = "the NIC of the node on the other side does not forward (IP forwarding off)"
	byWrongUDR = "the route is there and leads to another machine"
)

func lackingOwn(v *view, f *model.Finding, silent []*remoteRange) {
	f.Title = "no route to this node's own pods: nothing returns from " + addrs(f.Peers)
	f.Fix = v.ownRouteFix(nil)
	if slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.there == reachWorks }) {
		f.Why += "The node itself is answered from there, so the fabric knows the way: the route back to this node's own pods is missing."
	} else {
		f.Why += "An echo from this node's own pod range to another machine gets no answer either, though one from the node's address does: " +
			"the route back to this node's own pods is missing."
		f.Fix = append(f.Fix, v.tableFix()...)
	}
	f.Alternatives = []string{byNSG, byOwnNIC, byWrongUDR}
}

func lackingTheirs(v *view, f *model.Finding, silent []*remoteRange) {
	f.Title = "no route to " + addrs(f.Peers)
	if silent[0].back == reachWorks {
		f.Why += "The way back to this node's own pods works. "
	}
	f.Why += "This node's own echo to the other node's end of that range is lost as well: the fabric lacks the route to this range."
	f.Fix = nil
	f.Alternatives = []string{"a network security group drops what is for these pods", byTheirNIC, byWrongUDR}
	for _, r := range silent {
		f.Fix = append(f.Fix, v.rangeRouteFix(r.cidr, nil))
		if v.nodeOf(r.cidr) == nil {
			// Whether its node answers is not known.
			f.Alternatives = append(f.Alternatives, "the other node or its pods are down")
		}
	}
}

func lackingAll(v *view, f *model.Finding, silent []*remoteRange) {
	f.Title = "no route to " + addrs(f.Peers) + ": the route table seems not to apply"
	f.Why += "This node's own echo to the other nodes' end of their ranges is lost as well, though nodes answer each other. "
	if slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.back == reachFails }) {
		f.Title = "no route either way between this node's pods and " + addrs(f.Peers) + ": the route table seems not to apply"
		f.Why += "So is one from this node's own pod range to another node. "
	}
	f.Why += "The subnet seems to have no route table."
	f.Fix = append(v.tableFix(), v.ownRouteFix(nil)...)
	f.Alternatives = []string{"the table applies and lacks all of these rows", byNSG, "NICs do not forward (IP forwarding off)"}
}

// leftRight is how the explanation of a silence begins.
func leftRight(where, uplink string) string {
	return fmt.Sprintf("Packets of pods to %s leave %s with their own source address, for the gateway, and nothing returns. Nothing is dropped on this node. ",
		where, uplink)
}

// fileCause turns the inference into what the files prove.
func fileCause(v *view, f *model.Finding, silent []*remoteRange, c *udrCause) {
	f.Evidence = append(f.Evidence, c.evidence())
	f.Alternatives = nil
	switch {
	case c.state != routeLacking:
		f.Confidence, f.Unseen = model.Proven, nil
	case f.Confidence != model.Possible:
		f.Confidence, f.Unseen = model.Proven, []string{"which subnets the table is associated with"}
	}
	const lost = "The fabric discards such packets without a word; nothing is dropped on any node."
	switch {
	case c.unassociated:
		f.Title = "the subnet has no route table: " + addrs(f.Peers)
		if c.subnet == nil {
			f.Title = "the route table is associated with no subnet: " + addrs(f.Peers)
		}
		f.Why = "No user-defined route applies to what the nodes send, so the fabric knows no other node's pods. " + lost
		f.Fix = []string{associateFix(c.subnet, c.table)}
	case c.own:
		f.Title = "no route to this node's own pods: nothing returns from " + addrs(f.Peers)
		f.Why = "The route table that applies to the other nodes has no row for this node's pods, so what they answer gets lost. " + lost
		f.Fix = v.ownRouteFix(c.table)
	default:
		f.Title = "no route to " + addrs(f.Peers)
		f.Why = "The route table that applies to this node has no row for these pods. " + lost
		f.Fix = nil
		for _, r := range silent {
			f.Fix = append(f.Fix, v.rangeRouteFix(r.cidr, c.table))
		}
	}
}

func whyNoReturn(v *view, uplink string, f *model.Finding, every bool) string {
	where := "that range"
	if every {
		where = "any other node's pods"
	}
	why := leftRight(where, uplink)
	switch {
	case every:
		return why + "Since every other node's pods are silent, the subnet has no route table, or the table lacks this node's own pods."
	case f.Confidence == model.Likely:
		return why + "Other targets answer in the same window, so the fabric lacks the route to this range."
	}
	return why + "The fabric seems to lack the route."
}

// rightFrames shows that the packets left with the right MAC addresses.
func rightFrames(v *view, silent []*remoteRange) []model.Evidence {
	for _, r := range silent {
		for _, p := range r.silent {
			for _, m := range v.macPairs[p.Local] {
				if m.IfIndex == p.IfIndex && m.Side == model.AsSource && m.Direction == model.Egress && v.isGatewayMAC(m.Dst) {
					return []model.Evidence{{Source: model.SourceTC, Text: fmt.Sprintf(
						"%s egress: frames from %s to %s, %s; source %s is not translated", m.Link, m.Src, m.Dst, v.owner(m.Dst), p.Local)}}
				}
			}
		}
	}
	return nil
}

// controls names what does answer at the uplinks in the same window: other
// nodes' pods first, then anything else.
func controls(v *view, silent, all []*remoteRange) string {
	var ranges []netip.Prefix
	for _, r := range all {
		if r.answers {
			ranges = append(ranges, r.cidr)
		}
	}
	if len(ranges) > 0 {
		return addrs(ranges)
	}
	others := map[netip.Addr]bool{}
	for i := range v.peers {
		p := &v.peers[i]
		within := slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.cidr.Contains(p.Remote) })
		if !within && v.answered(p) {
			others[p.Remote] = true
		}
	}
	return addrs(slices.SortedFunc(maps.Keys(others), netip.Addr.Compare))
}

// unreplied counts the flows into the ranges that never saw a reply.
func (v *view) unreplied(silent []*remoteRange) []model.Evidence {
	var n uint64
	for i := range v.Flows {
		f := &v.Flows[i]
		if f.Replied || len(v.pods[f.Original.Src]) == 0 {
			continue
		}
		if slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.cidr.Contains(f.Reply.Src) }) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []model.Evidence{{Source: model.SourceConntrack, Text: count(n, "flow") + " from pods into that range UNREPLIED"}}
}
