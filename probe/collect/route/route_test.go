package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

func FuzzRule(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		_, _ = DecodeRule(m)
	})
}

func FuzzRoute(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		_, _ = Decode(m)
		_, _ = decodeNexthop(m)
	})
}

func prefixOf(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestRead(t *testing.T) {
	ns := nstest.New(t)
	ns.Run(
		"ip link add v type veth peer name w", "ip link set v up", "ip link set w up",
		"ip addr add 10.1.0.1/24 dev v", "ip addr add fd00:1::1/64 dev v nodad",
		"ip route add default via 10.1.0.254 dev v metric 50 proto static",
		"ip route add 10.2.0.0/16 table 100 nexthop via 10.1.0.2 dev v nexthop via 10.1.0.3 dev v",
		"ip route add blackhole 10.3.0.0/16", "ip route add unreachable 10.4.0.0/16",
		"ip route add prohibit 10.5.0.0/16", "ip route add throw 10.6.0.0/16",
		"ip route add 10.7.0.0/16 via inet6 fe80::1 dev v",
		"ip -6 route add default via fd00:1::2 dev v",
	)
	c, h, err := dump.Route(ns.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer h.Close()
	got, err := Read(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	find := func(dst string, table int) model.Route {
		t.Helper()
		i := slices.IndexFunc(got, func(r model.Route) bool { return r.Dst == prefixOf(dst) && r.Table == table })
		if i < 0 {
			t.Fatalf("no route to %s in table %d: %+v", dst, table, got)
		}
		return got[i]
	}
	v := find("10.1.0.0/24", 254)
	want := model.Route{
		Table: 254, Dst: prefixOf("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.1.0.254"), IfIndex: v.IfIndex,
		Type: "unicast", Protocol: "static", Priority: 50,
	}
	if r := find("0.0.0.0/0", 254); !reflect.DeepEqual(r, want) {
		t.Errorf("default route:\n got %+v\nwant %+v", r, want)
	}
	if v.Protocol != "kernel" || v.Src != netip.MustParseAddr("10.1.0.1") {
		t.Errorf("network route: %+v", v)
	}
	multi := find("10.2.0.0/16", 100)
	if multi.Gateway != netip.MustParseAddr("10.1.0.2") || multi.IfIndex != v.IfIndex ||
		!reflect.DeepEqual(multi.NextHops, []model.Route{{Gateway: netip.MustParseAddr("10.1.0.3"), IfIndex: v.IfIndex}}) {
		t.Errorf("multipath route: %+v", multi)
	}
	for dst, kind := range map[string]string{"10.3.0.0/16": "blackhole", "10.4.0.0/16": "unreachable", "10.5.0.0/16": "prohibit", "10.6.0.0/16": "throw"} {
		if r := find(dst, 254); r.Type != kind {
			t.Errorf("%s is %s, want %s", dst, r.Type, kind)
		}
	}
	if r := find("10.7.0.0/16", 254); r.Gateway != netip.MustParseAddr("fe80::1") {
		t.Errorf("route via an IPv6 gateway: %+v", r)
	}
	if r := find("::/0", 254); r.Gateway != netip.MustParseAddr("fd00:1::2") {
		t.Errorf("IPv6 default route: %+v", r)
	}
	if r := find("10.1.0.1/32", 255); r.Type != "local" {
		t.Errorf("local route: %+v", r)
	}
}

// TestNexthops reads routes via nexthop objects, with their next hops in the routes' own messages and without.
func TestNexthops(t *testing.T) {
	for _, compat := range []string{"1", "0"} {
		ns := nstest.New(t)
		ns.Run(
			"echo "+compat+" > /proc/sys/net/ipv4/nexthop_compat_mode", "ip link set lo up",
			"ip link add v type veth peer name w", "ip link set v up", "ip link set w up",
			"ip addr add 10.1.0.1/24 dev v", "ip addr add fd00:1::1/64 dev v nodad",
			"ip nexthop add id 1 via 10.1.0.2 dev v", "ip nexthop add id 2 via 10.1.0.3 dev v",
			"ip nexthop add id 3 group 1/2", "ip nexthop add id 4 blackhole", "ip nexthop add id 5 via fd00:1::2 dev v",
			"ip nexthop add id 6 dev v",
			"ip route add 10.2.0.0/16 nhid 1 proto zebra", "ip route add 10.3.0.0/16 nhid 3", "ip route add 10.4.0.0/16 nhid 4",
			"ip route add 10.5.0.0/16 nhid 6", "ip -6 route add fd00:2::/64 nhid 5", "ip route add 10.6.0.0/16 nhid 5",
		)
		c, err := dump.Open(ns.NS, unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got, err := Read(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for dst, want := range map[string]string{
			"10.2.0.0/16": "unicast zebra 10.1.0.2", "10.3.0.0/16": "unicast boot 10.1.0.2 10.1.0.3", "10.4.0.0/16": "blackhole boot invalid IP",
			"10.5.0.0/16": "unicast boot invalid IP", "10.6.0.0/16": "unicast boot fd00:1::2", "fd00:2::/64": "unicast boot fd00:1::2",
		} {
			r := model.Find(got, func(r model.Route) bool { return r.Dst == prefixOf(dst) })
			text := fmt.Sprint(r.Type, " ", r.Protocol, " ", r.Gateway)
			for _, h := range r.NextHops {
				text += " " + h.Gateway.String()
			}
			if text != want || r.Nexthop == 0 || r.IfIndex == 0 && r.Type == "unicast" {
				t.Errorf("compat mode %s: %s: %s by link %d, want %s", compat, dst, text, r.IfIndex, want)
			}
		}
	}
}

// unread is a kernel that lists a route, but not the object that it is by.
type unread struct{ route []byte }

func (k unread) Each(request uint16, body []byte, _ uint16, f func(m []byte) error) error {
	switch {
	case request == unix.RTM_GETNEXTHOP:
		return unix.EPERM
	case body[0] == unix.AF_INET:
		return f(k.route)
	}
	return nil
}

func TestUnreadNexthop(t *testing.T) {
	m := make([]byte, unix.SizeofRtMsg)
	m[0], m[4], m[7] = unix.AF_INET, unix.RT_TABLE_MAIN, unix.RTN_UNICAST
	got, err := Read(t.Context(), unread{dump.Append(m, 30, []byte{7, 0, 0, 0})})
	if len(got) != 1 || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "route to 0.0.0.0/0: its nexthop object 7 was not read") {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestRules(t *testing.T) {
	ns := nstest.New(t)
	ns.Run(
		"ip rule add to 10.240.0.32 lookup main prio 20",
		"ip rule add from 10.240.0.32 lookup 300 prio 110",
		"ip rule add not fwmark 0x10/0xff iif lo oif lo lookup 7 prio 30",
		"ip rule add blackhole to 10.9.0.0/16 prio 40",
		"ip rule add ipproto tcp dport 80 lookup 8 prio 50",
		"ip -6 rule add from fd00::/16 unreachable prio 60",
	)
	c, h, err := dump.Route(ns.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer h.Close()
	got, err := Rules(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	want := []model.RoutingRule{
		{Family: 4, Table: 255, Action: "lookup"},
		{Family: 4, Priority: 20, To: prefixOf("10.240.0.32/32"), Table: 254, Action: "lookup"},
		{Family: 4, Priority: 30, Mark: 0x10, Mask: 0xff, In: "lo", Out: "lo", Table: 7, Action: "lookup", Not: true},
		{Family: 4, Priority: 40, To: prefixOf("10.9.0.0/16"), Action: "blackhole"},
		{Family: 4, Priority: 50, Table: 8, Action: "lookup", Proto: 6, DstPorts: model.PortRange{First: 80, Last: 80}},
		{Family: 4, Priority: 110, From: prefixOf("10.240.0.32/32"), Table: 300, Action: "lookup"},
		{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
		{Family: 4, Priority: 32767, Table: 253, Action: "lookup"},
		{Family: 6, Table: 255, Action: "lookup"},
		{Family: 6, Priority: 60, From: prefixOf("fd00::/16"), Action: "unreachable"},
		{Family: 6, Priority: 32766, Table: 254, Action: "lookup"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("rules:\n got %+v\nwant %+v", got, want)
	}
}

// ipv4Only is a kernel whose IPv6 is disabled.
type ipv4Only struct{ rule []byte }

func (k ipv4Only) Each(_ uint16, body []byte, _ uint16, f func(m []byte) error) error {
	if body[0] == unix.AF_INET6 {
		return unix.EAFNOSUPPORT
	}
	return f(k.rule)
}

func TestRulesWithoutIPv6(t *testing.T) {
	rule := make([]byte, ruleHeaderLen)
	rule[0], rule[4], rule[7] = unix.AF_INET, unix.RT_TABLE_MAIN, 1
	got, err := Rules(t.Context(), ipv4Only{rule})
	if want := []model.RoutingRule{{Family: 4, Table: 254, Action: "lookup"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestNewConditions decodes rules with conditions of recent kernels, and of later
// ones: none of them matches all packets.
func TestNewConditions(t *testing.T) {
	for attr, want := range map[uint16][]string{fraDSCP: {"dscp"}, fraFlowLabel: {"flowlabel"}, 99: {"attribute 99"}, fraLastMask: nil} {
		r, err := DecodeRule(dump.Append(make([]byte, ruleHeaderLen), attr, []byte{10, 0, 0, 0}))
		if err != nil || !slices.Equal(r.Unknown, want) {
			t.Errorf("attribute %d: %v, %v", attr, r.Unknown, err)
		}
	}
}
