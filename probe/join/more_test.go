package join

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

// TestRowLeadsTo has a node get what is for another's pods. If that one is recorded, the finding says where the row
// must lead, whether or not anybody who was recorded asks for these pods.
func TestRowLeadsTo(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(*cluster)
		want string
	}{
		{"asked by a third", func(c *cluster) { c.ask(1, 3, lostThere); c.ask(1, 2, fine) }, "WrongUDR proven 10.2.3.0/24 on n2,n1,n3"},
		{"asked by nobody recorded", func(c *cluster) { c.ask(1, 2, fine) }, "WrongUDR proven 10.2.3.0/24 on n2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(3)
			tt.make(c)
			c.nodes[1].returned("10.2.3.0/24", model.AsDestination)
			f := judged(t, c, tt.want)[0]
			if want := "the route for 10.2.3.0/24 leads to n2, not to n3 at 10.1.0.3"; !strings.HasSuffix(f.Title, want) {
				t.Errorf("title %q, want %q", f.Title, want)
			}
			if fix := strings.Join(f.Fix, "\n"); strings.Contains(fix, "NODE_IP") || !strings.Contains(fix, "10.1.0.3") || !strings.Contains(fix, "10.2.3.0/24") {
				t.Errorf("fix %q", fix)
			}
		})
	}
}

// TestRouteToRouter has nodes with routes to each other's pods, of which one leads to the router: the node's own route is
// wrong, and nothing of a cloud's.
func TestRouteToRouter(t *testing.T) {
	c := newCluster(3)
	c.keepRoutes()
	for r := range model.Each(c.nodes[0].Routes) {
		if r.Gateway == addr(nodeAddr(2)) {
			r.Gateway = addr("10.1.255.1")
		}
	}
	c.ask(1, 2, lostThere)
	c.ask(1, 3, fine)
	c.ask(2, 3, fine)
	f := judged(t, c, "MissingNodeRoute likely 10.2.2.0/24 on n1,n2")[0]
	if want := []string{"on n1:", "ip route replace 10.2.2.0/24 via 10.1.0.2 dev eth0"}; !slices.Equal(f.Fix, want) {
		t.Errorf("fix %q, want %q", f.Fix, want)
	}
	// Where all do so, the router knows the way.
	c = newCluster(3)
	c.keepRoutes()
	for _, m := range c.nodes {
		for r := range model.Each(m.Routes) {
			if r.Gateway.IsValid() {
				r.Gateway = addr("10.1.255.1")
			}
		}
	}
	c.flow("10.2.1.10", "10.2.2.10", lostThere)
	c.flow("10.2.1.10", "10.2.2.11", fine)
	judged(t, c, "NoReply proven 10.2.2.10 on n1,n2")
}

// TestOneRange has two nodes with one range of pods. That is why one of them is not reached, and no fault where nobody
// asks for these pods.
func TestOneRange(t *testing.T) {
	twice := func() *cluster {
		c := newCluster(3)
		other := newMachine(2)
		other.n, other.name, other.Node.Name = 4, "n4", "n4"
		other.Links[0].Addresses[0], other.Links[0].MAC = prefix("10.1.0.4/16"), model.MAC{0, 0x0d, 0x3a, 0, 0, 4}
		c.nodes = append(c.nodes, other)
		return c
	}
	c := twice()
	c.ask(3, 2, lostThere)
	c.ask(3, 1, fine)
	f := judged(t, c, "DuplicatePodIP proven 10.2.2.0/24 on n2,n4,n3")[0]
	if want := "nodes n2, n4 have the same pod range 10.2.2.0/24"; f.Title != want {
		t.Errorf("title %q, want %q", f.Title, want)
	}
	c = twice()
	c.ask(3, 1, fine)
	judged(t, c)
}

// TestElsewhere has an address on a node's loopback that a third machine may have too: that nothing asked of it arrives
// proves nothing.
func TestElsewhere(t *testing.T) {
	const vip = "10.50.0.10"
	holds := func(link string) *cluster {
		c := newCluster(2)
		m := c.nodes[1]
		m.Links = append(m.Links, model.Link{Index: 1, Name: "lo", Kind: "", Up: true, Carrier: true, MTU: 65536, Addresses: []netip.Prefix{prefix("127.0.0.1/8")}})
		for l := range model.Each(m.Links) {
			if l.Name == link {
				l.Addresses = append(l.Addresses, prefix(vip+"/32"))
			}
		}
		c.flow("10.2.1.10", "10.2.2.10", fine)
		return c
	}
	for link, want := range map[string]string{"lo": "NoReply likely 10.50.0.10 on n1", "eth0": "NoReply proven 10.50.0.10 on n1,n2"} {
		c := holds(link)
		c.flow("10.2.1.10", vip, lostThere)
		judged(t, c, want)
	}
	// Some packets were seen to go there.
	c := holds("lo")
	c.flow("10.2.1.10", vip, lostThere)
	c.flow("10.2.1.11", vip, fine)
	judged(t, c, "NoReply proven 10.50.0.10 on n1,n2")
}

// TestOneFamily has all IPv6 packets from one node to another lost. What arrives by IPv4 does not show that the network
// carries IPv6 there, so that a filter explains as much as a route that is missing.
func TestOneFamily(t *testing.T) {
	const row = "fd00:2::/64"
	six := func(there, back fate, nodes fate) *cluster {
		c := newCluster(3)
		for _, m := range c.nodes {
			m.Links[0].Addresses = append(m.Links[0].Addresses, netip.PrefixFrom(addr(fmt.Sprintf("2001:db8::%d", m.n)), 64))
			m.Links[1].Addresses = append(m.Links[1].Addresses, prefix(fmt.Sprintf("fd00:%d::1/64", m.n)))
			m.Routes = append(m.Routes, model.Route{Table: 254, Dst: prefix("2001:db8::/64"), IfIndex: 2, Link: "eth0", Type: "unicast"},
				model.Route{Table: 254, Dst: prefix("::/0"), Gateway: addr("2001:db8::ff"), IfIndex: 2, Link: "eth0", Type: "unicast"},
				model.Route{Table: 254, Dst: prefix(fmt.Sprintf("fd00:%d::/64", m.n)), IfIndex: 3, Link: "cbr0", Type: "unicast"})
			m.pod(fmt.Sprintf("fd00:%d::10", m.n))
			m.pod(fmt.Sprintf("fd00:%d::11", m.n))
		}
		c.flow("2001:db8::1", "2001:db8::2", nodes)
		c.flow("2001:db8::3", "2001:db8::2", nodes)
		for _, a := range []string{"10", "11"} {
			for _, b := range []string{"10", "11"} {
				c.flow("fd00:1::"+a, "fd00:2::"+b, there)
				c.flow("fd00:2::"+a, "fd00:1::"+b, back)
				c.flow("fd00:3::"+a, "fd00:1::"+b, fine)
			}
		}
		c.ask(1, 2, fine)
		return c
	}
	judged(t, six(fine, fine, fine))
	judged(t, six(lostThere, lostBack, lostThere), "MissingUDR likely "+row+" on n1,n2", "NoReply proven 2001:db8::2/128 on n1,n3,n2")
	judged(t, six(lostThere, lostBack, fine), "MissingUDR proven "+row+" on n1,n2")
}

// TestTables has a healthy node's recording together with one whose tables alone show a fault, since nobody asks: it is
// found as on that node alone.
func TestTables(t *testing.T) {
	recorded := func(name string, tables bool) Source {
		src := Source{Name: name, Read: func() (*model.Snapshot, error) {
			held, err := os.ReadFile("../diagnose/testdata/recorded/" + name)
			if err != nil {
				return nil, err
			}
			f, err := record.Open(bytes.NewReader(held), int64(len(held)))
			if err != nil {
				return nil, err
			}
			defer f.Close()
			r, err := f.Reading(0)
			return r.Point.Snapshot, err
		}}
		if tables {
			src.Tables = byTables
		}
		return src
	}
	for _, tables := range []bool{false, true} {
		r := Judge([]Source{recorded("healthy-kindnet.rec", tables), recorded("isolated-meant.rec", tables)})
		found := model.Filter(r.Findings, func(f model.Finding) bool { return f.ByTables })
		if want := model.Either(tables, 1, 0); len(found) != want {
			t.Errorf("tables %t: %q, want %d by the tables", tables, brief(found), want)
		}
		for _, f := range found {
			if len(f.Nodes) != 1 {
				t.Errorf("%s on %q", f.Code, f.Nodes)
			}
		}
	}
}
