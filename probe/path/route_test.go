package path

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

func TestLookup(t *testing.T) {
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	unicast := func(table int, dst string, ifindex, metric int) model.Route {
		return model.Route{Table: table, Dst: p(dst), IfIndex: ifindex, Priority: metric, Type: "unicast"}
	}
	s := &model.Snapshot{
		Links: []model.Link{{Index: 2, Name: "nic", Up: true}, {Index: 3, Name: "pod", Up: true}, {Index: 4, Name: "off"}},
		Routes: []model.Route{
			unicast(254, "0.0.0.0/0", 2, 0), unicast(254, "10.1.0.5/32", 3, 0), unicast(254, "10.2.0.0/16", 2, 20), unicast(254, "10.2.0.0/16", 3, 10),
			{Table: 254, Dst: p("10.3.0.0/16"), Type: "blackhole"},
			{Table: 100, Dst: p("10.1.0.0/16"), Type: "throw"}, unicast(100, "0.0.0.0/0", 2, 0),
			{Table: 254, Dst: p("10.4.0.0/16"), Type: "unicast", IfIndex: 4, NextHops: []model.Route{{IfIndex: 2}}},
			unicast(254, "fd00::/64", 3, 0),
		},
		Rules: []model.RoutingRule{
			{Family: 4, Priority: 10, Table: 100, Action: "lookup", From: p("10.1.0.5/32")},
			{Family: 4, Priority: 20, Table: 100, Action: "lookup", Unknown: []string{"dport"}},
			{Family: 4, Priority: 30, Action: "prohibit", To: p("10.9.0.0/16"), In: "pod"},
			{Family: 4, Priority: 40, Action: "goto", Goto: 60, To: p("10.8.0.0/16")},
			{Family: 4, Priority: 50, Action: "unreachable", To: p("10.8.0.0/16")},
			{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
		},
	}
	r := NewState(s).Routing()
	tests := []struct {
		name, src, dst, in string
		kind, link         string
	}{
		{"the longest prefix", "10.7.0.1", "10.1.0.5", "nic", "unicast", "pod"},
		{"the default route", "10.7.0.1", "10.1.0.6", "nic", "unicast", "nic"},
		{"the lowest metric", "10.7.0.1", "10.2.0.6", "nic", "unicast", "pod"},
		{"a route that discards", "10.7.0.1", "10.3.0.6", "nic", "blackhole", ""},
		{"a rule by source", "10.1.0.5", "10.3.0.6", "pod", "unicast", "nic"},
		{"a throw goes on with the next rule", "10.1.0.5", "10.1.0.5", "pod", "unicast", "pod"},
		{"a rule that discards", "10.7.0.1", "10.9.0.6", "pod", "prohibit", ""},
		{"but not from elsewhere", "10.7.0.1", "10.9.0.6", "nic", "unicast", "nic"},
		{"a rule that is jumped over", "10.7.0.1", "10.8.0.6", "nic", "unicast", "nic"},
		{"a next hop whose link is down", "10.7.0.1", "10.4.0.6", "pod", "unicast", "nic"},
		{"IPv6 has rules of its own", "fd00::1", "fd00::5", "nic", "unicast", "pod"},
		{"no route", "fd00::1", "fd01::5", "nic", "", ""},
	}
	for _, tt := range tests {
		d := r.Lookup(Query{Src: a(tt.src), Dst: a(tt.dst), In: tt.in})
		link := ""
		if len(d.Hops) > 0 {
			link = d.Hops[0].Link
		}
		if d.Type != tt.kind || link != tt.link {
			t.Errorf("%s: %s > %s is %q through %q, want %q through %q", tt.name, tt.src, tt.dst, d.Type, link, tt.kind, tt.link)
		}
	}
	if d := r.Lookup(Query{Src: a("10.7.0.1"), Dst: a("10.2.0.6")}); len(d.Unsure) != 1 {
		t.Errorf("a rule on ports may match: unsure of %d rules, want 1", len(d.Unsure))
	}
}
