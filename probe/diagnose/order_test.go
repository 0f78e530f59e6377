package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// Each code is in the catalogue once, and packets that go on are no outage.
func TestKinds(t *testing.T) {
	var codes []model.Code
	for _, k := range kinds {
		if slices.Contains(codes, k.page.Code) {
			t.Errorf("%s is in the catalogue twice", k.page.Code)
		}
		codes = append(codes, k.page.Code)
		if k.passes && k.page.Severity == model.Critical {
			t.Errorf("%s contradicts itself", k.page.Code)
		}
	}
}

// A kind sees the findings of those before it, and of no others; what they account
// for it does not report again.
func TestOrder(t *testing.T) {
	saved := kinds
	defer func() { kinds = saved }()
	seen := map[model.Code][]model.Code{}
	one := func(c model.Code, accounts, pods string) kind {
		return kind{page: Page{Code: c}, find: func(v *view) []finding {
			for _, f := range v.prior {
				seen[c] = append(seen[c], f.Code)
			}
			f := finding{Finding: model.Finding{Title: "x"}}
			if accounts != "" {
				f.accounts = []netip.Addr{addr(accounts)}
			}
			if pods != "" {
				f.Pods = []netip.Addr{addr(pods)}
			}
			return []finding{f}
		}}
	}
	kinds = []kind{one("A", "192.0.2.1", ""), one("B", "", "192.0.2.1"), one("C", "", "192.0.2.2")}
	found := Diagnose(&model.Snapshot{})
	if len(found) != 2 || found[0].Verify != "lasthop check --only A" || found[1].Code != "C" {
		t.Errorf("found %+v", found)
	}
	for code, want := range map[model.Code][]model.Code{"A": nil, "B": {"A"}, "C": {"A"}} {
		if !slices.Equal(seen[code], want) {
			t.Errorf("%s saw %v, want %v", code, seen[code], want)
		}
	}
}
