package main

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/probe/agree"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// What tools/kernels sets: how programs are attached, where the kernel has several
// ways, and which scenarios are tried.
var (
	testAttach = flag.String("attach", "", "attach programs this `way` in TestDemos")
	testOnly   = flag.String("scenarios", "", "run these `scenarios` once and no others in TestDemos: names and files, with commas")
	testMend   = flag.Bool("mend", true, "run the fixes that TestDemos is given")
	testSlow   = flag.Int("slow", 1, "the machine is so many `times` slower: have flows of labs send as much in so many times the time")
)

// windowOf is how long a scenario is watched. Who asks for a MAC in vain gives up after 3 s, and what waited for it is
// dropped then: each window has such an end, on a busy machine as well.
func windowOf() time.Duration { return 5 * time.Second * time.Duration(*testSlow) }

// demos are the scenarios that come with lasthop, and those in testdata, which
// have two or three faults at once, and other addresses and names than any
// cluster that the scenarios were made after; or what is wrong is no fault, or
// does no harm.
func demos(t *testing.T) []string {
	// All take a minute to parse on an emulated CPU.
	if *testOnly != "" {
		return strings.Split(*testOnly, ",")
	}
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

// seedsVariable is the environment variable that says how many variants of every
// healthy scenario are tried, one unless it is set: with other addresses, names and
// order of all that its file leaves open.
const seedsVariable = "LASTHOP_SEEDS"

func seeds(t *testing.T) int {
	t.Helper()
	text := os.Getenv(seedsVariable)
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, not a number of seeds", seedsVariable, text)
	}
	return n
}

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
	for i, name := range demos(t) {
		s, err := kind.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if s.Together() {
			continue // TestBothEnds watches those.
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			demo(t, &all, name, 0, !testing.Short() || i%whole == 0)
		})
		// A state that was made on purpose may name addresses, which no seed changes.
		for seed := 1; seed < seeds(t) && *testOnly == "" && s.Expect.Healthy() && len(s.Faults) == 0; seed++ {
			t.Run(fmt.Sprintf("%s seed %d", filepath.Base(name), seed), func(t *testing.T) {
				t.Parallel()
				demo(t, &all, seeded(t, name, seed), seed, !testing.Short())
			})
		}
	}
}

// few are n of a list in the short form of a test, spread over it, and all of it in the long one.
func few[T any](list []T, n int) []T {
	if !testing.Short() || len(list) <= n {
		return list
	}
	var out []T
	for i := range n {
		out = append(out, list[i*len(list)/n])
	}
	return out
}

// healthyScenarios are the names of those that come with lasthop.
func healthyScenarios() []string {
	var out []string
	for _, info := range kind.Scenarios() {
		if strings.HasPrefix(info.Name, "healthy-") {
			out = append(out, info.Name)
		}
	}
	return out
}

// whole is of how many scenarios one is judged in every way in the short form of TestDemos: also without each source in
// turn, redacted, and in every format.
const whole = 5

// demo runs one scenario, and adds what came of it to all.
func demo(t *testing.T, all *matrix, name string, seed int, every bool) {
	s, err := kind.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	trial := trialOf{scenario: s.Name, seed: seed, expect: s.Expect, wrong: true}
	defer func() { all.add(trial) }()
	l := upLab(t, name)
	var printed, log bytes.Buffer
	a := &app{stdout: &printed, stderr: &log}
	args := []string{"--for", windowOf().String(), "-o", "json"}
	if *testAttach != "" {
		args = append(args, "--attach", *testAttach)
	}
	o := given(t, args...)
	r, traffic, err := a.reportLab(t.Context(), o, l)
	if err != nil {
		t.Fatalf("%v:\n%s", err, &log)
	}
	if err := a.tellLab(o, l, r, traffic); err != nil {
		t.Errorf("%v:\n%s%s", err, &log, &printed)
	}
	inTurn(func() {
		checkAgreed(t, r.Snapshot)
		checkReach(t, s.Name, &r)
		if every {
			checkAccusations(t, r.Snapshot)
			checkRedacted(t, r)
			checkDocuments(t, printed.Bytes())
		}
	})
	if trial.found, err = decodeFindings(printed.Bytes()); err != nil {
		t.Errorf("read the report: %v", err)
	} else if wrong := s.Expect.Mismatches(exitOf(trial.found), trial.found); len(wrong) > 0 {
		t.Errorf("the report is not what %s expects: %q", s.Name, wrong)
	}
	var about []netip.Addr
	for _, f := range trial.found {
		about = append(about, f.Pods...)
	}
	if trial.drops, err = tracedDrops(printed.Bytes(), about); err != nil {
		t.Errorf("read the report: %v", err)
	}
	checkVariant(t, trial.found)
	// What is wrong in the files that are given alone is not mended in a lab.
	if trial.wrong = t.Failed(); !trial.wrong && *testMend && len(trial.found) > 0 && len(s.Faults) > 0 {
		trial.mending = mend(t, l, trial.found, look)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, l.ID())
}

// checkAgreed wants what is found and the paths of the packets to agree.
func checkAgreed(t *testing.T, s *model.Snapshot) {
	t.Helper()
	v := diagnose.Judge(s)
	for _, d := range agree.Disagreements(s, v.Findings, v.Causes) {
		t.Error(d)
	}
	for _, u := range agree.Unaccounted(s, v) {
		t.Error("no name for", u)
	}
}

// checkAccusations wants nothing to be found because a source was not read.
func checkAccusations(t *testing.T, s *model.Snapshot) {
	t.Helper()
	proven, healthy := agree.Accusations(s, diagnose.Judge)
	for _, a := range append(proven, healthy...) {
		t.Error(a)
	}
}

// checkVariant wants rules of bridges deleted in that variant of ebtables which the
// lab keeps them in.
func checkVariant(t *testing.T, found []model.Finding) {
	t.Helper()
	other := "ebtables-legacy"
	if tables() == model.Legacy {
		other = "ebtables-nft"
	}
	for _, f := range found {
		if fix := strings.Join(f.Fix, "\n"); strings.Contains(fix, other) || strings.Contains(fix, "ebtables -") {
			t.Errorf("%s names the wrong variant of ebtables:\n%s", f.Code, fix)
		}
	}
}

// TestKernelScenarios: what is to be tried on other kernels is there, since a test
// that does not exist passes; and no file is left out.
func TestKernelScenarios(t *testing.T) {
	const dir = "../../tools/kernels/"
	script, err := os.ReadFile(dir + "inside")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, list := range regexp.MustCompile(`(?sm)^(?:scenarios|legacy)=\((.*?)\)`).FindAllSubmatch(script, -1) {
		names = append(names, strings.Fields(string(list[1]))...)
	}
	if len(names) == 0 {
		t.Fatal("no list of scenarios")
	}
	files, err := filepath.Glob(dir + "scenarios/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !slices.Contains(names, strings.TrimSuffix(filepath.Base(file), ".yaml")) {
			t.Errorf("%s is not tried", file)
		}
	}
	for _, name := range names {
		if file := dir + "scenarios/" + name + ".yaml"; slices.Contains(files, file) {
			name = file
		}
		if _, err := kind.Load(name); err != nil {
			t.Error(err)
		}
	}
}
