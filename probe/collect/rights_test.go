package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// Environment that makes the test's program a reader, to be run without the
// rights of the test.
const (
	readerRoot  = "COLLECT_TEST_ROOT"
	readerOther = "COLLECT_TEST_OTHER"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(readerRoot); root != "" {
		if err := reader(root, os.Getenv(readerOther)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// reader prints the sources of its own namespace's state, having checked that
// it cannot enter the other one.
func reader(root, other string) error {
	ns, err := netns.Open(other)
	if err != nil {
		return err
	}
	defer ns.Close()
	var unsupported *model.UnsupportedError
	if _, err := Open(Options{NS: ns, HostRoot: root}); !errors.As(err, &unsupported) || unsupported.Remedy == "" {
		return fmt.Errorf("another namespace: %w", err)
	}
	c, err := Open(Options{HostRoot: root})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.State(context.Background(), Losses{})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(s.Sources)
}

// TestWithoutRights reads as a user namespace without any right over the node:
// what may be read is, and each of the rest is a gap with its reason.
func TestWithoutRights(t *testing.T) {
	n, other := newNode(t), nstest.Named(t, "other")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := n.Output(fmt.Sprintf("%s=%s %s=%s unshare --user %s", readerRoot, t.TempDir(), readerOther, "/run/netns/"+other.Name, program))
	var sources []model.Source
	if err := json.Unmarshal([]byte(out), &sources); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	missing := map[string]bool{
		model.SourceEbtables: true, model.SourceNAT: true, model.SourceConntrack: true, model.SourcePods: true, model.SourcePrograms: true, model.SourceNodes: true,
	}
	for _, s := range sources {
		want := model.OK
		if missing[s.Name] {
			want = model.Missing
		}
		if s.Status != want || want == model.Missing && s.Name != model.SourceNodes && !strings.Contains(s.Detail, "need") {
			t.Errorf("%+v, want it %s", s, want)
		}
	}
}
