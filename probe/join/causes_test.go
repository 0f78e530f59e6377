package join

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestOneCause has what several nodes lose in common: it is one finding.
func TestOneCause(t *testing.T) {
	judge(t, []verdict{
		{"an address to which nothing comes", 3, func(c *cluster) {
			for _, from := range []string{"10.2.1.10", "10.2.3.10"} {
				c.flow(from, "10.2.2.10", lostThere)
				c.flow(from, "10.2.2.11", fine)
			}
		}, []string{"NoReply proven 10.2.2.10 on n1,n3,n2"}},
		{"an address from which nothing comes", 3, func(c *cluster) {
			for _, from := range []string{"10.2.1.10", "10.2.3.10"} {
				c.flow(from, "10.2.2.10", lostBack)
				c.flow(from, "10.2.2.11", fine)
			}
		}, []string{"NoReply proven 10.2.1.10,10.2.3.10 on n2,n1,n3"}},
		{"an address that only one node does not reach", 3, func(c *cluster) {
			c.flow("10.2.1.10", "10.2.2.10", lostThere)
			c.flow("10.2.1.10", "10.2.2.11", fine)
			c.flow("10.2.3.10", "10.2.2.10", fine)
		}, []string{"NoReply proven 10.2.2.10 on n1,n2"}},
		{"a port of a node", 3, func(c *cluster) {
			c.ask(1, 2, fine)
			c.ask(3, 2, fine)
			c.asks("10.2.1.10", "10.2.2.11", 8443, 12, 0)
			c.asks("10.2.3.10", "10.2.2.11", 8443, 12, 0)
		}, []string{"NoReply proven 10.2.2.11 on n1,n3,n2"}},
		{"a link to a node with a smaller MTU", 3, func(c *cluster) {
			c.data("10.2.1.10", "10.2.2.10", 400, 1000, 40, 90)
			c.data("10.2.3.10", "10.2.2.11", 400, 1000, 40, 90)
		}, []string{"PathMTU likely 10.2.2.10,10.2.2.11 on n1,n3,n2"}},
	})
}

// TestCutOffBeyond has an address to which nothing comes ask a node that was not recorded:
// that it gets no reply has the same cause.
func TestCutOffBeyond(t *testing.T) {
	c := newCluster(3)
	c.flow("10.2.1.10", "10.2.2.10", lostThere)
	c.flow("10.2.1.10", "10.2.2.11", fine)
	c.flow("10.2.2.10", "10.2.3.10", lostBack)
	c.nodes = c.nodes[:2]
	judged(t, c, "NoReply proven 10.2.2.10 on n1,n2")
}

// TestLargeAmongSmall has small packets of other connections between the same pods.
func TestLargeAmongSmall(t *testing.T) {
	judge(t, []verdict{
		{"large ones are lost", 2, func(c *cluster) { c.data("10.2.1.10", "10.2.2.10", 400, 800, 270, 150) }, []string{"PathMTU likely 10.2.2.10 on n1,n2"}},
		{"some were sent before the other node was watched", 2, func(c *cluster) {
			c.data("10.2.1.10", "10.2.2.10", 400, 800, 290, 150)
			c.nodes[0].Traffic.Peers[len(c.nodes[0].Traffic.Peers)-1].In = model.PeerCount{Packets: 80, Replies: 80}
		}, nil},
	})
}

// TestNetworkCarries has a node with the plain plugins of which all replies to one other
// are lost, while that one's requests follow its default route and arrive: so no route of
// the node's own is missing.
func TestNetworkCarries(t *testing.T) {
	c := newCluster(2)
	for _, m := range c.nodes {
		m.Node.Plugin = "bridge"
	}
	c.ask(1, 2, lostBack)
	c.ask(2, 1, lostThere)
	judged(t, c, "MissingUDR likely 10.2.1.0/24 on n2,n1")
}

// keepRoutes gives nodes routes to each other's pods.
func (c *cluster) keepRoutes() {
	for _, m := range c.nodes {
		m.Node.Plugin = "bridge"
		for _, o := range c.nodes {
			if o != m {
				m.Routes = append(m.Routes, model.Route{Table: 254, Dst: o.Routes[2].Dst, Gateway: addr(nodeAddr(o.n)), IfIndex: 2, Link: "eth0", Type: "unicast"})
			}
		}
	}
}

// TestKeepRoutes has nodes with routes to each other's pods, of which one lacks one. It does
// not say so itself, since it has a file of a cloud's routes.
func TestKeepRoutes(t *testing.T) {
	c := newCluster(3)
	c.keepRoutes()
	n1 := c.nodes[0]
	n1.Routes = slices.DeleteFunc(n1.Routes, func(r model.Route) bool { return r.Gateway == addr(nodeAddr(2)) })
	n1.Cluster.Azure.Tables = []model.RouteTable{{ID: "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/routeTables/t"}}
	c.ask(1, 2, lostThere)
	c.ask(1, 3, fine)
	c.ask(2, 3, fine)
	f := judged(t, c, "MissingNodeRoute proven 10.2.2.0/24 on n1,n2")[0]
	if want := []string{"on n1:", "ip route replace 10.2.2.0/24 via 10.1.0.2 dev eth0"}; !slices.Equal(f.Fix, want) {
		t.Errorf("fix %q, want %q", f.Fix, want)
	}
}

// TestCloudRoutes: that a node's packets for another's pods do not arrive there does not
// tell whether the node or a cloud lacks the route.
func TestCloudRoutes(t *testing.T) {
	c := newCluster(2)
	for _, m := range c.nodes {
		m.Node.Plugin = "kindnet"
	}
	c.ask(1, 2, lostThere)
	c.flow("10.2.1.10", "10.1.7.7", fine)
	f := judged(t, c, "MissingNodeRoute likely 10.2.2.0/24 on n1,n2")[0]
	if len(f.Alternatives) != 1 || !strings.Contains(f.Alternatives[0], "a cloud network routes the pods' packets") {
		t.Errorf("could also be %q", f.Alternatives)
	}
}

// TestTellers counts the nodes that tell of a finding themselves, not all that it names.
func TestTellers(t *testing.T) {
	f := model.Finding{Code: "WrongNextHopMAC", Title: "a wrong MAC", Nodes: []string{"n1", "n2", "n3"}, Fix: []string{"ip neigh del 10.1.0.9 dev eth0"}}
	if got := mergeOne([]nodeFinding{{f, []string{"n1"}}, {f, []string{"n1"}}}); got.Title != f.Title {
		t.Errorf("got %+v", got)
	}
}

// TestStateOnly has a recording without counts and of no time: the report says that
// nothing was watched.
func TestStateOnly(t *testing.T) {
	c := newCluster(2)
	c.ask(1, 2, lostThere)
	c.nodes[1].source(model.SourceTC, model.Missing)
	c.nodes[1].Window.End = c.nodes[1].Window.Start
	for _, n := range Judge(c.sources()).Nodes {
		if want := map[string]string{"n2": "packets were not watched"}[n.Name]; n.Name == "n2" && n.Reason != want {
			t.Errorf("%s: %q, want %q", n.Name, n.Reason, want)
		}
	}
}

// TestManyPairs has more pairs of nodes lose packets than a reader wants to see.
func TestManyPairs(t *testing.T) {
	const nodes = 9
	c := newCluster(nodes)
	for n := range nodes {
		c.ask(n+1, (n+1)%nodes+1, lostThere)
	}
	r := Judge(c.sources())
	if len(r.Findings) != 1 {
		t.Fatalf("got %q", brief(r.Findings))
	}
	f := r.Findings[0]
	mentions(t, text(f), true, "and 5 more", "the same between 3 more pairs of nodes")
	if n := strings.Count(text(f), "none of these packets"); n != 6 || len(f.Nodes) != nodes {
		t.Errorf("evidence of %d pairs, %d nodes", n, len(f.Nodes))
	}
}

// TestWrongRowBeyond has a node get what is for the pods of one that was not recorded,
// while another asks these.
func TestWrongRowBeyond(t *testing.T) {
	c := newCluster(3)
	c.ask(1, 3, lostThere)
	c.ask(1, 2, fine)
	c.nodes[1].returned("10.2.3.0/24", model.AsDestination)
	c.nodes = c.nodes[:2]
	judged(t, c, "WrongUDR likely 10.2.3.0/24 on n2,n1")
}

// TestWrongNodeRoute has nodes with routes to each other's pods, of which that of n1 to those of
// n2 has another next hop.
func TestWrongNodeRoute(t *testing.T) {
	routed := func(via string, f fate) *cluster {
		c := newCluster(3)
		c.keepRoutes()
		for r := range model.Each(c.nodes[0].Routes) {
			if r.Gateway == addr(nodeAddr(2)) {
				r.Gateway = addr(via)
			}
		}
		c.ask(1, 2, f)
		c.ask(1, 3, fine)
		c.ask(3, 2, fine)
		return c
	}
	for _, tt := range []struct {
		via  string
		fate fate
		want []string
	}{
		{nodeAddr(3), lostThere, []string{"WrongNodeRoute proven 10.2.2.0/24 on n1,n2"}},
		{"10.1.0.77", lostThere, []string{"WrongNodeRoute likely 10.2.2.0/24 on n1,n2"}},
		{nodeAddr(2), lostThere, []string{"NoReply proven 10.2.2.10,10.2.2.11 on n1,n2"}},
		{nodeAddr(3), fine, nil},
		{"10.1.0.77", fine, nil},
	} {
		f := judged(t, routed(tt.via, tt.fate), tt.want...)
		if len(f) == 0 || f[0].Code != "WrongNodeRoute" {
			continue
		}
		if want := []string{"on n1:", "ip route replace 10.2.2.0/24 via 10.1.0.2 dev eth0"}; !slices.Equal(f[0].Fix[:2], want) {
			t.Errorf("via %s: fix %q, want %q", tt.via, f[0].Fix, want)
		}
	}
	// Where the nodes are known, n1 says so itself.
	c := routed(nodeAddr(3), lostThere)
	for _, o := range c.nodes[1:] {
		c.nodes[0].Cluster.Nodes = append(c.nodes[0].Cluster.Nodes, model.ClusterNode{Name: o.name, Addresses: []netip.Addr{addr(nodeAddr(o.n))}, PodCIDRs: []netip.Prefix{o.Routes[2].Dst}})
	}
	judged(t, c, "WrongNodeRoute proven 10.2.2.0/24 on n1,n2")
}

// TestDroppedAtUplink has a program at the sender's uplink, or XDP at the receiver's: what it drops is not lost between
// the nodes too, whoever sent it and to whatever port.
func TestDroppedAtUplink(t *testing.T) {
	const a, b = "10.2.1.10", "10.2.2.10"
	refused := []port{{proto: model.TCP, to: 443, flows: 4}, {proto: model.UDP, to: 53, flows: 4}}
	judge(t, []verdict{
		{"also of the node itself", 3, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(1, 3, fine)
			for _, src := range []string{a, "10.2.1.11"} {
				for _, dst := range []string{b, "10.2.2.11"} {
					c.nodes[0].dropped(src, dst, "TC_EGRESS", 20)
				}
			}
			c.flow(nodeAddr(1), b, lostThere)
			c.nodes[0].dropped(nodeAddr(1), b, "TC_EGRESS", 20)
		}, []string{"BPFDrop proven 10.2.2.10,10.2.2.11 on n1,n2"}},
		{"some ports", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 80, 20))
			c.speak(a, b, refused...)
			c.nodes[0].dropped(a, b, "TC_EGRESS", 16)
		}, []string{"BPFDrop proven 10.2.2.10 on n1"}},
		{"large ones in a queue", 2, func(c *cluster) {
			c.data(a, b, 400, 800, 270, 150)
			c.nodes[0].dropped(a, b, "QDISC_DROP", 130)
		}, []string{"UnexplainedDrop proven 10.2.2.10 on n1"}},
		{"some ports at the receiver", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 80, 20))
			c.speak(a, b, refused...)
			c.nodes[1].dropped(a, b, "XDP", 16)
		}, []string{"BPFDrop proven 10.2.1.10 on n2"}},
		{"others' packets", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 80, 20))
			c.speak(a, b, refused...)
			c.speak("10.2.1.11", b, well(model.TCP, 80, 20))
			c.nodes[0].dropped("10.2.1.11", b, "TC_EGRESS", 16)
		}, []string{"BPFDrop proven 10.2.2.10 on n1", "NoReply proven 10.2.2.10 on n1,n2"}},
	})
}

// TestNoUplink has a node of which no uplink is known: that nothing was counted there proves nothing of what others send it.
// What its state proves, such as a pod whose link is down, stands.
func TestNoUplink(t *testing.T) {
	blind := func(c *cluster) {
		m := c.nodes[1]
		m.Node.Uplinks, m.Links[0].Role, m.Routes = nil, "unknown", m.Routes[2:]
		c.flow("10.2.1.10", "10.2.2.10", lostThere)
	}
	judge(t, []verdict{
		{"lost somewhere", 2, blind, []string{"NoReply likely 10.2.2.10 on n1"}},
		{"lost there", 2, func(c *cluster) {
			blind(c)
			l := &c.nodes[1].Links[2]
			l.Up, l.Carrier = false, false
		}, []string{"PodLinkDown proven  on n2"}},
	})
}
