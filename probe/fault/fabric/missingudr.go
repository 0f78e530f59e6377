package fabric

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// MissingUDR reports ranges of other nodes' pods for which the subnet's route table has no row.
var MissingUDR = fault.Kind{Code: "MissingUDR", Severity: model.Critical, Find: missingUDR,
	Rests: fault.Sources{model.SourceTC}, Ends: fault.Hops{model.HopBeyond},
	Traits: model.Unheard | model.Astray | model.ByRoute,
	Else: fault.Else{"MissingUDR !file", "MissingUDR-joined !control", "MissingUDR-joined supposed", "MissingUDR-joined kind",
		"MissingUDR-joined rivals", "MissingUDR-joined unknownHops", "MissingUDR-joined translated"}}

func missingUDR(v *fault.Input) {
	if node.Overlay(v.Node.Plugin) {
		return
	}
	s := udrSearch{Input: v, all: unclaimedRanges(v, v.RemoteRanges()), own: v.OwnCIDRs()}
	s.answering, s.all = model.Split(s.all, func(r *node.RemoteRange) bool { return r.Answers })
	s.readFiles()
	for _, c := range s.causes {
		v.Report(s.noReturn(c.ranges, c, missingUnknown))
	}
	silent, _ := model.Split(s.all, func(r *node.RemoteRange) bool {
		return len(r.Silent) > 0 && !s.settled[r.CIDR] && !v.Silenced(netip.Addr{}, r.CIDR)
	})
	s.inferred(silent)
}

// udrSearch is what is known of the other nodes' ranges.
type udrSearch struct {
	*fault.Input
	// answering are those that reply to this node's pods, all are the others.
	answering, all []*node.RemoteRange
	own            []netip.Prefix
	// causes are what the files say is missing. For the other ranges filed is what they say of the routes, and
	// settled holds those that they leave no doubt about, and those with a cause.
	causes  []*udrCause
	filed   map[netip.Prefix][]node.RouteFact
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
var missingBy = map[[2]node.Reach]missingRoute{
	{node.ReachWorks, node.ReachWorks}:   missingNone,
	{node.ReachWorks, node.ReachFails}:   missingOwn,
	{node.ReachUnknown, node.ReachFails}: missingBack,
	{node.ReachFails, node.ReachWorks}:   missingTheirs,
	{node.ReachFails, node.ReachFails}:   missingBoth,
}

// byMissing groups the silent ranges by the route that is missing.
func (s *udrSearch) byMissing(silent []*node.RemoteRange) map[missingRoute][]*node.RemoteRange {
	by := map[missingRoute][]*node.RemoteRange{}
	move := func(from, to missingRoute) {
		by[to] = append(by[to], by[from]...)
		delete(by, from)
	}
	for _, r := range silent {
		l := missingBy[[2]node.Reach{r.There, model.Either(s.BackShared(r), node.ReachWorks, r.Back)}]
		by[l] = append(by[l], r)
	}
	unknown, alone := by[missingUnknown], len(s.answering) == 0
	reached := func(r *node.RemoteRange) bool { return r.There != node.ReachFails }
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
		back, rest := model.Split(by[missingUnknown], func(r *node.RemoteRange) bool { return r.Back == node.ReachWorks })
		by[missingUnknown], by[cause] = back, append(by[cause], rest...)
	}
	return by
}

// inferred reports ranges that are silent for a reason that no file names.
func (s *udrSearch) inferred(silent []*node.RemoteRange) {
	by := s.byMissing(silent)
	together := func(list []*node.RemoteRange, l missingRoute) {
		if len(list) > 0 {
			slices.SortFunc(list, node.CompareRanges)
			s.Report(s.noReturn(list, nil, l))
		}
	}
	together(by[missingOwn], missingOwn)
	together(by[missingBoth], missingBoth)
	for _, r := range by[missingTheirs] {
		together([]*node.RemoteRange{r}, missingTheirs)
	}
	alone, rest := model.Split(by[missingUnknown], func(r *node.RemoteRange) bool {
		return len(s.answering) > 0 || r.Back == node.ReachWorks
	})
	for _, r := range alone {
		if one := []*node.RemoteRange{r}; s.suffices(one) {
			together(one, missingUnknown)
		}
	}
	// Of ranges that are reached only the return path is in doubt, and no probe asked for that.
	_, rest = model.Split(rest, func(r *node.RemoteRange) bool { return r.There == node.ReachWorks })
	if s.suffices(rest) {
		together(rest, missingUnknown)
	}
}

// suffices reports whether the silence of the ranges shows that a route is missing:
// several addresses are silent, or the node's own echo is lost too, while others
// reply. One address alone may be down, slow, or denied by a policy (NoReply).
func (s *udrSearch) suffices(silent []*node.RemoteRange) bool {
	remotes := s.SumPeers(silentPeers(silent)).Peers
	is := func(what func(*node.RemoteRange) bool) bool { return slices.ContainsFunc(silent, what) }
	return (len(remotes) > 1 || is(func(r *node.RemoteRange) bool { return r.There == node.ReachFails })) &&
		(s.controls(silent) != nil || is(s.familyAnswered))
}

// familyAnswered reports whether a machine answered an echo with an address of the range's family.
func (s *udrSearch) familyAnswered(r *node.RemoteRange) bool { return s.EchoAnswered(r.Six()) }

// noReturn is the finding on one silent range, or on all of them, or on those
// that a cause in the files explains. missing is what other signs say.
func (s *udrSearch) noReturn(silent []*node.RemoteRange, cause *udrCause, missing missingRoute) fault.Fault {
	v := s.Input
	f := fault.Fault{Finding: model.Finding{Peers: model.Map(silent, node.PrefixOf)}}
	asks := model.Sum(silent, func(r *node.RemoteRange) uint64 { return r.Asks })
	x := v.SumPeers(silentPeers(silent))
	f.Pods, f.Packets = node.Sorted(x.Pods), x.Packets
	if len(f.Pods) == 0 {
		f.Pods = slices.DeleteFunc(podsIn(v.Index, s.own), func(a netip.Addr) bool {
			return !slices.ContainsFunc(silent, func(r *node.RemoteRange) bool { return r.Six() == a.Is6() })
		})
	}
	name, control := v.LinkName(x.Link), s.controls(silent)
	f.LastHopAlive = v.Place(name, model.Egress)
	flows, _ := node.UnrepliedCount(v.Index, func(_, remote netip.Addr) bool { return inRanges(silent, remote) })
	is := func(what func(*node.RemoteRange) bool) bool { return slices.ContainsFunc(silent, what) }
	f.Facts = words.Facts{
		"link": name, "queue": v.DroppingQueue(name), "dropping": v.Dropping(), "requests": x.Requests, "remotes": x.Peers, "flows": flows,
		"frames": framesToGateway(v.Index, silent), "control": control, "errors": x.Errors, "asks": asks,
		"known": s.known(silent), "several": len(silent) > 1, "any": s.answering, "file": cause,
		"own": missing == missingOwn, "theirs": missing == missingTheirs, "both": missing == missingBoth,
		"unclear": cause == nil && missing == missingUnknown,
		"reached": is(func(r *node.RemoteRange) bool { return r.There == node.ReachWorks }), "returns": silent[0].Back == node.ReachWorks,
		"unreturned": is(func(r *node.RemoteRange) bool { return r.Back == node.ReachFails }),
		"unknown":    is(func(r *node.RemoteRange) bool { return v.NodeOf(r.CIDR) == nil }), "down": is(func(r *node.RemoteRange) bool { return ownerSilent(v.Index, r) }),
	}
	if cause == nil {
		f.Facts["below"] = v.Below(name)
	} else {
		f.Facts["own"], f.Facts["theirs"] = cause.own && !cause.Unassociated, !cause.own && !cause.Unassociated
		if cause.State == node.RouteUnlisted && control == nil && !is(s.familyAnswered) {
			f.Confidence, f.Facts["alone"] = model.Possible, true
		}
		f.Facts["unlisted"] = cause.State == node.RouteUnlisted
	}
	AddRows(&f.Finding, s.missingRows(silent, cause, missing)...)
	if ranges, listed := v.Unlisted(); len(ranges) > 0 && missing != missingTheirs && (cause == nil || cause.own) {
		// A route to these would be against the cluster's own, which may lead them to another node.
		f.Rows, f.Facts["unlisted"], f.Facts["strays"], f.Facts["listed"] = nil, nil, ranges, listed
	}
	f.Silences = silencesNetwork(v.Index, &f.Finding)
	return f
}

// missingRows are what the network lacks, with the values that are known.
func (s *udrSearch) missingRows(silent []*node.RemoteRange, cause *udrCause, missing missingRoute) (rows []model.Row) {
	var table *model.RouteTable
	if cause != nil {
		table = cause.Table
	}
	own := ownRows(s.Index, silent, table)
	rows = model.Map(silent, func(r *node.RemoteRange) model.Row { return rangeRow(s.Index, r.CIDR, table) })
	switch {
	case cause != nil && cause.Unassociated:
		return []model.Row{s.Associate(cause.Subnet, table)}
	case cause != nil && cause.own:
		return own
	case cause != nil || missing == missingTheirs:
		return rows
	case missing == missingOwn:
		if !slices.ContainsFunc(silent, func(r *node.RemoteRange) bool { return r.There == node.ReachWorks }) {
			own = append(own, s.TableRow()...)
		}
		return own
	case missing == missingBoth || len(silent) > 1:
		return append(s.TableRow(), own...)
	case len(s.answering) == 0:
		rows = append(rows, own...)
	}
	return append(rows, s.TableRow()...)
}

// known is what the cluster, the files and the probes say of the ranges and of the paths to and from them.
func (s *udrSearch) known(ranges []*node.RemoteRange) []model.Evidence {
	v := s.Input
	var out []model.Evidence
	var asked []*model.Probe
	for _, r := range ranges {
		asked = append(asked, r.Probes...)
		asked = append(asked, model.Map(v.OwnerAddrs(r), v.Echoed)...)
		out = append(out, words.Say("udr-range", words.Facts{"node": v.NodeOf(r.CIDR), "filed": s.filed[r.CIDR]})...)
	}
	asked = append(asked, model.Flat(ranges, func(r *node.RemoteRange) []*model.Probe { return v.BackProbes(r.Six()) })...)
	return append(out, node.ProbeEvidence(asked)...)
}

// gatewayFrame are frames of a pod's packets that went to a gateway.
type gatewayFrame struct {
	*model.MACPair
	Owner string
}

// framesToGateway shows that the packets left with the correct MACs: by one example.
func framesToGateway(v *node.Index, silent []*node.RemoteRange) []gatewayFrame {
	for _, p := range silentPeers(silent) {
		for _, m := range v.MACPairs[p.Local] {
			if m.IfIndex == p.IfIndex && m.Side == model.AsSource && m.Direction == model.Egress &&
				v.IsGatewayMAC(m.Dst) {
				return []gatewayFrame{{m, v.Owner(m.Dst)}}
			}
		}
	}
	return nil
}

// controls are what does answer at the uplinks in the same window: other
// nodes' pods first, then anything else; nil for nothing.
func (s *udrSearch) controls(silent []*node.RemoteRange) any {
	if len(s.answering) > 0 {
		return model.Map(s.answering, node.PrefixOf)
	}
	if list := node.Answering(s.Input.Index, func(a netip.Addr) bool { return inRanges(silent, a) }); len(list) > 0 {
		return list
	}
	return nil
}

func inRanges(list []*node.RemoteRange, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(r *node.RemoteRange) bool { return r.CIDR.Contains(a) })
}

// udrCause is what the files say is missing: this node's own route, or that of one other node, or with
// Unassociated all of a subnet's; and the ranges that are silent for it.
type udrCause struct {
	node.RouteFact
	own    bool
	ranges []*node.RemoteRange
}

// readFiles asks the files about the routes of all ranges, with and without traffic.
func (s *udrSearch) readFiles() {
	s.filed, s.settled = map[netip.Prefix][]node.RouteFact{}, map[netip.Prefix]bool{}
	if len(s.own) == 0 || !s.Told() {
		return
	}
	for _, r := range unclaimedRanges(s.Input, s.FabricRanges()) {
		if r.Answers || s.Silenced(netip.Addr{}, r.CIDR) {
			continue
		}
		cause := s.fileCause(r)
		if cause == nil {
			continue
		}
		s.settled[r.CIDR] = true
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
func (s *udrSearch) fileCause(r *node.RemoteRange) *udrCause {
	there, back := s.RouteTo(r.CIDR, s.NodeOf(r.CIDR), s.Self()), s.RouteBack(r.CIDR)
	missing := func(f node.RouteFact) bool {
		return f.State == node.RouteMissing || len(r.Silent) > 0 && f.State == node.RouteUnlisted
	}
	switch {
	case missing(there) && !r.NodeAnswers:
		return &udrCause{RouteFact: there}
	case missing(back) && r.Back != node.ReachWorks:
		return &udrCause{RouteFact: back, own: true}
	}
	s.settled[r.CIDR] = (there.State == node.RouteCorrect || r.There == node.ReachWorks) &&
		(back.State == node.RouteCorrect || r.Back == node.ReachWorks)
	for _, f := range []node.RouteFact{there, back} {
		if f.State != node.RouteUnknown {
			s.filed[r.CIDR] = append(s.filed[r.CIDR], f)
		}
	}
	return nil
}
