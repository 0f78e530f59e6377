package session

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/traffic"
)

func TestRoster(t *testing.T) {
	pod := func(netns uint32, link int, addr string) model.Pod {
		return model.Pod{Netns: netns, LinkIndex: link, Addresses: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	t1 := t0.Add(time.Second)
	var r roster
	r.see(t0, []model.Pod{pod(1, 7, "10.9.0.5/32"), pod(2, 8, "10.9.0.6/32")})
	// One is deleted and another is given its address.
	r.see(t1, []model.Pod{pod(2, 8, "10.9.0.6/32"), pod(3, 9, "10.9.0.5/32")})

	alive, gone := r.alive(), r.gone()
	if len(alive) != 2 || alive[0].Netns != 2 || alive[1].Netns != 3 {
		t.Errorf("alive %+v", alive)
	}
	if len(gone) != 1 || gone[0].Netns != 1 || !gone[0].Until.Equal(t0) {
		t.Errorf("gone %+v", gone)
	}
	if !alive[0].Since.Equal(t0) || !alive[1].Since.Equal(t1) {
		t.Errorf("since %v and %v", alive[0].Since, alive[1].Since)
	}
}

// A pod keeps the name that was found once, and the next pod gets none of it.
func TestRosterKeepsName(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	named := model.Pod{Netns: 1, LinkIndex: 7, Namespace: "shop", Name: "cart", UID: "u", Labels: map[string]string{"app": "cart"}}
	var r roster
	r.see(t0, []model.Pod{named})
	r.see(t0.Add(time.Second), []model.Pod{{Netns: 1, LinkIndex: 7}, {Netns: 2, LinkIndex: 8}})
	alive := r.alive()
	if alive[0].Namespace != "shop" || alive[0].Name != "cart" || alive[0].UID != "u" || alive[0].Labels["app"] != "cart" || alive[1].Name != "" {
		t.Errorf("got %+v", alive)
	}
}

// A pod that loses its address is known by it, until another pod has it.
func TestRosterKeepsGiven(t *testing.T) {
	pod := func(netns uint32, addrs ...string) model.Pod {
		p := model.Pod{Netns: netns, LinkIndex: int(netns)}
		for _, a := range addrs {
			p.Addresses = append(p.Addresses, netip.MustParsePrefix(a))
		}
		return p
	}
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var r roster
	r.see(t0, []model.Pod{pod(1, "10.9.0.5/32"), pod(2, "10.9.0.6/32")})
	r.see(t0.Add(time.Second), []model.Pod{pod(1), pod(2, "10.9.0.6/32")})
	if got := r.alive()[0].Given; len(got) != 1 || got[0] != netip.MustParseAddr("10.9.0.5") {
		t.Errorf("given %v", got)
	}
	r.see(t0.Add(2*time.Second), []model.Pod{pod(1), pod(2, "10.9.0.6/32", "10.9.0.5/32")})
	if got := r.alive()[0].Given; len(got) != 0 {
		t.Errorf("given %v, which another pod has", got)
	}
}

// The inode of a namespace that is gone may be another's, whose drops are not the pod's.
func TestNamespacesOfTheLiving(t *testing.T) {
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	w := &watch{options: Options{Options: collect.Options{NS: ns}}}
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w.roster.see(t0, []model.Pod{{Netns: 1, LinkIndex: 7}, {Netns: 2, LinkIndex: 8}})
	w.roster.see(t0.Add(time.Second), []model.Pod{{Netns: 2, NetnsCookie: 9, LinkIndex: 8}})
	if got, want := w.namespaces(), []traffic.Namespace{{Inode: ns.Inode()}, {Inode: 2, Cookie: 9}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
