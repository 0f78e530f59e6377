package main

import (
	"bytes"
	"fmt"
	"os"
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

// seeds are how many variants of every healthy scenario are tried: with other
// addresses, names and order of all that its file leaves open.
const seeds = 3

// seeded is the file of a scenario's variant.
func seeded(t *testing.T, name string, seed int) string {
	t.Helper()
	if filepath.Ext(name) == "" {
		name = filepath.Join("../../kind/scenarios", name+".yaml")
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), filepath.Base(name))
	if err := os.WriteFile(file, fmt.Appendf(text, "\nseed: %d\n", seed), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestDemos runs every scenario from the lab to the verdict: the broken ones
// must give exactly their findings, the healthy ones none, whatever the seed.
// Status 0 says so, and the report that was printed is held against the scenario
// once more.
func TestDemos(t *testing.T) {
	t.Parallel()
	var all matrix
	t.Cleanup(func() { all.report(t) })
	for _, name := range demos(t) {
		s, err := kind.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			demo(t, &all, name, 0, "6s")
		})
		for seed := 1; seed < seeds && s.Expect.Healthy(); seed++ {
			t.Run(fmt.Sprintf("%s seed %d", filepath.Base(name), seed), func(t *testing.T) {
				t.Parallel()
				demo(t, &all, seeded(t, name, seed), seed, "4s")
			})
		}
	}
}

// demo runs one scenario, and adds what came of it to all.
func demo(t *testing.T, all *matrix, name string, seed int, window string) {
	s, err := kind.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	trial := trialOf{scenario: s.Name, seed: seed, expect: s.Expect, wrong: true}
	defer func() { all.add(trial) }()
	cmd := exec.Command("lasthop", "demo", name, "--for", window, "-o", "json")
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
}
