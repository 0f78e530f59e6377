package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/lasthop/lasthop/kind"
)

// TestDemos runs every scenario from the lab to the verdict: the broken ones
// must give exactly their findings, the healthy ones none. Status 0 says so.
// Those in testdata have two faults at once, and other addresses and names
// than any cluster that the scenarios were made after; or what is wrong is no
// fault, or does no harm.
func TestDemos(t *testing.T) {
	var names []string
	for _, s := range kind.Scenarios() {
		names = append(names, s.Name)
	}
	more, err := filepath.Glob("testdata/scenarios/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(names, more...) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("lasthop", "demo", name, "--for", "6s", "-o", "wide")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
			nothingLeft(t, fmt.Sprintf("demo%d", cmd.Process.Pid))
		})
	}
}
