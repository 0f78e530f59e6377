package main

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/lasthop/lasthop/kind"
)

// TestDemos runs every scenario from the lab to the verdict: the broken ones
// must give exactly their findings, the healthy ones none. Status 0 says so.
func TestDemos(t *testing.T) {
	for _, s := range kind.Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			cmd := exec.Command("lasthop", "demo", s.Name, "--for", "6s", "-o", "wide")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
			nothingLeft(t, fmt.Sprintf("demo%d", cmd.Process.Pid))
		})
	}
}
