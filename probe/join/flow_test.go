package join

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// port is what becomes of flows to one port of a destination that other packets reach.
type port struct {
	proto uint8
	to    uint16
	flows int
	// arrive: the requests do. reply: the replies arrive, and sends: they are sent.
	arrive, reply, sends bool
}

// speak adds flows to the pair of two addresses that already talk, with two packets each.
func (c *cluster) speak(from, to string, ports ...port) {
	near, far := c.has(addr(from)), c.has(addr(to))
	for _, p := range ports {
		n := uint64(2 * p.flows)
		out := model.PeerCount{Packets: n, Other: n}
		back := out
		if p.proto == model.TCP {
			out, back = model.PeerCount{Packets: n, Requests: n}, model.PeerCount{Packets: n, Replies: n}
		}
		before := c.now
		near.track(c, from, to, p, p.reply)
		near.count(from, to, out, pick(p.reply, back))
		if c.now = before; p.arrive {
			far.track(c, from, to, p, p.sends || p.reply)
			far.count(to, from, pick(p.sends || p.reply, back), out)
		}
		c.now = before + uint16(p.flows)
	}
}

func pick(is bool, n model.PeerCount) model.PeerCount {
	return model.Either(is, n, model.PeerCount{})
}

func (m *machine) track(c *cluster, from, to string, p port, replied bool) {
	for i := range p.flows {
		c.now++
		m.Flows = append(m.Flows, model.Flow{Proto: p.proto, Replied: replied, Start: m.Window.Start.Add(time.Duration(2+i%6) * time.Second),
			Original: model.Tuple{Src: addr(from), Dst: addr(to), SrcPort: c.now, DstPort: p.to},
			Reply:    model.Tuple{Src: addr(to), Dst: addr(from), SrcPort: p.to, DstPort: c.now}})
	}
}

// count adds to what the node counted of a pair.
func (m *machine) count(local, remote string, out, in model.PeerCount) {
	for p := range model.Each(m.Traffic.Peers) {
		if p.Local == addr(local) && p.Remote == addr(remote) {
			p.Out, p.In = added(p.Out, out), added(p.In, in)
			return
		}
	}
	m.peer(addr(local), addr(remote), out, in)
}

// volume is what one node sent to the range of another, and what arrived.
func (c *cluster) volume(from, to int, sent, bytes, got, gotBytes uint64) {
	near, far := c.nodes[from-1], c.nodes[to-1]
	near.Traffic.Hops = append(near.Traffic.Hops, model.HopCount{Prefix: far.Routes[2].Dst, IfIndex: 2, Link: "eth0",
		Direction: model.Egress, Side: model.AsDestination, Packets: sent, Bytes: bytes})
	far.Traffic.Hops = append(far.Traffic.Hops, model.HopCount{Prefix: near.Routes[2].Dst, IfIndex: 2, Link: "eth0",
		Direction: model.Ingress, Side: model.AsSource, Packets: got, Bytes: gotBytes})
}

// fragments are those after the first that one address sent to another, of which some arrived, as did some first ones.
func (c *cluster) fragments(from, to string, first, sent, got uint64) {
	later := func(n uint64) model.PeerCount { return model.PeerCount{Packets: n, Other: n, Fragments: n} }
	c.has(addr(from)).count(from, to, later(sent), model.PeerCount{})
	c.has(addr(to)).count(to, from, model.PeerCount{}, added(later(got), model.PeerCount{Packets: first, Other: first}))
}

func added(a, b model.PeerCount) model.PeerCount {
	return model.PeerCount{Packets: a.Packets + b.Packets, Requests: a.Requests + b.Requests, Replies: a.Replies + b.Replies, Other: a.Other + b.Other, Fragments: a.Fragments + b.Fragments}
}

// well is a port at which requests arrive and are replied to.
func well(proto uint8, to uint16, flows int) port { return port{proto, to, flows, true, true, true} }

// TestLostFlows has flows to some ports lost between nodes, while others between the same addresses are well.
func TestLostFlows(t *testing.T) {
	const a, b = "10.2.1.10", "10.2.2.10"
	const told = "NoReply proven 10.2.2.10 on n1,n2"
	judge(t, []verdict{
		{"names are not asked for, though a port answers", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 10), port{proto: model.UDP, to: 53, flows: 8})
		}, []string{told}},
		{"healthy: names and a port", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 10), well(model.UDP, 53, 8))
		}, nil},
		{"datagrams are well, and connections are not", 2, func(c *cluster) {
			c.speak(a, b, well(model.UDP, 53, 30), port{proto: model.TCP, to: 443, flows: 2}, port{proto: model.TCP, to: 8443, flows: 2})
		}, []string{told}},
		{"healthy: a closed port among datagrams", 2, func(c *cluster) {
			c.speak(a, b, well(model.UDP, 53, 30), port{proto: model.TCP, to: 443, flows: 4, arrive: true, reply: true})
		}, nil},
		{"a range of ports, from two nodes", 3, func(c *cluster) {
			for _, from := range []string{a, "10.2.3.10"} {
				c.speak(from, b, well(model.TCP, 80, 20))
				for p := range uint16(12) {
					c.speak(from, b, port{proto: model.TCP, to: 30000 + p, flows: 1})
				}
			}
		}, []string{"NoReply proven 10.2.2.10 on n1,n3,n2"}},
		{"healthy: a range of ports, from two nodes", 3, func(c *cluster) {
			for _, from := range []string{a, "10.2.3.10"} {
				c.speak(from, b, well(model.TCP, 80, 20))
				for p := range uint16(12) {
					c.speak(from, b, well(model.TCP, 30000+p, 1))
				}
			}
		}, nil},
		{"a name server's replies are lost", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 10), port{proto: model.UDP, to: 53, flows: 8, arrive: true, sends: true})
		}, []string{"NoReply proven 10.2.1.10 on n2,n1"}},
		{"connections whose SYN-ACKs are lost", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 10), port{proto: model.TCP, to: 443, flows: 4, arrive: true, sends: true})
		}, []string{"NoReply proven 10.2.1.10 on n2,n1"}},
		{"healthy: SYN-ACKs that arrive, and a client that does not see them", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 10), port{proto: model.TCP, to: 443, flows: 4, arrive: true, sends: true})
			c.nodes[0].count(a, b, model.PeerCount{}, model.PeerCount{Packets: 8, Replies: 8})
		}, nil},
		{"fragments among small datagrams", 2, func(c *cluster) {
			c.speak(a, b, well(model.UDP, 53, 100))
			c.volume(1, 2, 200, 200*80, 200, 200*80)
			c.speak(a, b, port{proto: model.UDP, to: 53, flows: 30})
			c.volume(1, 2, 60, 60*1100, 0, 0)
		}, []string{"PathMTU likely 10.2.2.10 on n1,n2"}},
		{"healthy: fragments among small datagrams", 2, func(c *cluster) {
			c.speak(a, b, well(model.UDP, 53, 130))
			c.volume(1, 2, 260, 200*80+60*1100, 260, 200*80+60*1100)
		}, nil},
		{"a port with large datagrams, beside small ones to another", 2, func(c *cluster) {
			c.speak(a, b, well(model.UDP, 123, 100), well(model.UDP, 53, 2), port{proto: model.UDP, to: 514, flows: 30})
			c.speak(a, "10.2.2.11", well(model.UDP, 514, 2))
			c.volume(1, 2, 264, 204*80+60*1100, 204, 204*80)
		}, []string{told}},
		{"a port with large datagrams, where another pod loses large packets too", 2, func(c *cluster) {
			c.speak(a, b, well(model.UDP, 123, 100), well(model.UDP, 53, 2), port{proto: model.UDP, to: 514, flows: 30})
			c.speak(a, "10.2.2.11", well(model.UDP, 514, 100), port{proto: model.UDP, to: 514, flows: 30})
			c.volume(1, 2, 464, 404*80+60*1100, 404, 404*80)
		}, []string{"PathMTU likely 10.2.2.10,10.2.2.11 on n1,n2"}},
		{"fragments of datagrams to a port of which all are large", 2, func(c *cluster) {
			c.speak(a, b, well(model.UDP, 53, 20), port{proto: model.UDP, to: 514, flows: 8})
			c.fragments(a, b, 16, 16, 0)
		}, []string{"PathMTU likely 10.2.2.10 on n1,n2"}},
		{"fragments of replies, among much else", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 200), well(model.UDP, 53, 30))
			c.fragments(b, a, 0, 30, 0)
			c.volume(1, 2, 400, 400*1400, 400, 400*1400)
			c.volume(2, 1, 430, 430*1400, 400, 400*1400)
		}, []string{"PathMTU likely 10.2.1.10 on n2,n1"}},
		{"healthy: fragments of replies, among much else", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 200), well(model.UDP, 53, 30))
			c.fragments(b, a, 0, 30, 28)
		}, nil},
		{"a filter of a port of which all datagrams are large", 2, func(c *cluster) {
			c.speak(a, b, well(model.UDP, 53, 20), port{proto: model.UDP, to: 514, flows: 8})
			c.fragments(a, b, 0, 16, 0)
		}, []string{told}},
		{"replies to all are lost, and the other node's window missed some of the requests", 2, func(c *cluster) {
			c.speak(a, b, port{proto: model.TCP, to: 443, flows: 8, arrive: true, sends: true}, port{proto: model.TCP, to: 8443, flows: 6})
		}, []string{"NoReply proven 10.2.1.10 on n2,n1"}},
		{"datagrams that nobody answers anywhere", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 10), port{proto: model.UDP, to: 8125, flows: 8})
		}, []string{told}},
		{"the same, which arrive", 2, func(c *cluster) {
			c.speak(a, b, well(model.TCP, 8080, 10), port{proto: model.UDP, to: 8125, flows: 8, arrive: true})
		}, nil},
	})
}

// TestLostFlowsTitle has the title name the ports, those in a row as a range.
func TestLostFlowsTitle(t *testing.T) {
	const a, b = "10.2.1.10", "10.2.2.10"
	c := newCluster(2)
	c.speak(a, b, well(model.TCP, 80, 20), port{proto: model.UDP, to: 53, flows: 4})
	for p := range uint16(5) {
		c.speak(a, b, port{proto: model.TCP, to: 30000 + p, flows: 1})
	}
	f := judged(t, c, "NoReply proven 10.2.2.10 on n1,n2")[0]
	if want := "packets lost between n1 and n2: ports 30000-30004/tcp, port 53/udp from 10.2.1.10 to 10.2.2.10"; f.Title != want {
		t.Errorf("got %q, want %q", f.Title, want)
	}
}
