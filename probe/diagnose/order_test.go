package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
)

// Each code is in the catalogue once, and packets that go on are no outage.
func TestKinds(t *testing.T) {
	var codes []model.Code
	for _, k := range kinds {
		if slices.Contains(codes, k.code) {
			t.Errorf("%s is in the catalogue twice", k.code)
		}
		codes = append(codes, k.code)
		if k.passes && k.severity == model.Critical {
			t.Errorf("%s contradicts itself", k.code)
		}
	}
}

// What a finding cuts off is not reported again by the kinds after it; of a drop, the first
// finding whose cause makes it is told.
func TestOrder(t *testing.T) {
	saved := kinds
	defer func() { kinds = saved }()
	claimed := map[model.Code]bool{}
	one := func(c model.Code, cutOff, pods string) kind {
		return kind{code: c, find: func(v *fault.Input) {
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
	kinds = []kind{one("A", "192.0.2.1", ""), one("B", "", "192.0.2.1"), one("C", "", "192.0.2.2")}
	v := Judge(&model.Snapshot{Traffic: model.Traffic{Drops: []model.Drop{{Src: addr("192.0.2.3"), Dst: addr("192.0.2.1"), Packets: 9}}}})
	found, causes := v.Findings, v.Causes
	if len(found) != 2 || found[0].Verify != "lasthop check --only A" || found[1].Code != "C" {
		t.Errorf("found %+v", found)
	}
	if len(causes) != 1 || causes[0].Code != "A" || claimed["A"] || !claimed["B"] || !claimed["C"] {
		t.Errorf("the drop's cause is %+v; it was claimed before %v", causes, claimed)
	}
}
