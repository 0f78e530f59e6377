package conntrack

import (
	"context"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

func FuzzFlow(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		_, _ = newDecoder().decode(m)
		var c model.Conntrack
		_ = addCPU(m, &c)
		_ = decodeSize(m, &c)
	})
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestRead(t *testing.T) {
	ns := nstest.New(t)
	ns.Run(
		"conntrack -I -p tcp -s 10.0.0.1 -d 10.1.0.2 --sport 1234 --dport 80 -r 10.2.0.9 -q 10.0.0.1 --reply-port-src 8080 --reply-port-dst 1234 --state ESTABLISHED -u SEEN_REPLY,ASSURED -t 300 -m 7",
		"conntrack -I -p udp -s 10.0.0.3 -d 10.1.0.2 --sport 5 --dport 53 -t 100",
		"conntrack -I -p icmp -s 10.0.0.4 -d 10.1.0.2 --icmp-type 8 --icmp-code 0 -t 30",
		"conntrack -I -p tcp -s fd00::1 -d fd00::2 --sport 9 --dport 443 --state SYN_SENT -t 60",
		"conntrack -I -p udp -s 172.16.0.1 -d 172.16.0.2 --sport 5 --dport 53 -t 100",
	)
	c, err := dump.Open(ns.NS, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	local := map[netip.Addr]bool{}
	for _, s := range []string{"10.0.0.1", "10.0.0.3", "10.0.0.4", "fd00::2"} {
		local[addr(s)] = true
	}
	got, err := Read(context.Background(), c, 0, local)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b model.Flow) int { return a.Original.Src.Compare(b.Original.Src) })
	want := []model.Flow{
		{
			Proto:    6,
			Original: model.Tuple{Src: addr("10.0.0.1"), Dst: addr("10.1.0.2"), SrcPort: 1234, DstPort: 80},
			Reply:    model.Tuple{Src: addr("10.2.0.9"), Dst: addr("10.0.0.1"), SrcPort: 8080, DstPort: 1234},
			Replied:  true, Assured: true, State: "ESTABLISHED", Mark: 7,
		},
		{
			Proto:    17,
			Original: model.Tuple{Src: addr("10.0.0.3"), Dst: addr("10.1.0.2"), SrcPort: 5, DstPort: 53},
			Reply:    model.Tuple{Src: addr("10.1.0.2"), Dst: addr("10.0.0.3"), SrcPort: 53, DstPort: 5},
		},
		{
			Proto:    1,
			Original: model.Tuple{Src: addr("10.0.0.4"), Dst: addr("10.1.0.2")},
			Reply:    model.Tuple{Src: addr("10.1.0.2"), Dst: addr("10.0.0.4")},
		},
		{
			Proto:    6,
			Original: model.Tuple{Src: addr("fd00::1"), Dst: addr("fd00::2"), SrcPort: 9, DstPort: 443},
			Reply:    model.Tuple{Src: addr("fd00::2"), Dst: addr("fd00::1"), SrcPort: 443, DstPort: 9},
			State:    "SYN_SENT",
		},
	}
	limits := []time.Duration{300, 100, 30, 60}
	for i := range got {
		if i < len(limits) && (got[i].Timeout <= 0 || got[i].Timeout > limits[i]*time.Second) {
			t.Errorf("flow %d has %v left, want up to %d s", i, got[i].Timeout, limits[i])
		}
		got[i].Timeout = 0
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("flows:\n got %+v\nwant %+v", got, want)
	}
	s, err := Statistics(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if s.Count != 5 || s.Max == 0 {
		t.Errorf("statistics: %+v", s)
	}
}

func TestSince(t *testing.T) {
	before := model.Conntrack{Drop: 0xffffffff, InsertFailed: 3}
	now := model.Conntrack{Count: 5, Max: 10, Drop: 0x100000001, InsertFailed: 3}
	want := model.Conntrack{Count: 5, Max: 10, Drop: 2}
	if got := Since(now, before); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
