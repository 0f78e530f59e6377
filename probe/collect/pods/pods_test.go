package pods

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
	"golang.org/x/sys/unix"
)

func TestIsPod(t *testing.T) {
	const toNode, elsewhere = 0, 4
	veth := func(index, peer, nsid int) model.Link {
		return model.Link{Index: index, Name: "l", Kind: "veth", Peer: peer, PeerNetNSID: nsid, Up: true, MAC: model.MAC{2, byte(index)}}
	}
	lo := model.Link{Index: 1, Name: "lo", Up: true, PeerNetNSID: -1}
	via := func(index int, dst string) model.Route {
		return model.Route{Table: 254, Dst: netip.MustParsePrefix(dst), IfIndex: index, Type: "unicast"}
	}
	far := veth(2, 9, toNode)
	for _, tt := range []struct {
		name string
		ns   Namespace
		want bool
	}{
		{"default route to the node", Namespace{Links: []model.Link{lo, far}, Routes: []model.Route{via(2, "0.0.0.0/0")}}, true},
		{"IPv6 default route to the node", Namespace{Links: []model.Link{lo, far}, Routes: []model.Route{via(2, "::/0")}}, true},
		{"a pod with links of its own", Namespace{
			Links:  []model.Link{lo, far, veth(3, 5, elsewhere), {Index: 4, Kind: "bridge", Up: true, MAC: model.MAC{2, 4}, PeerNetNSID: -1}},
			Routes: []model.Route{via(2, "0.0.0.0/0"), via(4, "172.17.0.0/16")},
		}, true},
		{"default route over a second link to the node", Namespace{Links: []model.Link{lo, far, veth(3, 8, toNode)}, Routes: []model.Route{via(3, "0.0.0.0/0")}}, true},
		{"a VPN's default route", Namespace{Links: []model.Link{lo, far, {Index: 3, Kind: "tun", Up: true, PeerNetNSID: -1}},
			Routes: []model.Route{via(3, "0.0.0.0/0")}}, true},
		{"another network's default route", Namespace{Links: []model.Link{lo, far, {Index: 3, Kind: "macvlan", Up: true, MAC: model.MAC{2, 3}, PeerNetNSID: toNode}},
			Routes: []model.Route{via(3, "0.0.0.0/0")}}, true},
		{"the machine that the node is a container of", Namespace{Links: []model.Link{lo, far, {Index: 3, Up: true, MAC: model.MAC{2, 3}, PeerNetNSID: -1}},
			Routes: []model.Route{via(3, "0.0.0.0/0")}}, false},
		{"the network: its default leads elsewhere", Namespace{Links: []model.Link{lo, far, veth(3, 5, elsewhere)}, Routes: []model.Route{via(3, "0.0.0.0/0")}}, false},
		{"the network, without a default", Namespace{Links: []model.Link{lo, far, veth(3, 5, elsewhere)}, Routes: []model.Route{via(2, "10.0.0.4/32")}}, false},
		{"alone, without a default", Namespace{Links: []model.Link{lo, far}}, true},
		{"several links to the node, without a default", Namespace{Links: []model.Link{lo, far, veth(3, 8, toNode)}, Routes: []model.Route{via(3, "198.18.0.0/24")}}, true},
		{"other devices of its own, without a default", Namespace{Links: []model.Link{lo, far, {Index: 3, Kind: "macvlan", Up: true, MAC: model.MAC{2, 3}, PeerNetNSID: 0},
			{Index: 4, Kind: "bridge", Up: true, MAC: model.MAC{2, 4}, PeerNetNSID: -1}}}, true},
		{"with a module's device that is down", Namespace{Links: []model.Link{lo, far, {Index: 3, Kind: "ipip", PeerNetNSID: -1}}}, true},
		{"a default that goes nowhere", Namespace{Links: []model.Link{lo, far}, Routes: []model.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Type: "unreachable"}}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.ns.IsPod(&far); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestFind wants a named namespace once, by its name, and one that only a
// process lives in by that.
func TestFind(t *testing.T) {
	ns := nstest.Named(t, "found")
	root := t.TempDir()
	stale := filepath.Join(root, "run/netns/stale")
	if err := os.MkdirAll(filepath.Dir(stale), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var s search
	s.named([]string{"/", root})
	s.processes([]string{"/", root})
	list := s.found
	if len(s.errs) > 0 {
		t.Fatal(s.errs)
	}
	same := slices.DeleteFunc(slices.Clone(list), func(c Candidate) bool { return c.Inode != ns.Inode() })
	if len(same) != 1 || same[0].Name != ns.Name {
		t.Errorf("named namespace: %+v", same)
	}
	if slices.ContainsFunc(list, func(c Candidate) bool { return c.Name == "stale" }) {
		t.Error("a file that is no namespace was taken for one")
	}
	if !slices.ContainsFunc(list, func(c Candidate) bool { return filepath.Dir(filepath.Dir(filepath.Dir(c.Path))) == "/proc" }) {
		t.Errorf("no namespace of a process: %+v", list)
	}
}

// TestGone: a name that is no namespace any more is no gap, also where its file may not be opened; a namespace that may
// not be opened is one.
func TestGone(t *testing.T) {
	ns := nstest.Named(t, "there")
	plain := filepath.Join(t.TempDir(), "unmounted")
	if err := os.WriteFile(plain, nil, 0); err != nil {
		t.Fatal(err)
	}
	refused := &fs.PathError{Op: "open", Path: "x", Err: unix.EACCES}
	for _, tt := range []struct {
		name string
		err  error
		path string
		want bool
	}{
		{"refused, and unmounted", refused, plain, true},
		{"refused, and removed", refused, plain + "-removed", false},
		{"refused, and there", refused, ns.Path(), false},
		{"removed", fs.ErrNotExist, plain + "-removed", true},
		{"its process ended", unix.ESRCH, ns.Path(), true},
		{"no rights", unix.EPERM, ns.Path(), false},
	} {
		if got := isGone(tt.err, tt.path); got != tt.want {
			t.Errorf("%s: got %v", tt.name, got)
		}
	}
}
