package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/gopacket/pcapgo"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// commands are those of this binary.
var commands = map[string]func(){"lasthop": main, janitorName: main}

func TestMain(m *testing.M) { testscript.Main(m, commands) }

// labs numbers the labs of this process, so that none shares an id.
var labs atomic.Int64

// newLab gives an id for a lab and has it taken down at the end, whatever
// happens.
func newLab(cleanup func(func()), fail func(...any)) string {
	id := fmt.Sprintf("t%d-%d", os.Getpid(), labs.Add(1))
	cleanup(func() {
		if err := lab.Down(context.Background(), id); err != nil && !errors.Is(err, lab.ErrNotFound) {
			fail(err)
		}
	})
	return id
}

// tables are those that LASTHOP_TABLES names: nft, or legacy on kernels that have them.
func tables() model.Backend { return model.Backend(os.Getenv("LASTHOP_TABLES")) }

// upLab brings a scenario up until the test ends, with its rules in tables().
func upLab(t *testing.T, name string) *lab.Lab {
	t.Helper()
	return upScenario(t, loadDemo(t, name))
}

// upScenario is upLab of a scenario without a name. It returns when the machine is fit for a window.
func upScenario(t *testing.T, s *scenario.Scenario) *lab.Lab {
	t.Helper()
	var l *lab.Lab
	var err error
	inTurn(func() { l, err = lab.Up(t.Context(), s, lab.Options{ID: newLab(t.Cleanup, t.Error), Tables: tables()}) })
	if err != nil {
		t.Fatal(err)
	}
	fit(t)
	return l
}

// TestScripts runs the command lines in testdata/script. A script has in $LAB
// the id of a lab that it may bring up, in $COMMANDS the directory of lasthop and no
// other program, and the commands `exits STATUS CMD…`,
// `interfaces FILE`, and `documents FILE`, which holds JSON to the published schema, and
// `steps JOB`, which runs those of the example workflow.
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/script")
}

func runScripts(t *testing.T, dir string) {
	t.Helper()
	scripts, err := filepath.Glob(dir + "/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%s has %d scripts: %v", dir, len(scripts), err)
	}
	testscript.Run(t, testscript.Params{
		Files:               few(scripts, 2), // Each command is a process that starts.
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			examples, err := filepath.Abs("../../docs/examples/network")
			env.Setenv("EXAMPLES", examples)
			env.Setenv("COMMANDS", first(filepath.SplitList(env.Getenv("PATH"))))
			env.Setenv("LAB", newLab(env.Defer, env.T().Fatal))
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "interfaces": interfaces, "documents": validDocuments, "steps": steps},
	})
}

// exits runs a command and wants exactly that exit status of it.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// interfaces prints the name of each packet's interface in a pcapng file.
// tcpdump does not tell it.
func interfaces(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: interfaces FILE")
	}
	file, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer file.Close()
	r, err := pcapgo.NewNgReader(file, pcapgo.DefaultNgReaderOptions)
	ts.Check(err)
	for {
		_, packet, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return
		}
		ts.Check(err)
		in, err := r.Interface(packet.InterfaceIndex)
		ts.Check(err)
		fmt.Fprintln(ts.Stdout(), in.Name)
	}
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func someNode() *model.Snapshot {
	pod := func(namespace, name, netns string, addresses ...string) model.Pod {
		p := model.Pod{Namespace: namespace, Name: name, NetnsName: netns}
		for _, a := range addresses {
			p.Addresses = append(p.Addresses, netip.MustParsePrefix(a))
		}
		return p
	}
	return &model.Snapshot{
		Pods: []model.Pod{
			pod("shop", "cart", "/run/netns/cni-1", "10.1.0.2/24", "fd00::2/64"),
			pod("bank", "cart", "", "10.1.0.3/24"),
			pod("shop", "till", "", "10.1.0.4/24"),
			pod("", "", "", "10.1.0.5/24"),
		},
		PastPods: []model.Pod{pod("shop", "till", "", "10.1.0.6/24")},
	}
}

func TestChoosePods(t *testing.T) {
	for _, tt := range []struct {
		names     []string
		namespace string
		want      []netip.Addr
		err       string
	}{
		{nil, "", nil, ""},
		{nil, "shop", addrs("10.1.0.2", "fd00::2", "10.1.0.4", "10.1.0.6"), ""},
		{nil, "lost", nil, `no pod of namespace "lost"`},
		{[]string{"10.1.0.3"}, "", addrs("10.1.0.3"), ""},
		{[]string{"::ffff:10.1.0.3"}, "", addrs("10.1.0.3"), ""},
		{[]string{"fd00:0::2"}, "", addrs("10.1.0.2", "fd00::2"), ""},
		{[]string{"10.9.9.9"}, "", nil, "shop/cart 10.1.0.2 fd00::2, bank/cart 10.1.0.3"},
		{[]string{"cart"}, "", nil, `several pods are named "cart": shop/cart 10.1.0.2 fd00::2, bank/cart 10.1.0.3`},
		{[]string{"shop/tilll"}, "", nil, `no pod "shop/tilll" on this node: did you mean shop/till?; there are: `},
		{[]string{"til"}, "", nil, "did you mean shop/till?"},
		{[]string{"car"}, "bank", nil, "did you mean bank/cart?"},
		{[]string{"car"}, "", nil, `no pod "car" on this node; there are: `},
		{[]string{"10.1.0.1"}, "", nil, `no pod "10.1.0.1" on this node; there are: `},
		{[]string{"elsewhere"}, "", nil, `no pod "elsewhere" on this node; there are: `},
		{[]string{"cart"}, "bank", addrs("10.1.0.3"), ""},
		{[]string{"shop/cart"}, "", addrs("10.1.0.2", "fd00::2"), ""},
		{[]string{"cni-1"}, "bank", addrs("10.1.0.2", "fd00::2"), ""},
		{[]string{"till"}, "", addrs("10.1.0.4", "10.1.0.6"), ""},
		{[]string{"bank/cart", "10.1.0.5"}, "", addrs("10.1.0.3", "10.1.0.5"), ""},
		{[]string{""}, "", nil, `no pod ""`},
		{[]string{"bank/till"}, "", nil, `no pod "bank/till"`},
	} {
		got, err := choosePods(someNode(), tt.names, selection{namespace: tt.namespace})
		if tt.err != "" {
			var usage *usageError
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("choosePods(%q, %q): %v, want a usage error with %q", tt.names, tt.namespace, err, tt.err)
			}
			continue
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("choosePods(%q, %q) = %v, %v; want %v", tt.names, tt.namespace, got, err, tt.want)
		}
	}
}

func TestErrorNamesFewPods(t *testing.T) {
	s := &model.Snapshot{}
	for a := netip.MustParseAddr("10.1.0.1"); len(s.Pods) < 250; a = a.Next() {
		s.Pods = append(s.Pods, model.Pod{Name: "evil\x1b[2J", Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}})
	}
	_, err := choosePods(s, []string{"x"}, selection{})
	if err == nil || !strings.HasSuffix(err.Error(), "and 230 more") || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("got %v", err)
	}
}

func TestConcerns(t *testing.T) {
	f := model.Finding{Pods: addrs("10.1.0.2"), Peers: []netip.Prefix{netip.MustParsePrefix("10.1.0.3/32"), netip.MustParsePrefix("10.0.0.0/8")}}
	for _, tt := range []struct {
		finding model.Finding
		focus   []netip.Addr
		want    bool
	}{
		{f, nil, true},
		{f, addrs("10.1.0.2"), true},
		{f, addrs("10.1.0.3"), true},
		{f, addrs("10.1.0.4"), false},
		{model.Finding{}, addrs("10.1.0.4"), true},
	} {
		if got := (&flags.Verdict{}).Wants(&tt.finding, tt.focus); got != tt.want {
			t.Errorf("concerns(%v, %v) = %v", tt.finding.Pods, tt.focus, got)
		}
	}
}

func TestVerdict(t *testing.T) {
	beyond := &model.Snapshot{Sources: []model.Source{{Name: model.SourceNodes, Status: model.Partial}, {Name: model.SourceNames, Status: model.Partial}}}
	gap := &model.Snapshot{Sources: []model.Source{{Name: "conntrack", Status: model.Missing}, {Name: "links", Status: model.OK}}}
	for _, tt := range []struct {
		failOn   model.Severity
		strict   bool
		severity model.Severity
		snapshot *model.Snapshot
		want     int
	}{
		{model.Warning, false, "", gap, exitClean},
		{model.Warning, true, "", gap, exitIncomplete},
		{model.Warning, true, "", beyond, exitClean},
		{model.Warning, false, model.Info, gap, exitClean},
		{model.Info, false, model.Info, gap, exitFindings},
		{model.Warning, false, model.Warning, gap, exitFindings},
		{model.Critical, false, model.Warning, gap, exitClean},
		{model.Critical, true, model.Critical, gap, exitFindings},
	} {
		o := &observing{Observing: flags.Observing{Verdict: flags.Verdict{FailOn: flags.Choice{Value: string(tt.failOn)}, Strict: tt.strict}}}
		r := report.Report{Snapshot: tt.snapshot}
		if tt.severity != "" {
			r.Findings = []model.Finding{{Severity: tt.severity}}
		}
		a := &app{started: true}
		if got := a.exitCode(context.Background(), o.verdict(r)); got != tt.want {
			t.Errorf("--fail-on %s, strict %v, %q: status %d, want %d", tt.failOn, tt.strict, tt.severity, got, tt.want)
		}
	}
}

func TestExitCode(t *testing.T) {
	interrupted, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tt := range []struct {
		ctx     context.Context
		started bool
		err     error
		want    int
	}{
		{context.Background(), true, nil, exitClean},
		{context.Background(), false, errors.New("unknown flag"), exitUsage},
		{context.Background(), true, usagef("no pod"), exitUsage},
		{context.Background(), true, fmt.Errorf("observe: %w", &model.UnsupportedError{Feature: "tcx"}), exitCannot},
		{context.Background(), true, errors.New("anything"), exitCannot},
		{interrupted, true, context.Canceled, exitInterrupted},
		{interrupted, true, errors.New("an error of the interrupt's making"), exitInterrupted},
		{interrupted, true, &statusError{code: exitFindings}, exitFindings},
	} {
		a := &app{started: tt.started}
		if got := a.exitCode(tt.ctx, tt.err); got != tt.want {
			t.Errorf("%v: status %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestColor(t *testing.T) {
	var out strings.Builder
	for _, tt := range []struct {
		flag, env string
		want      bool
	}{{"auto", "", false}, {"always", "", true}, {"never", "", false}, {"always", "0", false}} {
		t.Setenv("NO_COLOR", tt.env)
		if got := flags.Colored(tt.flag, &out); got != tt.want {
			t.Errorf("--color %s, NO_COLOR=%q: %v", tt.flag, tt.env, got)
		}
	}
}
