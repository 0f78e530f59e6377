package collect

import (
	"context"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/internal/nstest"
)

func TestStateOfAnEmptyNode(t *testing.T) {
	ns := nstest.New(t)
	c, err := Open(Options{NS: ns.NS, HostRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.State(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, src := range s.Sources {
		t.Logf("%+v", src)
	}
	t.Logf("%+v", s.Node)
	t.Logf("%+v", s.Links)
}
