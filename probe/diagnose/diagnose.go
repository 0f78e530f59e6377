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

// kind is one code of the catalogue and how it is found.
type kind struct {
	page Page
	find func(*view) []verdict
	// after names the kinds that may explain what this one would report;
	// they are judged first, and what they found is in view.verdicts.
	after []model.Code
}

// verdict is a finding with what it accounts for.
type verdict struct {
	model.Finding
	// explains reports whether the cause accounts for a drop, so that a
	// consequence is not reported as a cause of its own.
	explains func(*model.Drop) bool
}

// kinds lists the catalogue; each kind stands behind those that it names in
// after.
var kinds = []kind{
	podLinkDown,
	staleMACRewrite,
	staleARPReply,
	forwardingDisabled,
	missingPodRoute,
	wrongUDR,
	deadBackend,
	routingLoop,
	blackholeRoute,
	missingNodeRoute,
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
	duplicatePodIP,
	hairpinDrop,
	unexpectedMasquerade,
	unansweredARP,
	snatPortExhaustion,
	conntrackFull,
	conntrackRace,
	policyDrop,
	bpfDrop,
	noListener,
	receiveOverflow,
	noReply,
	unexplainedDrop,
}

// Catalogue lists every finding that Diagnose can report.
func Catalogue() []Page {
	pages := make([]Page, len(kinds))
	for i, k := range kinds {
		pages[i] = k.page
	}
	return pages
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
	v.judge()
	out := make([]model.Finding, len(v.verdicts))
	for i, found := range v.verdicts {
		out[i] = found.Finding
	}
	slices.SortStableFunc(out, func(a, b model.Finding) int {
		return cmp.Or(
			cmp.Compare(b.Severity.Rank(), a.Severity.Rank()),
			cmp.Compare(b.Confidence.Rank(), a.Confidence.Rank()),
			cmp.Compare(a.Code, b.Code),
			slices.CompareFunc(a.Pods, b.Pods, netip.Addr.Compare),
			slices.CompareFunc(a.Peers, b.Peers, comparePrefix),
			cmp.Compare(a.Title, b.Title),
		)
	})
	return out, v.causes()
}

// judge draws the verdicts, each kind behind those that may explain it.
func (v *view) judge() {
	for _, k := range kinds {
		for _, found := range k.find(v) {
			found.Code = k.page.Code
			if found.Severity == "" {
				found.Severity = k.page.Severity
			}
			if found.Verify == "" {
				found.Verify = "lasthop check --only " + string(k.page.Code)
			}
			slices.SortFunc(found.Pods, netip.Addr.Compare)
			v.verdicts = append(v.verdicts, found)
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
