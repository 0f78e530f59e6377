package diagnose

import (
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// lacksTableRoute is a node whose second table has no route, lacksTableRule one without the rule that leads to it.
func lacksTableRoute() *testNode {
	n := twoTables()
	n.silent("172.20.1.5", "192.168.7.9")
	return n
}

func lacksTableRule() *testNode {
	n := lacksTableRoute()
	n.Rules = append(n.Rules[:2:2], n.Rules[3])
	n.silent("172.20.1.5", "192.168.7.10")
	n.answered("172.20.1.6", "192.168.7.10")
	return n
}

// TestNetworkd: what may remove a missing route or rule is said of any finding that misses one.
func TestNetworkd(t *testing.T) {
	wrongTable := func() *testNode {
		n := twoTables()
		n.Routes = append(n.Routes, model.Route{Table: 7, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2, Type: "unicast"})
		n.silent("172.20.1.5", "192.168.7.9")
		n.silent("172.20.1.5", "192.168.7.10")
		n.answered("172.20.1.6", "192.168.7.10")
		return n
	}
	astray := func(n *testNode) *testNode {
		n.passes("10.50.0.20", 2, model.Ingress, model.AsDestination, 62, 31)
		n.passes("10.50.0.20", 2, model.Egress, model.AsDestination, 62, 31)
		return n
	}
	gonePodRoute, ruledAway := routed(), routed()
	gonePodRoute.unroute("10.50.0.20/32")
	ruledAway.Rules = []model.RoutingRule{
		{Family: 4, Table: 255, Action: "lookup"}, {Family: 4, Priority: 9, To: prefix("10.50.0.20/32"), Table: 77, Action: "lookup"},
		{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
	}
	ruledAway.Routes = append(ruledAway.Routes, model.Route{Table: 77, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2, Type: "unicast"})
	const route, rule = "files: systemd-networkd may have removed this route", "files: systemd-networkd may have removed this rule"
	for _, tt := range []struct {
		name string
		node *testNode
		it   *model.Networkd
		want string
	}{
		{"a route, as it comes", lacksTableRoute(), &model.Networkd{RemovesRoutes: true, RemovesRules: true}, route},
		{"a route, which it leaves", lacksTableRoute(), &model.Networkd{RemovesRules: true}, ""},
		{"a rule, as it comes", lacksTableRule(), &model.Networkd{RemovesRoutes: true, RemovesRules: true}, rule},
		{"a rule, which it leaves", lacksTableRule(), &model.Networkd{RemovesRoutes: true}, ""},
		{"the route to pods", astray(gonePodRoute), &model.Networkd{RemovesRoutes: true}, route},
		{"a rule before the route to a pod", astray(ruledAway), &model.Networkd{RemovesRoutes: true, RemovesRules: true}, ""},
		{"it is not there", lacksTableRoute(), nil, ""},
		{"nothing is missing", wrongTable(), &model.Networkd{RemovesRoutes: true, RemovesRules: true}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.node.Node.Networkd = tt.it
			said := sentences(tt.node)
			if said == "" || strings.Contains(said, "systemd-networkd") != (tt.want != "") || !strings.Contains(said, tt.want) {
				t.Errorf("want %q in\n%s", tt.want, said)
			}
		})
	}
}
