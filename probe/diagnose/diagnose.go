// Package diagnose turns a snapshot of a node into findings: which traffic
// dies where, and why. It is pure: it reads no clock, no file and no kernel,
// and the same snapshot always gives the same findings in the same order.
package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Page is a finding's entry in the catalogue.
type Page struct {
	Code     model.Code
	Severity model.Severity
	// Title is a line, Meaning a paragraph.
	Title   string
	Meaning string
	// Evidence says what proves it, Fix what mends it, Verify how to see
	// that it is mended.
	Evidence string
	Fix      string
	Verify   string
}

// kind is an entry of the catalogue: how its findings are made, and how they
// relate to those of other kinds.
type kind struct {
	page Page
	find func(*view) []finding
	// after names the kinds that may explain what this one would report, and
	// explains those whose findings this one may explain: each relation is
	// stated by one of the two. A kind is judged after those that may explain
	// it, and view.prior holds the findings of no others.
	after, explains []model.Code
	// rest: it reports what no other kind explains, so that all others come
	// before it.
	rest bool
	// ends are the kinds of hop at which the finding's packets end, the likeliest
	// first; nil leaves that to the tables and counts. passes: they do not end.
	ends   []model.HopKind
	passes bool
}

// finding is a finding with the drops that it explains.
type finding struct {
	model.Finding
	// explains reports whether the finding's cause accounts for a drop, so that
	// no other finding reports it; nil where it accounts for none.
	explains func(*model.Drop) bool
	// accounts are addresses that the cause cuts off: a finding about none but
	// these, of a kind that this finding's kind may explain, is a consequence and
	// is not reported.
	accounts []netip.Addr
}

// consequence reports whether prior findings account for all that this one is
// about: its pods, or its peers.
func (v *view) consequence(f finding) bool {
	accounted := map[netip.Addr]bool{}
	for p := range model.Each(v.prior) {
		for _, a := range p.accounts {
			accounted[a] = true
		}
	}
	return len(f.Pods) > 0 && !slices.ContainsFunc(f.Pods, func(a netip.Addr) bool { return !accounted[a] }) ||
		len(f.Peers) > 0 && !slices.ContainsFunc(f.Peers, func(x netip.Prefix) bool { return !x.IsSingleIP() || !accounted[x.Addr()] })
}

// kinds is the catalogue, in the order in which it is printed.
var kinds = []kind{
	podLinkDown,
	podAddress,
	podPrefix,
	podDefaultRoute,
	duplicateMAC,
	podLinkOffBridge,
	bridgePortBlocked,
	bridgeAddress,
	staleFDB,
	staleMACRewrite,
	staleARPReply,
	forwardingDisabled,
	missingPodRoute,
	wrongUDR,
	deadBackend,
	routingLoop,
	blackholeRoute,
	missingNodeRoute,
	wrongNodeRoute,
	missingDefaultRoute,
	reversePathFilter,
	pathMTU,
	nicForwarding,
	udrLimit,
	missingUDR,
	missingMasquerade,
	wrongGatewayMAC,
	bridgeRuleDrop,
	staleNeighbor,
	wrongNextHopMAC,
	duplicatePodIP,
	hairpinDrop,
	bridgeNetfilterOff,
	unexpectedMasquerade,
	unansweredARP,
	snatPortExhaustion,
	foreignSNAT,
	staleFlow,
	conntrackFull,
	conntrackRace,
	invalidDrop,
	queueDrop,
	policyDrop,
	bpfDrop,
	noListener,
	receiveOverflow,
	podNotReplying,
	noReply,
	unexplainedDrop,
}

// inOrder are the kinds in the order in which they are judged.
var inOrder, _ = order(kinds)

// order puts each kind after those that may explain it, and keeps the order of
// the list otherwise. cyclic are the kinds that
// wait for each other, or for one in a cycle.
func order(list []kind) (out []*kind, cyclic []model.Code) {
	var left []*kind
	for i := range list {
		left = append(left, &list[i])
	}
	for len(left) > 0 {
		next := slices.IndexFunc(left, func(k *kind) bool {
			return !slices.ContainsFunc(left, func(o *kind) bool { return mayExplain(o, k) })
		})
		if next < 0 {
			next, cyclic = 0, append(cyclic, left[0].page.Code)
		}
		out, left = append(out, left[next]), slices.Delete(left, next, next+1)
	}
	return out, cyclic
}

// mayExplain reports whether findings of the first kind may explain those of the
// second.
func mayExplain(first, second *kind) bool {
	return second.rest && !first.rest || slices.Contains(second.after, first.page.Code) || slices.Contains(first.explains, second.page.Code)
}

// Catalogue lists every finding that Diagnose can report.
func Catalogue() []Page {
	pages := make([]Page, len(kinds))
	for i, k := range kinds {
		pages[i] = k.page
		pages[i].Verify = verify(k.page.Code)
	}
	return pages
}

// verify is the command that shows whether a finding is still there.
func verify(code model.Code) string { return "lasthop check --only " + string(code) }

// Relate returns findings, which a recording may hold, with what the catalogue
// says of each and no recording holds: EndsAt and Passes.
func Relate(findings []model.Finding) []model.Finding {
	out := slices.Clone(findings)
	for i := range out {
		if at := slices.IndexFunc(kinds, func(k kind) bool { return k.page.Code == out[i].Code }); at >= 0 {
			out[i].EndsAt, out[i].Passes = kinds[at].ends, kinds[at].passes
		}
	}
	return out
}

// Diagnose judges a snapshot. The findings are sorted: the worst and surest
// first, then by code and pod.
func Diagnose(s *model.Snapshot) []model.Finding {
	findings, _ := Judge(s)
	return findings
}

// Judge is Diagnose that also tells what accounts for each of the snapshot's
// drops, in their order.
func Judge(s *model.Snapshot) ([]model.Finding, []model.DropCause) {
	v := newView(s)
	out := v.findings()
	return out, v.causes()
}

// findings judges, and sorts what was found.
func (v *view) findings() []model.Finding {
	v.judge()
	out := make([]model.Finding, len(v.prior))
	for i, f := range v.prior {
		out[i] = f.Finding
	}
	Sort(out)
	return out
}

// Sort puts findings into the order of Diagnose.
func Sort(list []model.Finding) {
	slices.SortStableFunc(list, func(a, b model.Finding) int {
		return cmp.Or(
			model.WorstFirst(&a, &b),
			cmp.Compare(b.Confidence.Rank(), a.Confidence.Rank()),
			cmp.Compare(a.Code, b.Code),
			slices.CompareFunc(a.Pods, b.Pods, netip.Addr.Compare),
			slices.CompareFunc(a.Peers, b.Peers, comparePrefix),
			cmp.Compare(a.Title, b.Title),
		)
	})
}

// judge runs the kinds, each with the findings of those that may explain its own,
// and leaves all findings in prior.
func (v *view) judge() {
	found := make([][]finding, len(inOrder))
	for i, k := range inOrder {
		scope := view{index: v.index}
		for j, earlier := range inOrder[:i] {
			if mayExplain(earlier, k) {
				scope.prior = append(scope.prior, found[j]...)
			}
		}
		found[i] = slices.DeleteFunc(k.find(&scope), scope.consequence)
		for f := range model.Each(found[i]) {
			f.Code, f.EndsAt, f.Passes = k.page.Code, k.ends, k.passes
			f.Severity = cmp.Or(f.Severity, k.page.Severity)
			f.Verify = cmp.Or(f.Verify, verify(k.page.Code))
			f.Pods = slices.SortedFunc(slices.Values(f.Pods), netip.Addr.Compare)
		}
		v.prior = append(v.prior, found[i]...)
	}
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// host is the prefix that holds one address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// hosts are the prefixes that hold one address each.
func hosts(list []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range list {
		out = append(out, host(a))
	}
	return out
}
