package model_test

import (
	"fmt"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Has tells an empty table from one that was not read: no conclusion may be drawn from
// what the latter lacks.
func ExampleSnapshot_Has() {
	s := model.Snapshot{Sources: []model.Source{
		{Name: model.SourceRoutes, Status: model.OK},
		{Name: model.SourceConntrack, Status: model.Missing, Detail: "needs CAP_NET_ADMIN"},
	}}
	fmt.Println(s.Has(model.SourceRoutes), s.Has(model.SourceRoutes, model.SourceConntrack), s.Status(model.SourceNAT))
	// Output: true false missing
}

// A Drop says at which kind of hop the kernel freed the packets, whatever its version
// calls the reason.
func ExampleDrop_Hop() {
	for _, d := range []model.Drop{
		{Reason: "NETFILTER_DROP", Location: "nf_hook_slow"},
		{Location: "neigh_invalidate"}, // before Linux 5.17 there is no reason
		{Reason: "OTHERHOST", Location: "ip_rcv_core"},
	} {
		fmt.Println(d.Location, "=", d.Hop())
	}
	// Output:
	// nf_hook_slow = policy
	// neigh_invalidate = neighbor
	// ip_rcv_core = link
}

func ExampleWorstFirst() {
	findings := []model.Finding{
		{Code: "A", Severity: model.Warning, Packets: 900},
		{Code: "B", Severity: model.Critical, Packets: 1},
		{Code: "C", Severity: model.Critical, Packets: 40},
	}
	slices.SortFunc(findings, func(a, b model.Finding) int { return model.WorstFirst(&a, &b) })
	for _, f := range findings {
		fmt.Println(f.Code, f.Severity, f.Packets)
	}
	// Output:
	// C critical 40
	// B critical 1
	// A warning 900
}

// An interface's name may end in a plus, as in iptables and ebtables.
func ExampleIfMatch_Matches() {
	pods := model.IfMatch{Name: "azv+"}
	fmt.Println(pods.Matches("azv3f2"), pods.Matches("eth0"))
	// Output: true false
}
