package lab

import (
	"maps"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
)

// TestFaultTables: every fault that a file can name can be made, the other way
// round too, and each says what it does.
func TestFaultTables(t *testing.T) {
	made, named := slices.Sorted(maps.Keys(injections)), scenario.FaultTypes()
	if !slices.Equal(made, named) {
		t.Errorf("made %q\nnamed %q", made, named)
	}
	all := 0
	for _, table := range injectionTables {
		all += len(table)
	}
	if all != len(injections) {
		t.Errorf("%d faults in %d rows", len(injections), all)
	}
	for _, f := range named {
		if f.Doc() == "" {
			t.Errorf("%s: no doc", f)
		}
	}
}
