package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

func findMissingUDR(v *view) {
	if overlay(v.Node.Plugin) {
		return
	}
	s := udrSearch{view: v, all: v.unclaimedRanges(v.remoteRanges()), own: v.ownCIDRs()}
	s.answering, s.all = splitRanges(s.all, func(r *remoteRange) bool { return r.answers })
	s.readFiles()
	for _, c := range s.causes {
		v.report(s.noReturn(c.ranges, c, missingUnknown))
	}
	silent, _ := splitRanges(s.all, func(r *remoteRange) bool {
		return len(r.silent) > 0 && !s.settled[r.cidr] && !v.silenced(netip.Addr{}, r.cidr)
	})
	s.inferred(silent)
}

// udrSearch is what is known of the other nodes' ranges.
type udrSearch struct {
	*view
	// answering are those that reply to this node's pods, all are the others.
	answering, all []*remoteRange
	own            []netip.Prefix
	// causes are what the files say is missing. For the other ranges filed is what they say of the routes, and
	// settled holds those that they leave no doubt about, and those with a cause.
	causes  []*udrCause
	filed   map[netip.Prefix][]routeFact
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

// missingBy is which missing route makes a range silent, by what is known of the paths there and back.
var missingBy = map[[2]reach]missingRoute{
	{reachWorks, reachWorks}:   missingNone,
	{reachWorks, reachFails}:   missingOwn,
	{reachUnknown, reachFails}: missingBack,
	{reachFails, reachWorks}:   missingTheirs,
	{reachFails, reachFails}:   missingBoth,
}

// byMissing groups the silent ranges by the route that is missing.
func (s *udrSearch) byMissing(silent []*remoteRange) map[missingRoute][]*remoteRange {
	by := map[missingRoute][]*remoteRange{}
	move := func(from, to missingRoute) {
		by[to] = append(by[to], by[from]...)
		delete(by, from)
	}
	for _, r := range silent {
		l := missingBy[[2]reach{r.there, model.Either(s.backShared(r), reachWorks, r.back)}]
		by[l] = append(by[l], r)
	}
	unknown, alone := by[missingUnknown], len(s.answering) == 0
	reached := func(r *remoteRange) bool { return r.there != reachFails }
	if alone && len(unknown) > 1 && !slices.ContainsFunc(unknown, reached) {
		move(missingUnknown, missingBoth)
	}
	// Without the return path every range is silent, those too that were not asked about.
	cause := missingOwn
	switch {
	case len(by[missingOwn]) > 0:
		// The table applies, so the rows of the others are missing.
		move(missingBoth, missingTheirs)
	case len(by[missingBoth]) > 0:
		cause = missingBoth
	}
	move(missingBack, cause)
	if alone && len(by[cause]) > 0 {
		back, rest := splitRanges(by[missingUnknown], func(r *remoteRange) bool { return r.back == reachWorks })
		by[missingUnknown], by[cause] = back, append(by[cause], rest...)
	}
	return by
}

// inferred reports ranges that are silent for a reason that no file names.
func (s *udrSearch) inferred(silent []*remoteRange) {
	by := s.byMissing(silent)
	together := func(list []*remoteRange, l missingRoute) {
		if len(list) > 0 {
			slices.SortFunc(list, compareRanges)
			s.report(s.noReturn(list, nil, l))
		}
	}
	together(by[missingOwn], missingOwn)
	together(by[missingBoth], missingBoth)
	for _, r := range by[missingTheirs] {
		together([]*remoteRange{r}, missingTheirs)
	}
	alone, rest := splitRanges(by[missingUnknown], func(r *remoteRange) bool {
		return len(s.answering) > 0 || r.back == reachWorks
	})
	for _, r := range alone {
		if one := []*remoteRange{r}; s.suffices(one) {
			together(one, missingUnknown)
		}
	}
	// Of ranges that are reached only the return path is in doubt, and no probe asked for that.
	_, rest = splitRanges(rest, func(r *remoteRange) bool { return r.there == reachWorks })
	if s.suffices(rest) {
		together(rest, missingUnknown)
	}
}

// suffices reports whether the silence of the ranges shows that a route is missing:
// several addresses are silent, or the node's own echo is lost too, while others
// reply. One address alone may be down, slow, or denied by a policy (NoReply).
func (s *udrSearch) suffices(silent []*remoteRange) bool {
	remotes := s.sumPeers(silentPeers(silent)).peers
	is := func(what func(*remoteRange) bool) bool { return slices.ContainsFunc(silent, what) }
	return (len(remotes) > 1 || is(func(r *remoteRange) bool { return r.there == reachFails })) &&
		(s.controls(silent) != nil || is(s.familyAnswered))
}

// familyAnswered reports whether a machine answered an echo with an address of the range's family.
func (s *udrSearch) familyAnswered(r *remoteRange) bool { return s.echoAnswered(r.six()) }

// noReturn is the finding on one silent range, or on all of them, or on those
// that a cause in the files explains. missing is what other signs say.
func (s *udrSearch) noReturn(silent []*remoteRange, cause *udrCause, missing missingRoute) finding {
	v := s.view
	f := finding{Finding: model.Finding{Peers: model.Map(silent, prefixOf)}}
	asks := model.Sum(silent, func(r *remoteRange) uint64 { return r.asks })
	x := v.sumPeers(silentPeers(silent))
	f.Pods, f.Packets = sorted(x.pods), x.packets
	if len(f.Pods) == 0 {
		f.Pods = slices.DeleteFunc(v.podsIn(s.own), func(a netip.Addr) bool {
			return !slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.six() == a.Is6() })
		})
	}
	name, control := v.linkName(x.link), s.controls(silent)
	f.LastHopAlive = v.place(name, model.Egress)
	flows, _ := unrepliedCount(v.index, func(_, remote netip.Addr) bool { return inRanges(silent, remote) })
	is := func(what func(*remoteRange) bool) bool { return slices.ContainsFunc(silent, what) }
	f.facts = facts{
		"link": name, "queue": v.droppingQueue(name), "requests": x.requests, "remotes": x.peers, "flows": flows,
		"frames": framesToGateway(v.index, silent), "control": control, "errors": x.errors, "asks": asks,
		"known": s.known(silent), "several": len(silent) > 1, "any": s.answering, "file": cause,
		"own": missing == missingOwn, "theirs": missing == missingTheirs, "both": missing == missingBoth,
		"unclear": cause == nil && missing == missingUnknown,
		"reached": is(func(r *remoteRange) bool { return r.there == reachWorks }), "returns": silent[0].back == reachWorks,
		"unreturned": is(func(r *remoteRange) bool { return r.back == reachFails }),
		"unknown":    is(func(r *remoteRange) bool { return v.nodeOf(r.cidr) == nil }), "down": is(func(r *remoteRange) bool { return v.ownerSilent(r) }),
	}
	if cause == nil {
		f.facts["below"] = v.below(name)
	} else {
		f.facts["own"], f.facts["theirs"] = cause.own && !cause.Unassociated, !cause.own && !cause.Unassociated
		if cause.state == routeUnlisted && control == nil && !is(s.familyAnswered) {
			f.Confidence, f.facts["alone"] = model.Possible, true
		}
		f.facts["unlisted"] = cause.state == routeUnlisted
	}
	AddRows(&f.Finding, s.missingRows(silent, cause, missing)...)
	f.silences = v.silencesNetwork(&f.Finding)
	return f
}

// missingRows are what the network lacks, with the values that are known.
func (s *udrSearch) missingRows(silent []*remoteRange, cause *udrCause, missing missingRoute) (rows []model.Row) {
	var table *model.RouteTable
	if cause != nil {
		table = cause.Table
	}
	own := s.ownRows(silent, table)
	rows = model.Map(silent, func(r *remoteRange) model.Row { return s.rangeRow(r.cidr, table) })
	switch {
	case cause != nil && cause.Unassociated:
		return []model.Row{s.associate(cause.Subnet, table)}
	case cause != nil && cause.own:
		return own
	case cause != nil || missing == missingTheirs:
		return rows
	case missing == missingOwn:
		if !slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.there == reachWorks }) {
			own = append(own, s.tableRow()...)
		}
		return own
	case missing == missingBoth || len(silent) > 1:
		return append(s.tableRow(), own...)
	case len(s.answering) == 0:
		rows = append(rows, own...)
	}
	return append(rows, s.tableRow()...)
}

// known is what the cluster, the files and the probes say of the ranges and of the paths to and from them.
func (s *udrSearch) known(ranges []*remoteRange) []model.Evidence {
	v := s.view
	var out []model.Evidence
	var asked []*model.Probe
	for _, r := range ranges {
		asked = append(asked, r.probes...)
		for _, a := range v.ownerAddrs(r) {
			asked = append(asked, v.echoed(a))
		}
		out = append(out, words.Say("udr-range", facts{"node": v.nodeOf(r.cidr), "filed": s.filed[r.cidr]})...)
	}
	for _, r := range ranges {
		asked = append(asked, v.backProbes(r.six())...)
	}
	return append(out, probeEvidence(asked)...)
}

// gatewayFrame are frames of a pod's packets that went to a gateway.
type gatewayFrame struct {
	*model.MACPair
	Owner string
}

// framesToGateway shows that the packets left with the correct MACs: by one example.
func framesToGateway(v *index, silent []*remoteRange) []gatewayFrame {
	for _, p := range silentPeers(silent) {
		for _, m := range v.macPairs[p.Local] {
			if m.IfIndex == p.IfIndex && m.Side == model.AsSource && m.Direction == model.Egress &&
				v.isGatewayMAC(m.Dst) {
				return []gatewayFrame{{m, v.owner(m.Dst)}}
			}
		}
	}
	return nil
}

// controls are what does answer at the uplinks in the same window: other
// nodes' pods first, then anything else; nil for nothing.
func (s *udrSearch) controls(silent []*remoteRange) any {
	if len(s.answering) > 0 {
		return model.Map(s.answering, prefixOf)
	}
	if list := answering(s.view.index, func(a netip.Addr) bool { return inRanges(silent, a) }); len(list) > 0 {
		return list
	}
	return nil
}

func inRanges(list []*remoteRange, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(r *remoteRange) bool { return r.cidr.Contains(a) })
}

// udrCause is what the files say is missing: this node's own route, or that of one other node, or with
// Unassociated all of a subnet's; and the ranges that are silent for it.
type udrCause struct {
	routeFact
	own    bool
	ranges []*remoteRange
}

// readFiles asks the files about the routes of all ranges, with and without traffic.
func (s *udrSearch) readFiles() {
	s.filed, s.settled = map[netip.Prefix][]routeFact{}, map[netip.Prefix]bool{}
	if len(s.own) == 0 || !s.Has(model.SourceCloud) {
		return
	}
	for _, r := range s.unclaimedRanges(s.fabricRanges()) {
		if r.answers || s.silenced(netip.Addr{}, r.cidr) {
			continue
		}
		cause := s.fileCause(r)
		if cause == nil {
			continue
		}
		s.settled[r.cidr] = true
		if at := slices.IndexFunc(s.causes, func(c *udrCause) bool {
			return c.own && cause.own || c.Unassociated && cause.Unassociated && c.own == cause.own
		}); at >= 0 {
			cause = s.causes[at]
		} else {
			s.causes = append(s.causes, cause)
		}
		cause.ranges = append(cause.ranges, r)
	}
}

// fileCause is what the files say is missing for the range to be reached and to reach this node; nil where they
// name nothing. A range whose routes both lead to the correct nodes is settled: its silence has another cause.
func (s *udrSearch) fileCause(r *remoteRange) *udrCause {
	there, back := s.routeTo(r.cidr, s.nodeOf(r.cidr), s.self()), s.routeBack(r.cidr)
	missing := func(f routeFact) bool {
		return f.state == routeMissing || len(r.silent) > 0 && f.state == routeUnlisted
	}
	switch {
	case missing(there) && !r.nodeAnswers:
		return &udrCause{routeFact: there}
	case missing(back) && r.back != reachWorks:
		return &udrCause{routeFact: back, own: true}
	}
	s.settled[r.cidr] = (there.state == routeCorrect || r.there == reachWorks) &&
		(back.state == routeCorrect || r.back == reachWorks)
	for _, f := range []routeFact{there, back} {
		if f.state != routeUnknown {
			s.filed[r.cidr] = append(s.filed[r.cidr], f)
		}
	}
	return nil
}
