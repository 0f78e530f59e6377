package diagnose

import (
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// The relations between findings name codes of the catalogue, each once and on
// one side, and lead to an order without a cycle.
func TestRelations(t *testing.T) {
	var codes []model.Code
	for _, k := range kinds {
		if slices.Contains(codes, k.page.Code) {
			t.Errorf("%s is in the catalogue twice", k.page.Code)
		}
		codes = append(codes, k.page.Code)
	}
	type relation struct{ first, second model.Code }
	stated := map[relation]bool{}
	state := func(by, first, second model.Code) {
		if !slices.Contains(codes, first) || !slices.Contains(codes, second) || first == second {
			t.Errorf("%s says that %q may explain %q", by, first, second)
		}
		if stated[relation{first, second}] {
			t.Errorf("%s says again that %s may explain %s", by, first, second)
		}
		stated[relation{first, second}] = true
	}
	for _, k := range kinds {
		for _, c := range k.after {
			state(k.page.Code, c, k.page.Code)
		}
		for _, c := range k.explains {
			state(k.page.Code, k.page.Code, c)
		}
		if k.rest && len(k.after)+len(k.explains) > 0 || k.passes && k.page.Severity == model.Critical {
			t.Errorf("%s contradicts itself", k.page.Code)
		}
	}
	if _, cyclic := order(kinds); cyclic != nil {
		t.Errorf("in a cycle: %v", cyclic)
	}
}

// Whatever the order of the catalogue, a finding is judged after those that may
// explain it, and a cycle is found.
func TestOrder(t *testing.T) {
	backwards := slices.Clone(kinds)
	slices.Reverse(backwards)
	for _, list := range [][]kind{kinds, backwards} {
		sorted, _ := order(list)
		if len(sorted) != len(kinds) {
			t.Fatalf("%d of %d kinds", len(sorted), len(kinds))
		}
		for i, k := range sorted {
			for _, later := range sorted[i+1:] {
				if mayExplain(later, k) {
					t.Errorf("%s is judged before %s, which may explain it", k.page.Code, later.page.Code)
				}
			}
		}
	}
	one := kind{page: Page{Code: "One"}, after: []model.Code{"Two"}}
	two := kind{page: Page{Code: "Two"}, explains: []model.Code{"Three"}, after: []model.Code{"Three"}}
	if _, cyclic := order([]kind{one, two, {page: Page{Code: "Three"}}}); !slices.Equal(cyclic, []model.Code{"One", "Two"}) {
		t.Errorf("a cycle is %v", cyclic)
	}
}

// A kind sees the findings of those that may explain its own, and of no others.
func TestPriorIsDeclared(t *testing.T) {
	saved := inOrder
	defer func() { inOrder = saved }()
	seen := map[model.Code][]model.Code{}
	one := func(k kind) kind {
		k.find = func(v *view) []finding {
			for _, f := range v.prior {
				seen[k.page.Code] = append(seen[k.page.Code], f.Code)
			}
			return []finding{{Finding: model.Finding{Title: "x"}}}
		}
		return k
	}
	list := []kind{
		one(kind{page: Page{Code: "Rest"}, rest: true}), one(kind{page: Page{Code: "C"}, after: []model.Code{"B"}}),
		one(kind{page: Page{Code: "B"}}), one(kind{page: Page{Code: "A"}, explains: []model.Code{"B"}}),
	}
	inOrder, _ = order(list)
	found := Diagnose(&model.Snapshot{})
	if len(found) != 4 || found[0].Verify != "lasthop check --only A" {
		t.Errorf("found %+v", found)
	}
	for code, want := range map[model.Code][]model.Code{"A": nil, "B": {"A"}, "C": {"B"}, "Rest": {"A", "B", "C"}} {
		if !slices.Equal(seen[code], want) {
			t.Errorf("%s saw %v, want %v", code, seen[code], want)
		}
	}
}
