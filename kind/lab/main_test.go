package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/kind/scenario"
)

// The commands that this binary takes instead of running tests: what a test
// needs another process for.
const (
	upCommand      = "lab-up"
	trafficCommand = "lab-traffic"
	deafCommand    = "lab-deaf"
	freshCommand   = "lab-fresh"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case upCommand:
			os.Exit(exit(upVerbosely(os.Args[2])))
		case trafficCommand:
			os.Exit(exit(ServeTraffic(context.Background(), os.Args[2])))
		case freshCommand:
			os.Exit(exit(onFreshMachine(os.Args[2])))
		case deafCommand:
			os.Exit(exit(errors.New("ears are shut")))
		}
	}
	// The tests wait for traffic more than they work.
	if err := flag.Set("test.parallel", "6"); err != nil {
		os.Exit(exit(err))
	}
	before := leftovers()
	code := m.Run()
	for _, l := range leftovers() {
		if !slices.Contains(before, l) {
			fmt.Fprintln(os.Stderr, "left behind:", l)
			code = 1
		}
	}
	os.Exit(code)
}

func exit(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// upVerbosely brings a lab up and says each step on stdout.
func upVerbosely(id string) error {
	s, err := kind.Load("healthy-kubenet")
	if err != nil {
		return err
	}
	_, err = Up(context.Background(), s, Options{ID: id, Log: func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
	}})
	return err
}

// onFreshMachine brings labs up and takes all down where no lab, and no other
// namespace, ever was: under an empty /run, in a mount namespace of its own.
func onFreshMachine(id string) error {
	if err := unix.Mount("run", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount an empty /run: %w", err)
	}
	for _, id := range []string{id + "-1", id + "-2"} {
		if err := upVerbosely(id); err != nil {
			return err
		}
	}
	if all, err := List(); err != nil || len(all) != 2 {
		return fmt.Errorf("listed %+v, %w", all, err)
	}
	if err := Down(context.Background(), ""); err != nil {
		return err
	}
	var left []string
	err := filepath.WalkDir("/run", func(path string, _ fs.DirEntry, err error) error {
		left = append(left, path)
		return err
	})
	// The directory of namespaces is for all who have some.
	if !slices.Equal(left, []string{"/run", netnsDir}) {
		return fmt.Errorf("left %v, %w", left, err)
	}
	return err
}

// leftovers are all things that a lab of this process could leave: namespaces,
// state, links here, descriptors, children.
func leftovers() []string {
	var out []string
	for _, pattern := range []string{filepath.Join(netnsDir, netnsPrefix+testID("*")), pathOf(testID("*"))} {
		files, _ := filepath.Glob(pattern)
		out = append(out, files...)
	}
	links, _ := netlink.LinkList()
	for _, l := range links {
		out = append(out, "link "+l.Attrs().Name)
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		// The runtime's own come when they are first needed.
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !strings.HasPrefix(target, "anon_inode:") {
			out = append(out, "descriptor "+fd.Name()+" "+target)
		}
	}
	children, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range children {
		pids, _ := os.ReadFile(file)
		for _, pid := range strings.Fields(string(pids)) {
			out = append(out, "child "+pid)
		}
	}
	return out
}

// testID is a lab's ID that no other process uses.
func testID(name string) string { return fmt.Sprintf("t%d-%s", os.Getpid(), name) }

// load reads an embedded scenario.
func load(t *testing.T, name string) *scenario.Scenario {
	t.Helper()
	s, err := kind.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// parse reads a scenario from the test.
func parse(t *testing.T, text string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// up brings a lab up for the time of the test.
func up(t *testing.T, s *scenario.Scenario, id string) *Lab {
	t.Helper()
	l, err := Up(t.Context(), s, Options{ID: testID(id), Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// run runs the lab's traffic until stop is called, which returns the counts.
func run(t *testing.T, l *Lab) (stop func() []FlowStats) {
	t.Helper()
	end, err := l.BeginTraffic(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return func() []FlowStats {
		if err := end(); err != nil {
			t.Error(err)
		}
		return l.Stats()
	}
}

// trial runs the lab's traffic and checks that exactly the flows that dead
// names are dead: not one of their requests is answered, and none of the
// others' fails. It ends when the live flows have had answered requests
// answered, and the dead ones have sent as many and had failed ones fail.
func trial(t *testing.T, l *Lab, answered, failed uint64, dead func(FlowStats) bool) {
	t.Helper()
	wrong := func(s FlowStats) bool { return dead(s) && s.Answered > 0 || !dead(s) && s.Failed > 0 }
	stop := run(t, l)
	err := Await(t.Context(), l, func(all []FlowStats) bool {
		return slices.ContainsFunc(all, wrong) || !slices.ContainsFunc(all, func(s FlowStats) bool {
			if dead(s) {
				return s.Sent < answered || s.Failed < failed
			}
			return s.Answered < answered
		})
	})
	if err != nil {
		t.Error(err)
	}
	all, died := stop(), 0
	for _, s := range all {
		if dead(s) {
			died++
		}
		if wrong(s) || s.Sent != s.Answered+s.Failed {
			t.Errorf("%s: dead %v, sent %d, answered %d, failed %d: %s", s.Flow, dead(s), s.Sent, s.Answered, s.Failed, s.LastError)
		}
	}
	t.Logf("%d flows, %d of them dead", len(all), died)
}

// faultTrial is a fault, and the flows that it kills.
type faultTrial struct {
	fault scenario.Fault
	dead  func(FlowStats) bool
}

// trials makes each fault in a lab that is well and undoes it: the flows that it
// kills must die, and no others, and be well again afterwards.
func trials(t *testing.T, l *Lab, tests []faultTrial) {
	t.Helper()
	trial(t, l, 1, 0, alive)
	for _, test := range tests {
		t.Log(test.fault)
		if err := l.Inject(t.Context(), test.fault); err != nil {
			t.Fatal(err)
		}
		trial(t, l, 3, 0, test.dead)
		if err := l.Undo(t.Context(), test.fault); err != nil {
			t.Fatal(err)
		}
		trial(t, l, 1, 0, alive)
	}
}
