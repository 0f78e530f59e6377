package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
)

// before says of pairs of kinds why the first is judged before the second, which would claim losses of its causes.
var before = map[[2]model.Code]string{
	{"DuplicateMAC", "StaleNeighbor"}:            "the entry may hold the MAC that the pod had",
	{"MissingDefaultRoute", "ReversePathFilter"}: "without a route back, the filter refuses what comes in",
	{"DuplicatePodIP", "WrongGatewayMAC"}:        "who has the gateway's address answers for it",
	{"BridgeRuleDrop", "NoReply"}:                "the sender of a dropped request sees no reply",
	{"BridgeRuleDrop", "StaleNeighbor"}:          "an entry whose requests a rule drops stays unresolved",
	{"NSGDrop", "MissingUDR"}:                    "what a rule denies is as silent as what no route leads to",
	{"NSGDrop", "NoReply"}:                       "the sender of what a rule denies sees no reply",
	{"MissingOutbound", "MissingMasquerade"}:     "what the subnet lets out to nowhere, no other source would help",
	{"ConntrackFull", "PolicyDrop"}:              "netfilter drops these as well",
	{"ConntrackFull", "ConntrackRace"}:           "a full table refuses entries of all flows",
	{"ConntrackRace", "PolicyDrop"}:              "netfilter drops these as well",
	{"ReceiveOverflow", "PodNotReplying"}:        "who reads nothing replies to nothing",
}

// Each code is in the catalogue once, and packets that go on are no outage.
func TestKinds(t *testing.T) {
	var codes []model.Code
	for _, k := range kinds {
		if slices.Contains(codes, k.Code) {
			t.Errorf("%s is in the catalogue twice", k.Code)
		}
		codes = append(codes, k.Code)
		if k.Passes && k.Severity == model.Critical {
			t.Errorf("%s contradicts itself", k.Code)
		}
	}
}

// What leaves an alternative of a kind is a value that a page of it names, or a page.
func TestAlternatives(t *testing.T) {
	for k := range model.Each(kinds) {
		var pages []string
		for _, path := range must(filepath.Glob("../words/pages/" + string(k.Code) + "*.txt")) {
			pages = append(pages, strings.TrimSuffix(filepath.Base(path), ".txt"))
		}
		for _, name := range strings.Fields(strings.ReplaceAll(strings.Join(k.Else, " "), "!", "")) {
			if !slices.ContainsFunc(pages, func(p string) bool { return p == name || namesOf(p)[name] }) {
				t.Errorf("%s has an alternative with %s, which no page of it names", k.Code, name)
			}
		}
	}
}

// proposed are the kinds that proposed something since it was cleared.
var proposed = map[model.Code]bool{}

// swapped are the pairs of kinds of which a verdict is another in the other order, each with an example.
var swapped = map[[2]model.Code]string{}

// swapKinds judges a snapshot again with each two neighbours of the list in the other order, and with each kind behind
// those that it is declared to stand before, and notes where the verdict is another. In the short form the first of the
// two has proposed something, as otherwise the second sees what it saw before.
func swapKinds(test string, judged *fault.Input, told string) {
	saved, first := kinds, maps.Clone(proposed)
	defer func() { kinds = saved }()
	for i, k := range saved {
		for j := i + 1; j < len(saved); j++ {
			pair := [2]model.Code{k.Code, saved[j].Code}
			if j > i+1 && before[pair] == "" || testing.Short() && !first[k.Code] || swapped[pair] != "" {
				continue
			}
			kinds = slices.Concat(saved[:i], saved[i+1:j+1], saved[i:i+1], saved[j+1:])
			if other := verdictOf(judged); other != told {
				swapped[pair] = fmt.Sprintf("of a snapshot of %s the verdict is\n%sinstead of\n%s", test, other, told)
			}
		}
	}
}

// misordered compares what depends on the order with what the list declares, in all snapshots that tests judge.
func misordered() (out []string) {
	for i, k := range kinds {
		for j := i + 1; j < len(kinds); j++ {
			pair := [2]model.Code{k.Code, kinds[j].Code}
			switch reason, example := before[pair], swapped[pair]; {
			case reason == "" && example != "":
				out = append(out, fmt.Sprintf("%s is before %s, and the list does not say why: with the two swapped, %s", pair[0], pair[1], example))
			case reason != "" && example == "":
				out = append(out, fmt.Sprintf("%s is before %s (%s), and no verdict shows it", pair[0], pair[1], reason))
			}
		}
	}
	at := func(code model.Code) int {
		return slices.IndexFunc(kinds, func(k fault.Kind) bool { return k.Code == code })
	}
	for pair := range before {
		if at(pair[0]) < 0 || at(pair[0]) > at(pair[1]) {
			out = append(out, fmt.Sprintf("%s is declared to stand before %s, and does not", pair[0], pair[1]))
		}
	}
	return out
}

// What a finding cuts off is not reported again by the kinds after it; of a drop, the first
// finding whose cause makes it is told.
func TestOrder(t *testing.T) {
	saved := kinds
	defer func() { kinds = saved }()
	claimed := map[model.Code]bool{}
	one := func(c model.Code, cutOff, pods string) fault.Kind {
		return fault.Kind{Code: c, Find: func(v *fault.Input) {
			claimed[c] = v.Explained(&v.Traffic.Drops[0])
			f := fault.Fault{Finding: model.Finding{Title: "x"}, Claims: func(*model.Drop) bool { return true }}
			if cutOff != "" {
				f.CutOff = []netip.Addr{addr(cutOff)}
			}
			if pods != "" {
				f.Pods = []netip.Addr{addr(pods)}
			}
			v.Report(f)
		}}
	}
	kinds = []fault.Kind{one("A", "192.0.2.1", ""), one("B", "", "192.0.2.1"), one("C", "", "192.0.2.2")}
	v := Judge(&model.Snapshot{Traffic: model.Traffic{Drops: []model.Drop{{Src: addr("192.0.2.3"), Dst: addr("192.0.2.1"), Packets: 9}}}})
	found, causes := v.Findings, v.Causes
	if len(found) != 2 || found[0].Verify != "lasthop check --only A" || found[1].Code != "C" {
		t.Errorf("found %+v", found)
	}
	if len(causes) != 1 || causes[0].Code != "A" || claimed["A"] || !claimed["B"] || !claimed["C"] {
		t.Errorf("the drop's cause is %+v; it was claimed before %v", causes, claimed)
	}
}
