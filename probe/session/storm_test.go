package session

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
	"github.com/lasthop/lasthop/probe/timeline"
)

// TestStorm adds and removes a route thousands of times while the node is
// observed. Links and pods may be read no more often than lookAgain allows, and
// at polls, however fast routes change.
func TestStorm(t *testing.T) {
	ns := nstest.New(t).NS
	const most = 20000
	changed := make(chan int, 1)
	storm := func(until time.Time) {
		n := 0
		for n < most && time.Now().Before(until) && ns.Do(flap) == nil {
			n += 2
		}
		changed <- n
	}
	var once sync.Once
	w, err := newWatch(Options{
		Options: collect.Options{NS: ns, HostRoot: t.TempDir()}, Engine: EngineState, For: 2 * time.Second,
		Progress: func(window model.Window, _ time.Time) { once.Do(func() { go storm(window.End) }) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.collector.Close()
	began := time.Now()
	if _, err := w.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	n := <-changed
	bound := int(took/lookAgain) + int(took/timeline.Every) + 2
	t.Logf("%d changes of routes in %v: links and pods were read %d times", n, took.Round(time.Millisecond), w.refreshes)
	if n <= bound {
		t.Fatalf("%d changes are no storm", n)
	}
	if w.refreshes == 0 || w.refreshes > bound {
		t.Errorf("links and pods were read %d times in %v, want at most %d", w.refreshes, took, bound)
	}
}

// flap adds a route and removes it.
func flap() error {
	_, dst, err := net.ParseCIDR("203.0.113.0/24")
	if err != nil {
		return err
	}
	r := &netlink.Route{Dst: dst, Type: unix.RTN_BLACKHOLE}
	if err := netlink.RouteAdd(r); err != nil {
		return err
	}
	return netlink.RouteDel(r)
}
