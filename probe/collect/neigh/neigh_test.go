package neigh

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// FuzzNeighbor decodes messages of any content, the first of them truncated.
func FuzzNeighbor(f *testing.F) {
	m := dump.Append(make([]byte, sizeofNdMsg), unix.NDA_DST, []byte{10, 1, 0, 2})
	m = dump.Append(dump.Append(m, unix.NDA_LLADDR, []byte{2, 0, 0, 0, 0, 2}), unix.NDA_VLAN, []byte{5, 0})
	f.Add(m)
	f.Add(m[:len(m)-3])
	f.Fuzz(func(t *testing.T, m []byte) {
		if e, err := decode(m); err == nil && len(m) < sizeofNdMsg {
			t.Errorf("%+v from %d bytes without an error", e, len(m))
		}
	})
}

func TestRead(t *testing.T) {
	ns := nstest.New(t)
	ns.Run(
		"ip link add br7 type bridge", "ip link add v type veth peer name w", "ip link set v master br7",
		"ip link set br7 up", "ip link set v up", "ip link set w up", "ip addr add 10.1.0.1/24 dev br7",
		"ip neigh add 10.1.0.2 lladdr 02:00:00:00:00:02 dev br7 nud permanent",
		"ip neigh add 10.1.0.3 lladdr 02:00:00:00:00:03 dev br7 nud stale",
		"ip neigh add fd00::5 lladdr 02:00:00:00:00:05 dev br7 nud reachable",
		"ip neigh add proxy 10.1.0.9 dev br7", "ip neigh add proxy fd00::9 dev br7 router",
		"bridge fdb add 02:00:00:00:00:77 dev v master static",
	)
	c, err := dump.Open(ns.NS, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := Read(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	bridge := 0
	for _, want := range []model.Neighbor{
		{Addr: netip.MustParseAddr("10.1.0.2"), MAC: model.MAC{2, 0, 0, 0, 0, 2}, State: "PERMANENT"},
		{Addr: netip.MustParseAddr("10.1.0.3"), MAC: model.MAC{2, 0, 0, 0, 0, 3}, State: "STALE"},
		{Addr: netip.MustParseAddr("fd00::5"), MAC: model.MAC{2, 0, 0, 0, 0, 5}, State: "REACHABLE"},
		{Addr: netip.MustParseAddr("10.1.0.9"), Proxy: true},
		{Addr: netip.MustParseAddr("fd00::9"), Proxy: true},
	} {
		i := slices.IndexFunc(got, func(n model.Neighbor) bool { return n.Addr == want.Addr })
		if i < 0 {
			t.Fatalf("no entry for %s: %+v", want.Addr, got)
		}
		bridge, want.IfIndex = got[i].IfIndex, got[i].IfIndex
		if got[i] != want {
			t.Errorf("got %+v, want %+v", got[i], want)
		}
	}
	fdb, err := FDB(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(fdb, func(e model.FDBEntry) bool { return e.MAC == model.MAC{2, 0, 0, 0, 0, 0x77} && e.VLAN == 0 })
	if i < 0 || fdb[i].Bridge != bridge || fdb[i].IfIndex == bridge || fdb[i].Local || !fdb[i].Static {
		t.Errorf("forwarding database: %+v", fdb)
	}
	if !slices.ContainsFunc(fdb, func(e model.FDBEntry) bool { return e.Local && !e.Static && e.Bridge == bridge }) {
		t.Errorf("no own address in the forwarding database: %+v", fdb)
	}
}
