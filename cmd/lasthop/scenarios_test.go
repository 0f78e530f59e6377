package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/lasthop/lasthop/kind"
)

// demos are the scenarios that come with lasthop, and those in testdata, which
// have two or three faults at once, and other addresses and names than any
// cluster that the scenarios were made after; or what is wrong is no fault, or
// does no harm.
func demos(t *testing.T) []string {
	var names []string
	for _, s := range kind.Scenarios() {
		names = append(names, s.Name)
	}
	more, err := filepath.Glob("testdata/scenarios/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return append(names, more...)
}

// TestDemos runs every scenario from the lab to the verdict: the broken ones
// must give exactly their findings, the healthy ones none. Status 0 says so,
// and the report that was printed is held against the scenario once more.
func TestDemos(t *testing.T) {
	t.Parallel()
	var all matrix
	t.Cleanup(func() { all.report(t) })
	for _, name := range demos(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			s, err := kind.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			trial := trialOf{scenario: s.Name, expect: s.Expect, wrong: true}
			defer func() { all.add(trial) }()
			cmd := exec.Command("lasthop", "demo", name, "--for", "6s", "-o", "json")
			var report, log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &report, &log
			if err := cmd.Run(); err != nil {
				t.Errorf("%v:\n%s%s", err, &log, &report)
			}
			if trial.found, err = decodeFindings(report.Bytes()); err != nil {
				t.Errorf("read the report: %v", err)
			} else if wrong := s.Expect.Mismatches(exitOf(trial.found), trial.found); len(wrong) > 0 {
				t.Errorf("the report is not what %s expects: %q", s.Name, wrong)
			}
			trial.wrong = t.Failed()
			nothingLeft(t, fmt.Sprintf("demo%d", cmd.Process.Pid))
		})
	}
}
