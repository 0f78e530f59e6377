package diagnose_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/diagnose"
)

// TestAccuracyRows: docs/accuracy.md has one row for every finding of the
// catalogue, none for any other, and no cell is empty.
func TestAccuracyRows(t *testing.T) {
	text, err := os.ReadFile("../../docs/accuracy.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows, codes []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|\\n]+) \\| ([^|\\n]+) \\| ([^|\\n]+) \\|$").FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, m[1])
	}
	for _, p := range diagnose.Kinds() {
		codes = append(codes, string(p.Code))
	}
	if !slices.IsSorted(rows) {
		t.Errorf("rows are not sorted: %q", rows)
	}
	if slices.Sort(codes); !slices.Equal(slices.Sorted(slices.Values(rows)), codes) {
		t.Errorf("rows %q\nfindings %q", rows, codes)
	}
}
