package diagnose

import (
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// twoTables is a node whose pods have rules that lead to tables of their own, of which
// the first pod's has a next hop, and nothing that leads there.
func twoTables() *testNode {
	n := kubenet().live()
	n.PacketRules = nil
	n.Rules = []model.RoutingRule{
		{Family: 4, Table: 255, Action: "lookup"}, {Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
		{Family: 4, Priority: 700, From: prefix("172.20.1.5/32"), Table: 7, Action: "lookup"},
		{Family: 4, Priority: 700, From: prefix("172.20.1.6/32"), Table: 8, Action: "lookup"},
	}
	n.Routes = append(n.Routes,
		model.Route{Table: 7, Dst: prefix("10.50.0.9/32"), IfIndex: 2, Type: "unicast"},
		model.Route{Table: 8, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.9"), IfIndex: 2, Type: "unicast"})
	n.answered("172.20.1.6", "192.168.7.9")
	return n
}

func TestMissingTableRoute(t *testing.T) {
	for _, tt := range []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"the table has lost its default route", func() *testNode {
			n := twoTables()
			n.silent("172.20.1.5", "192.168.7.9")
			return n
		}, []string{"MissingTableRoute likely 172.20.1.5 192.168.7.9"}},
		{"what leaves by the main table is answered", func() *testNode {
			n := twoTables()
			n.answered("172.20.1.5", "192.168.7.9")
			return n
		}, nil},
		{"the peer is on the main table's link, and the table has no route but to its gateway", func() *testNode {
			n := twoTables()
			n.silent("172.20.1.5", "10.50.0.77")
			return n
		}, []string{"MissingTableRoute likely 172.20.1.5 10.50.0.77"}},
		{"it is, and the table is of some destinations on purpose", func() *testNode {
			n := twoTables()
			n.Routes = append(n.Routes, model.Route{Table: 7, Dst: prefix("192.168.9.0/24"), Gateway: addr("10.50.0.9"), IfIndex: 2, Type: "unicast"})
			n.silent("172.20.1.5", "10.50.0.77")
			return n
		}, []string{"NoReply likely 172.20.1.5 10.50.0.77"}},
		{"two pods' rules lead to one table, which others reach one by", func() *testNode {
			n := twoTables()
			n.Rules[3].Table = 7
			n.Traffic.Peers = nil
			n.silent("172.20.1.5", "192.168.7.9")
			n.silent("172.20.1.6", "192.168.7.9")
			n.peer("172.20.1.6", "192.168.7.10", synAck, syn)
			return n
		}, []string{"MissingTableRoute likely 172.20.1.5 172.20.1.6 192.168.7.9"}},
		{"the table is whole, and the peer is silent to all", func() *testNode {
			n := twoTables()
			n.silent("172.20.1.6", "192.168.7.10")
			return n
		}, []string{"NoReply likely 172.20.1.6 192.168.7.10"}},
	} {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
	t.Run("another table than that of the pods like it", testWrongTable)
	t.Run("no rule", testWithoutRule)
	n := twoTables()
	n.silent("172.20.1.5", "192.168.7.9")
	if got := Diagnose(&n.Snapshot)[0].Fix[0]; got != "ip route add default via 10.50.0.9 dev ens5 table 7" {
		t.Errorf("fix %s", got)
	}
}

// testWrongTable: a rule names a table that is whole, and other pods' tables lead to the
// same peers by another next hop.
func testWrongTable(t *testing.T) {
	for _, tt := range []struct {
		name    string
		replies []string
		want    []string
	}{
		{"two silent peers reply to another pod", []string{"192.168.7.9", "192.168.7.10"},
			[]string{"MissingTableRoute likely 172.20.1.5 192.168.7.9 192.168.7.10"}},
		{"one alone may have a policy", []string{"192.168.7.9"}, []string{"NoReply possible 172.20.1.5 192.168.7.9 192.168.7.10"}},
	} {
		n := twoTables()
		n.Routes = append(n.Routes, model.Route{Table: 7, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2, Type: "unicast"})
		n.silent("172.20.1.5", "192.168.7.9")
		n.silent("172.20.1.5", "192.168.7.10")
		for _, a := range tt.replies {
			n.answered("172.20.1.6", a)
		}
		verdicts(t, n, tt.want)
	}
}

// testWithoutRule: the first pod has lost its rule, and leaves by the main table in vain, while
// peers reply to what leaves by another's. A pod that gets replies without a rule lacks none.
func testWithoutRule(t *testing.T) {
	for _, tt := range []struct {
		name    string
		replies []string
		own     string
		want    []string
	}{
		{"two silent peers reply to another pod", []string{"192.168.7.9", "192.168.7.10"}, "",
			[]string{"MissingTableRoute likely 172.20.1.5 192.168.7.9 192.168.7.10"}},
		{"one alone may have a policy", []string{"192.168.7.9"}, "", []string{"NoReply possible 172.20.1.5 192.168.7.9 192.168.7.10"}},
		{"another peer replies without a rule", []string{"192.168.7.9", "192.168.7.10"}, "192.168.7.11",
			[]string{"NoReply likely 172.20.1.5 192.168.7.9 192.168.7.10"}},
	} {
		n := twoTables()
		n.Rules = slices.Delete(n.Rules, 2, 3)
		n.silent("172.20.1.5", "192.168.7.9")
		n.silent("172.20.1.5", "192.168.7.10")
		for _, a := range tt.replies {
			n.answered("172.20.1.6", a)
		}
		if tt.own != "" {
			n.answered("172.20.1.5", tt.own)
		}
		t.Run(tt.name, func(t *testing.T) { verdicts(t, n, tt.want) })
	}
}
