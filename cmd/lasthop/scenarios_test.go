package main

import (
	"bytes"
	"fmt"
	"os"
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

// TestDemos runs every scenario from the lab to the verdict, as `lasthop demo`
// does: the broken ones must give exactly their findings, the healthy ones none.
// Then the fixes that were printed are run on the node. Traffic must flow again,
// and the next check find nothing.
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
		// A state that was made on purpose may name addresses, which no seed changes.
		for seed := 1; seed < seeds && s.Expect.Healthy() && len(s.Faults) == 0; seed++ {
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
	l := upLab(t, name)
	var printed, log bytes.Buffer
	a := &app{stdout: &printed, stderr: &log}
	if err := a.checkLab(t.Context(), given(t, "--for", window, "-o", "json"), l); err != nil {
		t.Errorf("%v:\n%s%s", err, &log, &printed)
	}
	if trial.found, err = decodeFindings(printed.Bytes()); err != nil {
		t.Errorf("read the report: %v", err)
	} else if wrong := s.Expect.Mismatches(exitOf(trial.found), trial.found); len(wrong) > 0 {
		t.Errorf("the report is not what %s expects: %q", s.Name, wrong)
	}
	// What is wrong in the files that are given alone is not mended in a lab.
	if trial.wrong = t.Failed(); !trial.wrong && len(trial.found) > 0 && len(s.Faults) > 0 {
		trial.mending = mend(t, l, trial.found)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, l.ID())
}
