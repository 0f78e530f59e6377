package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
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
	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/agree"
	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/record"
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
// and the next check find nothing. Scenarios on equal clusters go through one lab.
func TestDemos(t *testing.T) {
	t.Parallel()
	var all matrix
	t.Cleanup(func() { all.report(t) })
	for _, stops := range tours(t) {
		t.Run(filepath.Base(stops[0].name), func(t *testing.T) {
			t.Parallel()
			tour(t, &all, stops)
		})
	}
}

// stop is a scenario of a tour.
type stop struct {
	name string
	*scenario.Scenario
	seed int
	// every has it judged in every way.
	every bool
}

// mostStops bounds the time that a tour takes, since one scenario is watched after the other.
const mostStops = 8

// tours are all scenarios by the cluster that they are on.
func tours(t *testing.T) (out [][]stop) {
	t.Helper()
	open := map[string]int{}
	add := func(s stop) {
		shape, err := lab.Shape(s.Scenario)
		if err != nil {
			t.Fatal(err)
		}
		i, ok := open[shape]
		if !ok || len(out[i]) == mostStops {
			i, out = len(out), append(out, nil)
			open[shape] = i
		}
		out[i] = append(out[i], s)
	}
	first, left := novel{}, 0
	for i, name := range demos(t) {
		s := loadDemo(t, name)
		if s.Together() {
			continue // TestBothEnds watches those.
		}
		if testing.Short() && *testOnly == "" && !first.tries(s) {
			left++
			continue
		}
		add(stop{filepath.Base(name), s, 0, !testing.Short() || i%whole == 0})
		// A state that was made on purpose may name addresses, which no seed changes.
		for seed := 1; seed < seeds(t) && *testOnly == "" && s.Expect.Healthy() && len(s.Faults) == 0; seed++ {
			add(stop{fmt.Sprintf("%s seed %d", filepath.Base(name), seed), loadDemo(t, seeded(t, name, seed)), seed, !testing.Short()})
		}
	}
	if left > 0 {
		t.Logf("%d scenarios more are run by make test-all", left)
	}
	return out
}

// novel is what scenarios so far try.
type novel map[any]bool

// tries adds a scenario, and reports whether it expects a finding that none before it does, or whether its plugin's nodes
// were not tried yet, well and broken.
func (n novel) tries(s *scenario.Scenario) bool {
	before := len(n)
	n[[2]any{s.Topology.Nodes[0].Plugin, s.Expect.Healthy()}] = true
	for _, f := range s.Expect.Findings {
		n[f.Code] = true
	}
	return len(n) > before
}

// tour takes a lab from one scenario to the next. After a scenario the lab must be as it was before it, by what lasthop
// reads of the node; if not, or where the scenario went wrong, the next one has a lab of its own.
func tour(t *testing.T, all *matrix, stops []stop) {
	var l *lab.Lab
	var sound, before []string
	for i, s := range stops {
		if l == nil {
			none := *s.Scenario
			none.Faults = nil
			l, before = upScenario(t, &none), nil
			if i < len(stops)-1 {
				sound = stateOf(t, l)
			}
		}
		ok := t.Run(s.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() && len(before) > 0 {
					t.Logf("its lab had %s before; alone: go test ./cmd/lasthop -run TestDemos -scenarios %s", strings.Join(before, ", "), s.name)
				}
			})
			demo(t, all, l, s)
		})
		before = append(before, s.name)
		if ok && i < len(stops)-1 {
			left := stateOf(t, l)
			if slices.Equal(left, sound) {
				continue
			}
			t.Logf("%s leaves another lab:\n%s", s.name, strings.Join(unlike(left, sound), "\n"))
		}
		if err := l.Down(t.Context()); err != nil {
			t.Error(err)
		}
		nothingLeft(t, l.ID())
		l = nil
	}
}

// unlike are the lines that only one list has.
func unlike(now, before []string) (out []string) {
	for _, line := range now {
		if !slices.Contains(before, line) {
			out = append(out, "+ "+line)
		}
	}
	for _, line := range before {
		if !slices.Contains(now, line) {
			out = append(out, "- "+line)
		}
	}
	return out
}

// stateOf is what lasthop reads of the lab's observed node, without what traffic changes.
func stateOf(t *testing.T, l *lab.Lab) (out []string) {
	t.Helper()
	node, err := observed(l)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Named(node.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	a, o := &app{stdout: io.Discard, stderr: io.Discard}, given(t, "--engine", "state", "--for", "1ms")
	o.HostRoot = l.HostRoot(node.Name)
	s, err := a.observe(t.Context(), o.session(ns, node.Name))
	if err != nil {
		t.Fatal(err)
	}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	lasting := func(list []model.Neighbor) {
		for _, n := range list {
			if n.State == "PERMANENT" || n.Proxy {
				add("neighbor %+v", n)
			}
		}
	}
	for _, k := range s.Links {
		port := model.BridgePort{}
		if k.Port != nil {
			port = *k.Port
		}
		add("link %d %s %s %s %d %v %v %d %v %+v %v %v", k.Index, k.Name, k.Kind, k.MAC, k.MTU, k.Up, k.Carrier, k.Master, k.Hairpin, port, k.Addresses, k.XDP)
	}
	for _, q := range s.Queues {
		add("queue %s %s %d", q.Link, q.Kind, q.Rate)
	}
	for _, r := range s.Routes {
		add("route %+v", r)
	}
	for _, r := range s.Rules {
		add("rule %+v", r)
	}
	lasting(s.Neighbors)
	for _, e := range s.FDB {
		if e.Static {
			add("fdb %+v", e)
		}
	}
	for _, p := range s.Pods {
		add("pod %v %v %v %s %s %d %s %v %v %v", p.Addresses, p.Duplicates, p.MAC, p.Interface, p.Link, p.LinkIndex, p.LinkMAC, p.Up, p.Routes, p.Elsewhere)
		lasting(p.Gateways)
	}
	for _, c := range s.Sysctls {
		if c.Name != "net.netfilter.nf_conntrack_count" {
			add("sysctl %+v", c)
		}
	}
	for _, r := range s.FrameRules {
		add("frame rule %s %s %s %s", r.Backend, r.Table, r.Chain, r.Text)
	}
	for _, r := range s.PacketRules {
		add("packet rule %s %s %s %s %s", r.Backend, r.Family, r.Table, r.Chain, r.Text)
	}
	for _, c := range s.Chains {
		if c.Policy == "DROP" {
			add("chain %s %s %s %s", c.Backend, c.Family, c.Table, c.Name)
		}
	}
	for _, p := range s.Programs {
		add("program %s %s %s", p.Name, p.Link, p.Direction)
	}
	return out
}

// loadDemo loads a scenario for a machine that is as slow as the flag says.
func loadDemo(t *testing.T, name string) *scenario.Scenario {
	t.Helper()
	s, err := kind.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	if s.Expect.Healthy() {
		s.Timeout = max(s.Timeout, 20*time.Second) // Nothing is lost: what is late is no failure.
	}
	s.Timeout *= time.Duration(*testSlow)
	for i := range s.Traffic {
		s.Traffic[i].Rate /= float64(*testSlow)
	}
	return s
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

// amount is how much of something a test does in its short form, and in the long one.
func amount(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
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
const whole = 15

// demo makes the faults of a scenario in a lab without any, and adds what came of it to all. Then nothing is broken again.
func demo(t *testing.T, all *matrix, l *lab.Lab, s stop) {
	trial := trialOf{scenario: s.Name, seed: s.seed, expect: s.Expect, wrong: true}
	defer func() { all.add(trial) }()
	if err := lab.Follow(t.Context(), l, s.Scenario); err != nil {
		t.Fatal(err)
	}
	if err := l.Break(t.Context()); err != nil {
		t.Fatal(err)
	}
	fit(t)
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
	if *testKeep != "" && s.seed == 0 {
		keepObserved(t, r.Snapshot, strings.TrimSuffix(s.name, ".yaml"))
	}
	inTurn(func() {
		checkAgreed(t, r.Snapshot)
		checkReach(t, s.Name, &r)
		if s.Expect.Healthy() && len(s.Faults) == 0 {
			checkAudited(t, r.Snapshot)
		}
		if s.every {
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
	// What commands have mended may not be there to be undone.
	for _, f := range slices.Backward(l.Scenario().Faults) {
		_ = l.Undo(t.Context(), f)
	}
}

// keepObserved writes what was observed to the directory of recordings.
func keepObserved(t *testing.T, s *model.Snapshot, name string) {
	t.Helper()
	var out bytes.Buffer
	w, err := record.NewWriter(&out, record.Head{Writer: "test", Node: s.Node.Name})
	if err == nil {
		err = w.Write(model.Reading{Point: model.Point{Snapshot: s, Whole: true}})
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(*testKeep, name+".rec"), out.Bytes(), 0o644)
	}
	if err != nil {
		t.Error(err)
	}
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

// checkAudited wants nothing to be found of the tables of a healthy node, neither of all pairs nor of those without traffic.
func checkAudited(t *testing.T, s *model.Snapshot) {
	t.Helper()
	for _, f := range append(audit.Run(s, nil).Findings, audit.Beside(node.New(s), diagnose.Judge(s).Findings, nil)...) {
		t.Errorf("audit: %s: %s", f.Code, f.Title)
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
