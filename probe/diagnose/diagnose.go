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

// kind is an entry of the catalogue: how its findings are made.
type kind struct {
	page Page
	find func(*view) []finding
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
	// accounts are addresses that the cause cuts off: a finding of a later kind
	// about none but these is a consequence and is not reported.
	accounts []netip.Addr
	// cause is the object whose state the finding is about, effects are those that
	// its cause made so: a later finding that is about one of these is evidence of
	// this one.
	cause   any
	effects []any
}

// belief is what is believed somewhere of who has an address.
type belief struct {
	addr netip.Addr
	mac  model.MAC
}

// absorb makes a finding about an effect of this one's cause a part of it.
func (f *finding) absorb(effect *finding) {
	f.Pods = append(f.Pods, effect.Pods...)
	for _, e := range effect.Evidence {
		if !slices.Contains(f.Evidence, e) {
			f.Evidence = append(f.Evidence, e)
		}
	}
	if f.Packets == 0 {
		f.LastHopAlive = effect.LastHopAlive
	}
	if effect.Confidence == model.Proven {
		// What the cause made stays when the cause is gone.
		f.Fix = append(f.Fix, effect.Fix...)
	}
	f.Packets += effect.Packets
}

// isEffect reports whether a finding is about an effect of an earlier one's cause, and
// became a part of that.
func (v *view) isEffect(f finding) bool {
	if f.cause == nil {
		return false
	}
	at := slices.IndexFunc(v.prior, func(p finding) bool { return slices.Contains(p.effects, f.cause) })
	if at >= 0 {
		v.prior[at].absorb(&f)
		v.prior[at].Pods = sortedPods(v.prior[at].Pods)
		v.claim(&f, v.prior[at].Code)
	}
	return at >= 0
}

func sortedPods(list []netip.Addr) []netip.Addr {
	return slices.Compact(slices.SortedFunc(slices.Values(list), netip.Addr.Compare))
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

// kinds is the catalogue, in the order in which the kinds are judged: the most
// specific cause first, and what no other explains last. A kind takes from those
// after it the drops that its findings explain and the addresses that they cut off.
var kinds = []kind{
	podLinkDown,
	podAddress,
	podPrefix,
	duplicateMAC,
	podLinkOffBridge,
	bridgePortBlocked,
	podDefaultRoute,
	bridgeAddress,
	staleFDB,
	staleMACRewrite,
	staleARPReply,
	forwardingDisabled,
	missingPodRoute,
	missingTableRoute,
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
	wrongNextHopMAC,
	duplicatePodIP,
	wrongGatewayMAC,
	bridgeRuleDrop,
	staleNeighbor,
	hairpinDrop,
	bridgeNetfilterOff,
	unexpectedMasquerade,
	unansweredARP,
	snatPortExhaustion,
	foreignSNAT,
	staleFlow,
	missingUDR,
	missingMasquerade,
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

// judge runs the kinds in their order, each with the findings of those before it,
// and leaves all findings in prior.
func (v *view) judge() {
	for k := range model.Each(kinds) {
		found := slices.DeleteFunc(slices.DeleteFunc(k.find(v), v.isEffect), v.consequence)
		for f := range model.Each(found) {
			f.Code, f.EndsAt, f.Passes = k.page.Code, k.ends, k.passes
			f.Severity = cmp.Or(f.Severity, k.page.Severity)
			f.Verify = cmp.Or(f.Verify, verify(k.page.Code))
			f.Pods = sortedPods(f.Pods)
			v.claim(f, f.Code)
		}
		v.prior = append(v.prior, found...)
	}
}

// claim gives a finding the drops that its cause makes and that have none yet.
func (v *view) claim(f *finding, code model.Code) {
	if f.explains == nil {
		return
	}
	for d := range model.Each(v.Traffic.Drops) {
		if v.claimed[d] == "" && f.explains(d) {
			v.claimed[d] = code
		}
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
