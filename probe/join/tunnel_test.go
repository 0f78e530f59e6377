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

// vxlan gives each node a VXLAN by which it reaches the pods of the others.
func (c *cluster) vxlan() {
	for _, m := range c.nodes {
		m.addTunnel(7, "flannel.1")
		for _, o := range c.nodes {
			if o != m {
				m.Routes = append(m.Routes, model.Route{Table: 254, Dst: prefix(fmt.Sprintf("10.2.%d.0/24", o.n)), Gateway: addr(fmt.Sprintf("10.2.%d.0", o.n)), IfIndex: 7, Link: "flannel.1", Type: "unicast"})
			}
		}
	}
}

func (m *machine) addTunnel(index int, link string) {
	m.Links = append(m.Links, model.Link{Index: index, Name: link, Kind: "vxlan", MAC: model.MAC{2, 0, 0, byte(index), 0, byte(m.n)}, Up: true, Carrier: true, Role: model.RoleTunnel, MTU: 1450})
}

// through lets a pod of one node ask that of another by their tunnel.
func (c *cluster) through(from, to string, f fate, n uint64) {
	src, dst := addr(from), addr(to)
	a, b := c.has(src), c.has(dst)
	index, link := 7, "flannel.1"
	if src.Is6() {
		index, link = 8, "flannel-v6.1"
	}
	replied := f == fine
	for i := range 5 {
		a.flows(c, src, dst, replied, []uint16{80})
		a.Flows[len(a.Flows)-1].Start = start.Add(time.Duration(1+i) * time.Second)
	}
	a.carries(index, link, dst, src, model.Egress, n)
	if f == lostThere {
		return
	}
	b.carries(index, link, src, dst, model.Ingress, n)
	if f == fine || f == lostBack {
		b.carries(index, link, src, dst, model.Egress, n)
	}
	if f == fine {
		a.carries(index, link, dst, src, model.Ingress, n)
	}
}

// carries counts packets at a tunnel's link.
func (m *machine) carries(index int, link string, remote, local netip.Addr, d model.Direction, n uint64) {
	far, near := model.AsDestination, model.AsSource
	if d == model.Ingress {
		far, near = near, far
	}
	bits := 24
	if remote.Is6() {
		bits = 64
	}
	cidr, _ := remote.Prefix(bits)
	m.Traffic.Hops = append(m.Traffic.Hops,
		model.HopCount{Prefix: cidr, IfIndex: index, Link: link, Direction: d, Side: far, Packets: n},
		model.HopCount{Addr: local, IfIndex: index, Link: link, Direction: d, Side: near, Packets: n})
}

// outer counts what carries tunnels from one node to another.
func (c *cluster) outer(from, to int, sent, got uint64) {
	for p := range model.Each(c.nodes[from-1].Traffic.Peers) {
		if p.Local == addr(nodeAddr(from)) && p.Remote == addr(nodeAddr(to)) {
			p.Out.Packets, p.Out.Other = p.Out.Packets+sent, p.Out.Other+sent
			break
		}
	}
	for p := range model.Each(c.nodes[to-1].Traffic.Peers) {
		if p.Local == addr(nodeAddr(to)) && p.Remote == addr(nodeAddr(from)) {
			p.In.Packets, p.In.Other = p.In.Packets+got, p.In.Other+got
			break
		}
	}
}

func TestTunnels(t *testing.T) {
	judge(t, []verdict{
		{"all talk", 2, func(c *cluster) {
			c.vxlan()
			c.through("10.2.1.10", "10.2.2.10", fine, 300)
			c.through("10.2.2.10", "10.2.1.11", fine, 300)
			c.outer(1, 2, 600, 600)
			c.outer(2, 1, 600, 600)
		}, nil},
		{"a policy of the far node denies one", 2, func(c *cluster) {
			c.vxlan()
			c.through("10.2.1.11", "10.2.2.11", fine, 300)
			c.through("10.2.2.11", "10.2.1.11", fine, 300)
			c.through("10.2.1.10", "10.2.2.10", deadThere, 20)
			c.nodes[1].policy("10.2.2.10", "10.2.1.10", 20)
			c.outer(1, 2, 620, 620)
			c.outer(2, 1, 600, 600)
		}, []string{"PolicyDrop proven 10.2.1.10 on n2,n1"}},
		{"a far pod sends nothing", 2, func(c *cluster) {
			c.vxlan()
			c.through("10.2.1.11", "10.2.2.11", fine, 300)
			c.through("10.2.1.10", "10.2.2.10", deadThere, 20)
			c.outer(1, 2, 320, 320)
			c.outer(2, 1, 300, 300)
		}, []string{"NoReply likely 10.2.2.10 on n1"}},
		{"lost there", 2, func(c *cluster) {
			c.vxlan()
			c.through("10.2.1.10", "10.2.2.10", lostThere, 20)
			c.outer(1, 2, 20, 0)
		}, []string{"NoReply proven 10.2.2.10 on n1,n2"}},
		{"the replies are lost", 2, func(c *cluster) {
			c.vxlan()
			c.through("10.2.1.10", "10.2.2.10", lostBack, 20)
			c.outer(1, 2, 20, 20)
			c.outer(2, 1, 20, 0)
		}, []string{"NoReply likely 10.2.1.10 on n2,n1"}},
	})
}

// text is all that a finding says.
func text(f model.Finding) string {
	var words []string
	for _, e := range f.Evidence {
		words = append(words, e.Text)
	}
	return strings.Join(slices.Concat([]string{f.Title, f.Why}, words, f.Unseen, f.Alternatives, f.Fix, f.Next), "\n")
}

// only is the one finding of a cluster.
func only(t *testing.T, c *cluster, want string) string {
	t.Helper()
	r := Judge(c.sources())
	if got := brief(r.Findings); len(got) != 1 || got[0] != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	return text(r.Findings[0])
}

func mentions(t *testing.T, text string, want bool, words ...string) {
	t.Helper()
	for _, w := range words {
		if strings.Contains(text, w) != want {
			t.Errorf("%q: want %v in\n%s", w, want, text)
		}
	}
}

// TestTunnelCarried: the packets that carry a tunnel arrive, and its own do not come out.
func TestTunnelCarried(t *testing.T) {
	c := newCluster(2)
	c.vxlan()
	c.through("10.2.1.10", "10.2.2.10", lostThere, 300)
	c.outer(1, 2, 300, 300)
	got := only(t, c, "NoReply likely 10.2.2.10 on n1,n2")
	mentions(t, got, true, "arrive at n2", "do not come out of flannel.1", "a firewall on n2")
	mentions(t, got, false, "Packets outside the tunnel", "between the nodes drops", "so packets from n1 do arrive", "dropped at")
	c.nodes[1].policy(nodeAddr(2), nodeAddr(1), 290)
	mentions(t, only(t, c, "NoReply likely 10.2.2.10 on n1,n2"), true, "290 packets from 10.1.0.1 to 10.1.0.2 dropped at nft_do_chain")
}

// TestTunnelControl: what may carry the tunnel does not show that other packets pass.
func TestTunnelControl(t *testing.T) {
	c := newCluster(2)
	c.vxlan()
	c.through("10.2.1.10", "10.2.2.10", lostThere, 300)
	c.outer(1, 2, 300, 30)
	mentions(t, only(t, c, "NoReply proven 10.2.2.10 on n1,n2"), true, "40 packets from 10.1.0.1 for 10.1.0.2, so packets from n1 do arrive")
	for _, m := range c.nodes {
		m.Traffic.Peers, m.Flows = nil, slices.DeleteFunc(m.Flows, func(f model.Flow) bool { return f.Original.Dst != addr("10.2.2.10") })
	}
	c.nodes[0].peer(addr(nodeAddr(1)), addr(nodeAddr(2)), model.PeerCount{Packets: 300, Other: 300}, model.PeerCount{})
	c.nodes[1].peer(addr(nodeAddr(2)), addr(nodeAddr(1)), model.PeerCount{}, model.PeerCount{Packets: 30, Other: 30})
	mentions(t, only(t, c, "NoReply proven 10.2.2.10 on n1,n2"), false, "Packets outside the tunnel", "do arrive")
}

// TestTunnelFamilies: of two tunnels that of IPv6 leads to a wrong address.
func TestTunnelFamilies(t *testing.T) {
	c := newCluster(2)
	c.vxlan()
	for _, m := range c.nodes {
		m.Links[0].Addresses = append(m.Links[0].Addresses, netip.PrefixFrom(addr(fmt.Sprintf("2001:db8::%d", m.n)), 64))
		m.addTunnel(8, "flannel-v6.1")
		m.pod(fmt.Sprintf("fd00:%d::10", m.n))
		far := 3 - m.n
		m.Routes = append(m.Routes, model.Route{Table: 254, Dst: prefix("2001:db8::/64"), IfIndex: 2, Link: "eth0", Type: "unicast"},
			model.Route{Table: 254, Dst: prefix(fmt.Sprintf("fd00:%d::/64", far)), Gateway: addr(fmt.Sprintf("fd00:%d::", far)), IfIndex: 8, Link: "flannel-v6.1", Type: "unicast"})
	}
	c.through("10.2.1.10", "10.2.2.10", fine, 300)
	c.outer(1, 2, 300, 300)
	c.outer(2, 1, 300, 300)
	c.through("fd00:1::10", "fd00:2::10", lostThere, 200)
	c.nodes[0].peer(addr("2001:db8::1"), addr("2001:db8::77"), model.PeerCount{Packets: 200, Other: 200}, model.PeerCount{})
	got := only(t, c, "NoReply proven fd00:2::10/128 on n1,n2")
	mentions(t, got, true, "sends to 2001:db8::77, not to n2 at 2001:db8::2", "bridge fdb replace 02:00:00:08:00:02 dev flannel-v6.1 dst 2001:db8::2 self", "flannel-v6.1 ingress")
}

// TestTunnelAddress: of a node's several addresses that counts at which the tunnel reaches
// it, and where that is not known, none.
func TestTunnelAddress(t *testing.T) {
	lostOnNode := func(known bool) *cluster {
		c := newCluster(2)
		c.vxlan()
		for _, m := range c.nodes {
			m.Links = append(m.Links, model.Link{Index: 20, Name: "eth1", Up: true, Carrier: true, Role: model.RoleUplink, MTU: 1500,
				Addresses: []netip.Prefix{netip.PrefixFrom(addr(fmt.Sprintf("10.0.9.%d", m.n)), 24)}})
			m.Node.Uplinks = append(m.Node.Uplinks, "eth1")
			m.Routes = append(m.Routes, model.Route{Table: 254, Dst: prefix("10.0.9.0/24"), IfIndex: 20, Link: "eth1", Type: "unicast"})
		}
		c.through("10.2.1.10", "10.2.2.10", lostThere, 200)
		c.nodes[0].peer(addr("10.1.0.1"), addr("10.1.0.77"), model.PeerCount{Packets: 200, Other: 200}, model.PeerCount{})
		if !known {
			c.flow("10.0.9.1", "10.0.9.2", fine)
		}
		return c
	}
	mentions(t, only(t, lostOnNode(true), "NoReply proven 10.2.2.10 on n1,n2"), true, "sends to 10.1.0.77, not to n2 at 10.1.0.2", "dst 10.1.0.2 self")
	got := only(t, lostOnNode(false), "NoReply likely 10.2.2.10 on n1,n2")
	mentions(t, got, true, "sends to 10.1.0.77, not to n2\n", "dst NODE_IP self")
	mentions(t, got, false, "dst 10.0.9.2")
}

// TestTunnelsAll: what all nodes' tunnels carry is lost, which has one cause; so has what
// those of one carry.
func TestTunnelsAll(t *testing.T) {
	for _, tt := range []struct {
		name  string
		loses func(from, to int) bool
		want  string
	}{
		{"all", func(int, int) bool { return true }, "tunnel packets lost between n1, n2, n3, n4"},
		{"from and to one", func(from, to int) bool { return from == 3 || to == 3 }, "tunnel packets lost between n3 and n1, n2, n4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(4)
			c.vxlan()
			for from := 1; from <= 4; from++ {
				for to := 1; to <= 4; to++ {
					if from != to {
						f := fine
						if tt.loses(from, to) {
							f = lostThere
						}
						c.through(fmt.Sprintf("10.2.%d.10", from), fmt.Sprintf("10.2.%d.10", to), f, 30)
					}
				}
			}
			r := Judge(c.sources())
			if len(r.Findings) != 1 || r.Findings[0].Title != tt.want || r.Findings[0].Confidence != model.Proven || len(r.Findings[0].Nodes) != 4 {
				t.Errorf("got %+v, want %q", r.Findings, tt.want)
			}
		})
	}
}

// BenchmarkTunnels is of all tunnels between many nodes that lose all.
func BenchmarkTunnels(b *testing.B) {
	c := newCluster(80)
	c.vxlan()
	for from := 1; from <= 80; from++ {
		for to := 1; to <= 80; to++ {
			if from != to {
				c.through(fmt.Sprintf("10.2.%d.10", from), fmt.Sprintf("10.2.%d.10", to), lostThere, 30)
			}
		}
	}
	sources := c.sources()
	for b.Loop() {
		Judge(sources)
	}
}

// TestTunnelDown has the link of a node's tunnel down, and with it the routes by it: what its
// pods send leaves for the gateway.
func TestTunnelDown(t *testing.T) {
	c := newCluster(3)
	c.vxlan()
	n2 := c.nodes[1]
	n2.Links[len(n2.Links)-1].Up = false
	n2.Routes = slices.DeleteFunc(n2.Routes, func(r model.Route) bool { return r.IfIndex == 7 })
	c.through("10.2.1.10", "10.2.2.10", lostThere, 20)
	c.through("10.2.3.10", "10.2.2.10", lostThere, 20)
	c.through("10.2.1.10", "10.2.3.10", fine, 300)
	for _, to := range []string{"10.2.1.10", "10.2.1.11", "10.2.3.10", "10.2.3.11"} {
		c.flow("10.2.2.11", to, lostThere)
	}
	c.outer(1, 2, 20, 20)
	c.outer(3, 2, 20, 20)
	got := only(t, c, "NoReply proven 10.2.1.10,10.2.1.11,10.2.2.10,10.2.3.10,10.2.3.11 on n2,n1,n3")
	mentions(t, got, true, "the tunnel of n2 is down: flannel.1", "on n2:", "ip link set flannel.1 up")
}

// TestBesideTunnel has the routes by a node's tunnel gone: the replies of its pods leave for
// the gateway.
func TestBesideTunnel(t *testing.T) {
	c := newCluster(2)
	c.vxlan()
	n2 := c.nodes[1]
	n2.Routes = slices.DeleteFunc(n2.Routes, func(r model.Route) bool { return r.IfIndex == 7 })
	c.through("10.2.1.10", "10.2.2.10", mute, 20)
	for _, to := range []string{"10.2.1.10", "10.2.1.11"} {
		c.flow("10.2.2.11", to, lostThere)
	}
	c.outer(1, 2, 20, 20)
	got := only(t, c, "NoReply proven 10.2.1.10,10.2.1.11,10.2.2.10 on n2,n1")
	mentions(t, got, true, "n2 sends to other nodes' pods outside its tunnel", "on n2:", "ip route show dev flannel.1")
}

// TestAstrayBothWays has a node's tunnel lead astray: its requests are lost, and its replies to what the other node asks.
// The other node's silence has the same cause, however little of it was seen.
func TestAstrayBothWays(t *testing.T) {
	const a, b = "10.2.1.10", "10.2.2.10"
	astray := func() *cluster {
		c := newCluster(3)
		c.vxlan()
		c.through("10.2.1.10", "10.2.3.10", fine, 50)
		c.through("10.2.2.11", "10.2.3.10", fine, 50)
		c.through(a, b, lostThere, 60)
		c.through("10.2.2.11", "10.2.1.11", lostBack, 60)
		c.nodes[0].peer(addr(nodeAddr(1)), addr("10.1.9.9"), model.PeerCount{Packets: 120, Other: 120}, model.PeerCount{})
		return c
	}
	for _, tt := range []struct {
		name string
		make func(n2 *machine)
	}{
		{"all the time", func(*machine) {}},
		{"all listed at once", func(n2 *machine) {
			for f := range model.Each(n2.Flows) {
				f.Start = n2.Window.Start.Add(3 * time.Second)
			}
		}},
		{"packets that were on their way", func(n2 *machine) {
			n2.carries(7, "flannel.1", addr(a), addr(b), model.Ingress, 2)
		}},
		{"a shorter window", func(n2 *machine) {
			n2.Window.Start = n2.Window.Start.Add(3 * time.Second)
			for f := range model.Each(n2.Flows) {
				f.Start = n2.Window.Start.Add(time.Second)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := astray()
			tt.make(c.nodes[1])
			judged(t, c, "NoReply proven 10.2.2.10,10.2.2.11 on n1,n2")
		})
	}
	t.Run("healthy: a pod that is mute", func(t *testing.T) {
		c := newCluster(3)
		c.vxlan()
		c.through(a, b, fine, 200)
		c.through("10.2.2.11", "10.2.1.11", mute, 60)
		judged(t, c, "NoReply likely 10.2.1.11 on n2")
	})
}
