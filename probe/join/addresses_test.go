package join

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// judged are the findings of a cluster's nodes, which must be those wanted.
func judged(t *testing.T, c *cluster, want ...string) []model.Finding {
	t.Helper()
	r := Judge(c.sources())
	if got := brief(r.Findings); !slices.Equal(got, append([]string{}, want...)) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		for _, f := range r.Findings {
			t.Logf("%+v", f)
		}
	}
	return r.Findings
}

// TestAskedLater has a pod asked for when its node was recorded no more: it may have
// come later.
func TestAskedLater(t *testing.T) {
	c := newCluster(2)
	c.ask(1, 2, fine)
	c.flow("10.2.1.10", "10.2.2.99", lostThere)
	c.nodes[0].stretch(10 * time.Minute)
	asker := &c.nodes[0].Traffic.Peers[len(c.nodes[0].Traffic.Peers)-1]
	asker.FirstOut, asker.LastOut = start.Add(5*time.Minute), start.Add(6*time.Minute)
	judged(t, c, "NoReply likely 10.2.2.99 on n1")
}

// TestVacantAskers has two nodes ask for an address that no pod has: each is told with
// what it sent itself.
func TestVacantAskers(t *testing.T) {
	c := newCluster(3)
	c.flow("10.2.1.10", "10.2.2.99", lostThere)
	c.flow("10.2.3.10", "10.2.2.99", lostThere)
	c.flow("10.2.3.11", "10.2.2.99", lostThere)
	f := judged(t, c, "NoReply likely 10.2.2.99 on n2,n1,n3")[0]
	for node, want := range map[string]string{"n1": "20 packets", "n3": "40 packets"} {
		if !slices.ContainsFunc(f.Evidence, func(e model.Evidence) bool { return e.Node == node && strings.Contains(e.Text, want) }) {
			t.Errorf("no evidence of %s with %s: %+v", node, want, f.Evidence)
		}
	}
}

// TestScan has one pod ask for many addresses that no pod has.
func TestScan(t *testing.T) {
	c := newCluster(3)
	for i := range 200 {
		for n := 2; n <= 3; n++ {
			c.flow("10.2.1.10", fmt.Sprintf("10.2.%d.%d", n, 50+i), lostThere)
		}
	}
	r := Judge(c.sources())
	if len(r.Findings) != 2 {
		t.Errorf("%d findings, want one for each node that was asked: %v", len(r.Findings), brief(r.Findings)[:3])
	}
}

// second gives a node another card, whose network the others have too if shared.
func (c *cluster) second(n int, shared bool) {
	for _, m := range c.nodes {
		if m.n != n && !shared {
			continue
		}
		m.Links = append(m.Links, model.Link{Index: 4, Name: "eth1", MAC: model.MAC{0, 0x0d, 0x3a, 1, 0, byte(m.n)}, Up: true, Carrier: true, Role: model.RoleUplink, MTU: 1500,
			Addresses: []netip.Prefix{netip.PrefixFrom(addr(fmt.Sprintf("10.0.9.%d", m.n)), 24)}})
		m.Node.Uplinks = append(m.Node.Uplinks, "eth1")
		m.Routes = append(m.Routes, model.Route{Table: 254, Dst: prefix("10.0.9.0/24"), IfIndex: 4, Link: "eth1", Type: "unicast"})
	}
}

// TestNextHop has no row for the pods of a node with two cards: the row leads to the
// address by which the others know it.
func TestNextHop(t *testing.T) {
	const proven, likely = "MissingUDR proven 10.2.2.0/24 on n1,n3,n2", "MissingUDR likely 10.2.2.0/24 on n1,n3,n2"
	tests := []struct {
		name string
		make func(*cluster)
		want string
		hop  string
	}{
		{"a NIC of its own network", func(c *cluster) { c.second(2, false) }, proven, "10.1.0.2"},
		{"one of a network that nobody talks by", func(c *cluster) { c.second(2, true) }, proven, "10.1.0.2"},
		{"one that others talk with as well", func(c *cluster) {
			c.second(2, true)
			c.flow("10.0.9.1", "10.0.9.2", fine)
		}, likely, "NODE_IP"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(3)
			tt.make(c)
			c.ask(1, 2, lostThere)
			c.ask(3, 2, lostThere)
			c.ask(2, 1, lostBack)
			c.ask(1, 3, fine)
			f := judged(t, c, tt.want)[0]
			for _, text := range append([]string{f.Why}, append(f.Fix, f.Next...)...) {
				if strings.Contains(text, "10.2.2.0/24") && !strings.Contains(text, tt.hop) || strings.Contains(text, "10.0.9.") || strings.Contains(text, "invalid") {
					t.Errorf("not by %s: %s", tt.hop, text)
				}
			}
		})
	}
}

// TestGateways has nodes for next hops, as host-gw does: what a node drops of another is
// not why its pod is silent to a third.
func TestGateways(t *testing.T) {
	c := newCluster(3)
	c.nodes[1].pod("10.2.2.12")
	for _, n := range []int{1, 3} {
		c.nodes[1].Routes = append(c.nodes[1].Routes, model.Route{Table: 254, Dst: prefix(fmt.Sprintf("10.2.%d.0/24", n)), Gateway: addr(nodeAddr(n)), IfIndex: 2, Link: "eth0", Type: "unicast"})
	}
	c.flow(nodeAddr(3), "10.2.2.12", deadThere)
	c.nodes[1].policy("10.2.2.12", nodeAddr(3), 20)
	c.flow("10.2.1.10", "10.2.2.12", mute)
	judged(t, c, "PolicyDrop proven 10.1.0.3 on n2,n3", "PodNotReplying likely 10.2.2.12 on n2,n1")
}

// TestMerged has findings of several nodes: they are one if their causes are, whatever their fixes say.
func TestMerged(t *testing.T) {
	at := func(node, cause, fix string) nodeFinding {
		return nodeFinding{model.Finding{Code: "NoListener", Nodes: []string{node}, Cause: cause, Title: "on " + node, Fix: []string{fix}}, []string{node}}
	}
	beyond := func(node, peer string) nodeFinding {
		return nodeFinding{model.Finding{Code: "MissingMasquerade", Nodes: []string{node}, Pods: []netip.Addr{addr("10.1.0.1")},
			Peers: []netip.Prefix{prefix(peer)}, EndsAt: []model.HopKind{model.HopBeyond}}, []string{node}}
	}
	const listen = "ss -lntup # compare with the address and port that pods use"
	tests := []struct {
		name string
		list []nodeFinding
		want int
	}{
		{"another port", []nodeFinding{at("n1", "tcp/9100", listen), at("n2", "tcp/5432", listen)}, 2},
		{"the same port", []nodeFinding{at("n1", "tcp/9100", listen), at("n2", "tcp/9100", listen)}, 1},
		{"the same rule in other places", []nodeFinding{at("n1", "-s 10.9.0.0/16 -j DROP", "nft delete rule ip filter FORWARD handle 7"),
			at("n2", "-s 10.9.0.0/16 -j DROP", "nft delete rule ip filter FORWARD handle 8")}, 1},
		{"the same peers beyond", []nodeFinding{beyond("n1", "203.0.113.10/32"), beyond("n2", "203.0.113.10/32")}, 1},
		{"other peers beyond", []nodeFinding{beyond("n1", "203.0.113.10/32"), beyond("n2", "203.0.113.11/32")}, 2},
		{"nobody knows what", []nodeFinding{at("n1", "", listen), at("n2", "", listen)}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := grouped(tt.list); len(got) != tt.want {
				t.Errorf("%d findings, want %d: %+v", len(got), tt.want, got)
			}
		})
	}
}

// TestFixes has nodes hold one rule at other places: each gets its own command, and what is the same is said once.
func TestFixes(t *testing.T) {
	at := func(node, fix string) nodeFinding {
		return nodeFinding{model.Finding{Code: "PolicyDrop", Cause: "-j DROP", Fix: []string{fix}}, []string{node}}
	}
	list := []nodeFinding{at("n1", "nft delete rule ip filter FORWARD handle 7"), at("n2", "nft delete rule ip filter FORWARD handle 8"),
		at("n3", "nft delete rule ip filter FORWARD handle 7")}
	f := mergeOne(list)
	f.site(list)
	want := []string{"on n1, n3:", "nft delete rule ip filter FORWARD handle 7", "on n2:", "nft delete rule ip filter FORWARD handle 8"}
	if !slices.Equal(f.Fix, want) {
		t.Errorf("got %q, want %q", f.Fix, want)
	}
}

// onward has n1's pod ask a port of n2, which n2 translates to a pod of n3.
func (c *cluster) onward(f fate) {
	const port = 30080
	c.nodes[2].pod("10.2.3.12")
	c.flow("10.2.1.10", nodeAddr(2), mute, port)
	c.flow(nodeAddr(2), "10.2.3.12", f, 80)
	for f := range model.Each(c.nodes[1].Flows) {
		if f.Original.DstPort == port {
			f.Reply = model.Tuple{Src: addr("10.2.3.12"), Dst: addr(nodeAddr(2)), SrcPort: 80, DstPort: f.Reply.DstPort}
		}
	}
}

// TestOnward has a port of a node that leads to a pod of another, which is what does not
// reply.
func TestOnward(t *testing.T) {
	t.Run("a policy there", func(t *testing.T) {
		c := newCluster(3)
		c.onward(deadThere)
		c.nodes[2].policy("10.2.3.12", nodeAddr(2), 20)
		judged(t, c, "PolicyDrop proven 10.1.0.2 on n3,n2,n1")
	})
	t.Run("a pod that does not reply", func(t *testing.T) {
		c := newCluster(3)
		c.onward(mute)
		f := judged(t, c, "PodNotReplying likely 10.2.3.12 on n3,n2,n1")
		if len(f) > 0 && !strings.Contains(f[0].Next[0], "on n3") {
			t.Errorf("fix: %s", f[0].Next)
		}
	})
	t.Run("a node that does not reply", func(t *testing.T) {
		c := newCluster(2)
		c.flow("10.2.1.10", nodeAddr(2), mute, 9100)
		f := judged(t, c, "NoReply likely 10.1.0.2 on n2,n1")
		if len(f) > 0 && strings.Contains(fmt.Sprint(f[0].Title, f[0].Why, f[0].Fix, f[0].Alternatives), "pod") {
			t.Errorf("says pod: %+v", f[0])
		}
	})
}

// TestNamed has a finding on a node itself, which a joint report names.
func TestNamed(t *testing.T) {
	f := On("n1", model.Finding{Code: "NoListener", Title: "nothing listens at the node's address 10.1.0.1 tcp/9100"})
	if want := "on n1: nothing listens at the node's address 10.1.0.1 tcp/9100"; f.Title != want {
		t.Errorf("got %q, want %q", f.Title, want)
	}
}
