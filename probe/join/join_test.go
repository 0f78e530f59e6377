package join

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/model"
	nodeindex "github.com/lasthop/lasthop/probe/node"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// machine is a kubenet node under construction: 10.1.0.N with the pods 10.2.N.0/24.
type machine struct {
	*model.Snapshot
	n      int
	name   string
	cut    string
	broken error
}

// cluster has nodes n1, n2, … with pods a, b at .10, .11 each, and the nodes' own
// addresses, which reach each other.
type cluster struct {
	nodes []*machine
	now   uint16
}

func newCluster(nodes int) *cluster {
	c := &cluster{now: 1000}
	for i := range nodes {
		c.nodes = append(c.nodes, newMachine(i+1))
	}
	for i := range c.nodes {
		for j := range c.nodes {
			if i != j {
				c.flow(nodeAddr(i+1), nodeAddr(j+1), fine)
			}
		}
	}
	return c
}

func nodeAddr(n int) string { return fmt.Sprintf("10.1.%d.%d", n>>8, n&255) }

func newMachine(n int) *machine {
	own := prefix(fmt.Sprintf("10.%d.%d.0/24", 2+n>>8, n&255))
	m := &machine{Snapshot: &model.Snapshot{}, n: n, name: fmt.Sprintf("n%d", n)}
	m.Node = model.Node{Name: m.name, Plugin: "kubenet", Engine: "tc", Uplinks: []string{"eth0"}}
	m.Window = model.Window{Start: start, End: start.Add(10 * time.Second)}
	for _, s := range []string{
		model.SourceLinks, model.SourceRoutes, model.SourceNeighbors, model.SourceBridge, model.SourceSysctl, model.SourceEbtables, model.SourceNAT,
		model.SourceConntrack, model.SourcePods, model.SourceTC, model.SourceDrops,
	} {
		m.Sources = append(m.Sources, model.Source{Name: s, Status: model.OK})
	}
	m.Links = []model.Link{
		{Index: 2, Name: "eth0", MAC: model.MAC{0, 0x0d, 0x3a, 0, byte(n >> 8), byte(n)}, Up: true, Carrier: true, Role: model.RoleUplink, MTU: 1500,
			Addresses: []netip.Prefix{netip.PrefixFrom(addr(nodeAddr(n)), 16)}},
		{Index: 3, Name: "cbr0", Kind: "bridge", MAC: model.MAC{2, 0, 0, 0, 0, byte(n)}, Up: true, Carrier: true, Role: model.RoleBridge, MTU: 1500,
			Addresses: []netip.Prefix{netip.PrefixFrom(own.Addr().Next(), 24)}},
	}
	m.Routes = []model.Route{
		{Table: 254, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.1.255.1"), IfIndex: 2, Link: "eth0", Type: "unicast"},
		{Table: 254, Dst: prefix("10.1.0.0/16"), IfIndex: 2, Link: "eth0", Type: "unicast"},
		{Table: 254, Dst: own, IfIndex: 3, Link: "cbr0", Type: "unicast"},
	}
	m.Neighbors = []model.Neighbor{{Addr: addr("10.1.255.1"), MAC: model.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}, IfIndex: 2, State: "REACHABLE"}}
	for _, last := range []byte{10, 11} {
		pod := own.Addr().As4()
		pod[3] = last
		m.pod(netip.AddrFrom4(pod).String())
	}
	return m
}

func (m *machine) pod(a string) {
	index := 10 + len(m.Pods)
	link := fmt.Sprintf("veth%d", index)
	m.Links = append(m.Links, model.Link{Index: index, Name: link, Kind: "veth", Master: 3, Up: true, Carrier: true, Role: model.RolePodLink, MTU: 1500,
		MAC: model.MAC{0xfe, 0, 0, 0, byte(m.n), byte(index)}})
	m.Pods = append(m.Pods, model.Pod{Addresses: []netip.Prefix{netip.PrefixFrom(addr(a), 32)}, MAC: model.MAC{0x0a, 0x58, 0, 0, byte(m.n), byte(index)}, Up: true,
		Link: link, LinkIndex: index})
}

// has returns the node with the address; nil if none of the cluster's has it.
func (c *cluster) has(a netip.Addr) *machine {
	for _, m := range c.nodes {
		if slices.ContainsFunc(m.Pods, func(p model.Pod) bool { return p.Has(a) }) || slices.ContainsFunc(m.Links, func(l model.Link) bool { return l.Has(a) }) {
			return m
		}
	}
	return nil
}

// fate is what becomes of requests and replies.
type fate int

const (
	fine fate = iota
	// lostThere and lostBack are lost between the nodes, deadThere at the receiving
	// node, and to a mute end everything arrives, which sends nothing.
	lostThere
	lostBack
	deadThere
	mute
)

// flow lets one end ask another, by TCP and ICMP or by given ports.
func (c *cluster) flow(from, to string, f fate, ports ...uint16) {
	src, dst := addr(from), addr(to)
	const n = 20
	asked := model.PeerCount{Packets: n, Requests: n}
	reply := model.PeerCount{Packets: n, Replies: n}
	var none model.PeerCount
	before := c.now
	if m := c.has(src); m != nil {
		in := none
		if f == fine {
			in = reply
		}
		m.peer(src, dst, asked, in)
		m.flows(c, src, dst, f == fine, ports)
	}
	c.now = before
	m := c.has(dst)
	if m == nil || f == lostThere {
		c.now += 10
		return
	}
	out := none
	if f == fine || f == lostBack {
		out = reply
	}
	m.peer(dst, src, out, asked)
	m.flows(c, src, dst, false, ports)
	for _, p := range m.Pods {
		if p.Has(dst) && f != deadThere {
			m.hop(dst, p.Link, p.LinkIndex, n)
		}
	}
}

func (m *machine) peer(local, remote netip.Addr, out, in model.PeerCount) {
	m.Traffic.Peers = append(m.Traffic.Peers, model.Peer{Local: local, Remote: remote, IfIndex: 2, Link: "eth0", Out: out, In: in,
		FirstOut: m.Window.Start.Add(time.Second), LastOut: m.Window.End.Add(-time.Second), LastIn: m.Window.End.Add(-time.Second)})
}

func (m *machine) hop(a netip.Addr, link string, index int, packets uint64) {
	m.Traffic.Hops = append(m.Traffic.Hops, model.HopCount{Addr: a, IfIndex: index, Link: link, Direction: model.Egress, Side: model.AsDestination, Packets: packets})
}

func (m *machine) flows(c *cluster, src, dst netip.Addr, replied bool, ports []uint16) {
	add := func(proto uint8, port uint16) {
		c.now++
		m.Flows = append(m.Flows, model.Flow{Proto: proto, Original: model.Tuple{Src: src, Dst: dst, SrcPort: c.now, DstPort: port},
			Reply: model.Tuple{Src: dst, Dst: src, SrcPort: port, DstPort: c.now}, Replied: replied, Start: m.Window.Start.Add(2 * time.Second)})
	}
	if len(ports) == 0 {
		add(1, 0)
		ports = []uint16{80}
	}
	for _, p := range ports {
		add(6, p)
	}
}

func byTables(s *model.Snapshot, verdict []model.Finding) []model.Finding {
	return audit.Beside(nodeindex.New(s), verdict, nil)
}

// sources are the recordings of some nodes, of all by default.
func (c *cluster) sources(watched ...int) []Source {
	var out []Source
	for _, m := range c.nodes {
		if len(watched) > 0 && !slices.Contains(watched, m.n) {
			continue
		}
		out = append(out, Source{Name: m.name + ".rec", Cut: m.cut, Tables: byTables, Read: func() (*model.Snapshot, error) { return m.Snapshot, m.broken }})
	}
	return out
}

// brief are findings as "Code confidence peers on nodes".
func brief(list []model.Finding) []string {
	out := []string{}
	for _, f := range list {
		var peers []string
		for _, p := range f.Peers {
			peers = append(peers, strings.TrimSuffix(p.String(), "/32"))
		}
		out = append(out, fmt.Sprintf("%s %s %s on %s", f.Code, f.Confidence, strings.Join(peers, ","), strings.Join(f.Nodes, ",")))
	}
	return out
}

// ask lets the pods of some nodes ask those of another: both pods by each.
func (c *cluster) ask(from, to int, f fate) {
	for _, a := range []int{10, 11} {
		for _, b := range []int{10, 11} {
			c.flow(fmt.Sprintf("10.2.%d.%d", from, a), fmt.Sprintf("10.2.%d.%d", to, b), f)
		}
	}
}

func TestJudge(t *testing.T) {
	tests := []struct {
		name    string
		nodes   int
		watched []int
		make    func(*cluster)
		want    []string
	}{
		{"healthy", 3, nil, func(c *cluster) { c.ask(1, 2, fine); c.ask(2, 3, fine); c.ask(3, 1, fine) }, nil},
		{"no row there", 3, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(3, 2, lostThere)
			c.ask(2, 1, lostBack)
			c.ask(1, 3, fine)
		}, []string{"MissingUDR proven 10.2.2.0/24 on n1,n3,n2"}},
		{"no row there, one watched pair", 3, []int{1, 2}, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(2, 1, lostBack)
			c.ask(1, 3, fine)
		}, []string{"MissingUDR proven 10.2.2.0/24 on n1,n2"}},
		{"no row back", 3, []int{1, 2}, func(c *cluster) {
			c.ask(1, 2, lostBack)
			c.ask(1, 3, lostBack)
			c.ask(2, 1, lostThere)
			c.ask(3, 2, fine)
			c.ask(2, 3, fine)
		}, []string{"MissingUDR proven 10.2.1.0/24 on n2,n1"}},
		{"no table", 3, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(2, 3, lostThere)
			c.ask(3, 1, lostThere)
			c.flow("10.2.1.10", nodeAddr(2), lostBack)
			c.flow("10.2.2.10", nodeAddr(3), lostBack)
			c.flow("10.2.3.10", nodeAddr(1), lostBack)
		}, []string{"MissingUDR proven 10.2.1.0/24,10.2.2.0/24,10.2.3.0/24 on n1,n2,n3"}},
		{"no table or no NIC of two", 2, nil, func(c *cluster) { c.ask(1, 2, lostThere); c.ask(2, 1, lostThere) },
			[]string{"MissingUDR likely 10.2.1.0/24,10.2.2.0/24 on n1,n2"}},
		{"a NIC that does not forward", 3, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(3, 2, lostThere)
			c.ask(2, 1, lostThere)
			c.ask(2, 3, lostThere)
			c.ask(1, 3, fine)
			c.ask(3, 1, fine)
		}, []string{"NICForwarding likely 10.2.2.0/24 on n1,n2,n3"}},
		{"filtered by source", 3, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(1, 3, lostThere)
			c.ask(2, 3, fine)
			c.ask(3, 1, lostBack)
		}, []string{"NoReply proven 10.2.2.10,10.2.2.11,10.2.3.10,10.2.3.11 on n1,n2,n3"}},
		{"filtered by address", 2, nil, func(c *cluster) {
			c.flow("10.2.1.10", "10.2.2.10", lostThere)
			c.flow("10.2.1.11", "10.2.2.10", lostThere)
			c.flow("10.2.1.10", "10.2.2.11", fine)
		}, []string{"NoReply proven 10.2.2.10 on n1,n2"}},
		{"one address alone was asked", 2, nil, func(c *cluster) {
			c.flow("10.2.1.10", "10.2.2.10", lostThere)
			c.flow("10.2.2.11", "10.2.1.11", fine)
		}, []string{"NoReply proven 10.2.2.10 on n1,n2"}},
		{"one port alone was asked", 3, []int{1, 2}, func(c *cluster) {
			for _, b := range []string{"10.2.2.10", "10.2.2.11"} {
				c.flow("10.2.1.10", b, lostThere, 8080)
			}
			// Their own packets arrive, so that no card is to blame.
			c.nodes[0].peer(addr("10.2.1.10"), addr("10.2.2.20"), model.PeerCount{}, model.PeerCount{Packets: 9, Other: 9})
			c.nodes[1].pod("10.2.2.20")
			c.nodes[1].peer(addr("10.2.2.20"), addr("10.2.1.10"), model.PeerCount{Packets: 9, Other: 9}, model.PeerCount{})
			c.ask(1, 3, fine)
		}, []string{"MissingUDR likely 10.2.2.0/24 on n1,n2"}},
		{"filtered by port", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.asks("10.2.1.10", "10.2.2.11", 8443, 12, 0)
		}, []string{"NoReply proven 10.2.2.11 on n1,n2"}},
		{"a port that nobody replies at", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			for _, m := range c.nodes {
				for i := range 4 {
					m.flows(c, addr("10.2.1.10"), addr("10.2.2.11"), false, []uint16{8443})
					m.Flows[len(m.Flows)-1].Start = start.Add(time.Duration(2+i) * time.Second)
				}
			}
		}, nil},
		{"a smaller MTU between", 2, nil, func(c *cluster) {
			c.flow("10.2.1.11", "10.2.2.11", fine)
			c.data("10.2.1.10", "10.2.2.10", 400, 1000, 40, 90)
		}, []string{"PathMTU likely 10.2.2.10 on n1,n2"}},
		{"segments that are merged", 2, nil, func(c *cluster) { c.data("10.2.1.10", "10.2.2.10", 400, 1400, 40, 14000) }, nil},
		{"segments that are cut", 2, nil, func(c *cluster) { c.data("10.2.1.10", "10.2.2.10", 40, 14000, 400, 1400) }, nil},
		{"a window that is shorter", 2, nil, func(c *cluster) {
			c.data("10.2.1.10", "10.2.2.10", 400, 1000, 100, 1000)
			c.nodes[1].Traffic.Peers[len(c.nodes[1].Traffic.Peers)-1].In.Requests /= 4
		}, nil},
		{"a burst in one window alone", 2, nil, func(c *cluster) {
			c.data("10.2.1.10", "10.2.2.10", 400, 1000, 40, 90)
			c.nodes[0].Traffic.Peers[len(c.nodes[0].Traffic.Peers)-1].In = model.PeerCount{Packets: 300, Replies: 300}
		}, nil},
		{"wrong next hop", 3, nil, func(c *cluster) {
			c.ask(1, 3, lostThere)
			c.ask(1, 2, fine)
			c.ask(3, 1, lostBack)
			c.nodes[1].returned("10.2.1.0/24", model.AsSource)
		}, []string{"WrongUDR proven 10.2.3.0/24 on n1,n3,n2"}},
		{"far policy", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.nodes[1].pod("10.2.2.12")
			c.flow("10.2.1.11", "10.2.2.12", deadThere)
			c.nodes[1].policy("10.2.2.12", "10.2.1.11", 20)
		}, []string{"PolicyDrop proven 10.2.1.11 on n2,n1"}},
		{"a program at the sender's uplink", 3, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(1, 3, fine)
			c.ask(2, 3, fine)
			for _, src := range []string{"10.2.1.10", "10.2.1.11"} {
				for _, dst := range []string{"10.2.2.10", "10.2.2.11"} {
					c.nodes[0].dropped(src, dst, "TC_EGRESS", 20)
				}
			}
		}, []string{"BPFDrop proven 10.2.2.10,10.2.2.11 on n1,n2"}},
		{"a program at the sender's uplink, and a missing row", 3, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(3, 2, lostThere)
			c.ask(1, 3, fine)
			c.nodes[0].dropped("10.2.1.10", "10.2.2.10", "TC_EGRESS", 3)
		}, []string{"MissingUDR likely 10.2.2.0/24 on n1,n3,n2", "BPFDrop proven 10.2.2.10 on n1"}},
		{"XDP at the receiver's uplink", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.nodes[1].pod("10.2.2.12")
			c.flow("10.2.1.10", "10.2.2.12", lostThere)
			c.nodes[1].dropped("10.2.1.10", "10.2.2.12", "XDP", 20)
		}, []string{"BPFDrop proven 10.2.1.10 on n2,n1"}},
		{"far pod mute", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.nodes[1].pod("10.2.2.12")
			c.flow("10.2.1.10", "10.2.2.12", mute)
		},
			[]string{"PodNotReplying likely 10.2.2.12 on n2,n1"}},
		{"far node loses it", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.nodes[1].pod("10.2.2.12")
			c.flow("10.2.1.10", "10.2.2.12", deadThere)
		},
			[]string{"NoReply likely 10.2.2.12 on n2,n1"}},
		{"which sent a reply before the asker was watched", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.nodes[1].pod("10.2.2.12")
			c.flow("10.2.1.10", "10.2.2.12", deadThere)
			c.nodes[1].Traffic.Peers[len(c.nodes[1].Traffic.Peers)-1].Out = model.PeerCount{Packets: 1, Replies: 1}
		},
			[]string{"NoReply likely 10.2.2.12 on n2,n1"}},
		{"far pod gone", 2, nil, func(c *cluster) { c.ask(1, 2, fine); c.flow("10.2.1.10", "10.2.2.99", lostThere) },
			[]string{"NoReply likely 10.2.2.99 on n2,n1"}},
		{"nothing is concluded of a node that was not watched", 2, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.nodes[1].source(model.SourceTC, model.Missing)
		}, []string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"nor of one with gaps", 2, nil, func(c *cluster) { c.ask(1, 2, lostThere); c.nodes[1].Traffic.Lost.Gaps = 1 },
			[]string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"nor of one whose peers went uncounted", 2, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.nodes[1].Traffic.Lost = model.Lost{Counters: 3}
		}, []string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"nor of one whose far ends were counted by range", 2, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			for _, b := range []string{"10.2.2.10", "10.2.2.11"} {
				c.nodes[1].Traffic.Peers = append(c.nodes[1].Traffic.Peers, model.Peer{Local: addr(b), Range: prefix("10.2.1.0/24"), IfIndex: 2, In: model.PeerCount{Packets: 9}})
			}
		}, []string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"nor of a recording that was cut off", 2, nil, func(c *cluster) { c.ask(1, 2, lostThere); c.nodes[1].cut = "cut" },
			[]string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"which may miss the route back itself", 2, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.flow("10.2.2.10", "10.2.1.10", lostBack)
			c.nodes[1].cut = "cut"
		}, []string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"nor of one that cannot be read", 2, nil, func(c *cluster) { c.ask(1, 2, lostThere); c.nodes[1].broken = errors.New("broken") },
			[]string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"nor of another time", 2, nil, func(c *cluster) { c.ask(1, 2, lostThere); c.nodes[1].shift(20 * time.Minute) },
			[]string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"clocks three minutes apart", 3, nil, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.ask(2, 1, lostBack)
			c.ask(1, 3, fine)
			c.nodes[1].shift(3 * time.Minute)
			c.nodes[2].shift(-3 * time.Minute)
		}, []string{"MissingUDR proven 10.2.2.0/24 on n1,n2"}},
		{"asymmetric, and all replied to", 3, nil, func(c *cluster) {
			// The replies come by another path, which nobody watches at the far end.
			c.ask(1, 3, fine)
			c.nodes[0].peer(addr("10.2.1.10"), addr("10.2.2.10"), model.PeerCount{Packets: 20, Requests: 20}, model.PeerCount{Packets: 20, Replies: 20})
			c.nodes[1].peer(addr("10.2.2.10"), addr("10.2.1.10"), model.PeerCount{}, model.PeerCount{Packets: 20, Requests: 20})
		}, nil},
		{"datagrams that want no reply", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.nodes[0].peer(addr("10.2.1.10"), addr("10.2.2.12"), model.PeerCount{Packets: 10, Other: 10}, model.PeerCount{})
			c.nodes[1].pod("10.2.2.12")
		}, []string{"NoReply proven 10.2.2.12 on n1,n2"}},
		{"a few datagrams that want no reply", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.nodes[0].peer(addr("10.2.1.10"), addr("10.2.2.12"), model.PeerCount{Packets: 9, Other: 9}, model.PeerCount{})
			c.nodes[1].pod("10.2.2.12")
		}, nil},
		{"a pod that started late", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.nodes[1].pod("10.2.2.12")
			c.nodes[1].Pods[2].Since = c.nodes[1].Window.End.Add(-time.Second)
			c.nodes[0].peer(addr("10.2.1.10"), addr("10.2.2.12"), model.PeerCount{Packets: 20, Requests: 20}, model.PeerCount{})
		}, []string{"NoReply likely 10.2.2.12 on n1"}},
		{"a pod that went while it was asked", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.gone("10.2.2.12", 2*time.Second)
		}, nil},
		{"a pod that is asked long after it went", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			for _, m := range c.nodes {
				m.Window.End = m.Window.End.Add(time.Minute)
			}
			c.gone("10.2.2.12", 2*time.Second)
		}, []string{"NoReply likely 10.2.2.12 on n1"}},
		{"what was recorded later, and is asked no more", 2, nil, func(c *cluster) {
			c.nodes[0].peer(addr("10.2.1.10"), addr("10.2.3.10"), model.PeerCount{Packets: 20, Requests: 20}, model.PeerCount{Packets: 20, Replies: 20})
			for _, m := range c.nodes {
				m.Flows = nil
			}
			c.nodes[0].peer(addr("10.2.1.10"), addr("10.2.2.10"), model.PeerCount{Packets: 20, Requests: 20}, model.PeerCount{})
			c.nodes[1].shift(2 * time.Minute)
		}, []string{"NoReply likely 10.2.2.10 on n1"}},
		{"a clock that is two minutes ahead, as connections tell", 2, nil, func(c *cluster) {
			c.flow("10.2.2.11", "10.2.1.11", fine)
			c.flow("10.2.1.10", "10.2.2.10", lostThere)
			c.nodes[1].shift(2 * time.Minute)
		}, []string{"NoReply proven 10.2.2.10 on n1,n2"}},
		{"a source that its node does not have", 2, nil, func(c *cluster) {
			for i := range uint16(4) {
				c.nodes[0].Flows = append(c.nodes[0].Flows, model.Flow{Proto: 6, Original: model.Tuple{Src: addr("10.2.1.10"), Dst: addr("10.2.2.10"), SrcPort: 100 + i, DstPort: 80},
					Reply: model.Tuple{Src: addr("10.2.2.10"), Dst: addr("10.1.9.9"), SrcPort: 80, DstPort: 100 + i}, Start: start.Add(time.Second)})
				c.nodes[1].Flows = append(c.nodes[1].Flows, model.Flow{Proto: 6, Original: model.Tuple{Src: addr("10.1.9.9"), Dst: addr("10.2.2.10"), SrcPort: 100 + i, DstPort: 80},
					Reply: model.Tuple{Src: addr("10.2.2.10"), Dst: addr("10.1.9.9"), SrcPort: 80, DstPort: 100 + i}, Replied: true, State: "SYN_RECV", Start: start.Add(time.Second)})
			}
			c.nodes[1].peer(addr("10.2.2.10"), addr("10.1.9.9"), model.PeerCount{Packets: 20, Replies: 20}, model.PeerCount{Packets: 20, Requests: 20})
		}, []string{"ForeignSNAT likely 10.2.2.10 on n1,n2"}},
		{"a machine beyond that is silent to two", 2, nil, func(c *cluster) {
			c.ask(1, 2, fine)
			c.flow("10.2.1.10", "10.1.7.7", lostThere)
			c.flow("10.2.2.10", "10.1.7.7", lostThere)
			c.flow("10.2.2.11", "10.1.7.8", lostThere)
		}, []string{"NoReply likely 10.1.7.7,10.1.7.8 on n1,n2"}},
		{"two that each suppose the route to the other to be missing", 3, []int{1, 2}, func(c *cluster) {
			c.ask(1, 2, lostThere)
			c.flow("10.2.2.10", "10.2.1.10", lostBack)
			c.flow("10.2.2.10", "10.2.1.11", lostBack)
			c.ask(1, 3, fine)
			c.flow("10.2.2.10", "10.2.3.11", fine)
			for _, m := range c.nodes[:2] {
				m.Traffic.Lost.Gaps = 1
			}
		}, []string{"MissingUDR likely 10.2.2.0/24 on n1"}},
		{"one rule on all nodes", 3, nil, func(c *cluster) {
			for i := range 3 {
				c.nodes[i].policy(fmt.Sprintf("10.2.%d.10", i+1), "192.0.2.1", 20)
			}
		}, []string{"PolicyDrop proven 192.0.2.1 on n1,n2,n3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(tt.nodes)
			tt.make(c)
			r := Judge(c.sources(tt.watched...))
			want := append([]string{}, tt.want...)
			if got := brief(r.Findings); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				for _, f := range r.Findings {
					t.Logf("%+v", f)
				}
			}
		})
	}
}

// gone has n1 ask a pod of n2 from when it goes until the end of the window.
func (c *cluster) gone(a string, after time.Duration) {
	asker, far := c.nodes[0], c.nodes[1]
	far.pod(a)
	c.flow("10.2.1.10", a, lostThere)
	last := &asker.Traffic.Peers[len(asker.Traffic.Peers)-1]
	last.FirstOut, last.LastOut = asker.Window.Start.Add(after), asker.Window.End.Add(-time.Second)
	p := far.Pods[len(far.Pods)-1]
	p.Since, p.Until = far.Window.Start, far.Window.Start.Add(after)
	far.Pods, far.PastPods = far.Pods[:len(far.Pods)-1], append(far.PastPods, p)
}

// data is a connection of which many packets left and some arrived, of given sizes.
func (c *cluster) data(from, to string, sent, size, got, gotSize uint64) {
	src, dst := c.has(addr(from)), c.has(addr(to))
	src.peer(addr(from), addr(to), model.PeerCount{Packets: 40 + sent, Requests: 40, Replies: sent}, model.PeerCount{Packets: 60, Replies: 60})
	dst.peer(addr(to), addr(from), model.PeerCount{Packets: 60, Replies: 60}, model.PeerCount{Packets: 40 + got, Requests: 40, Replies: got})
	src.Traffic.Hops = append(src.Traffic.Hops, model.HopCount{Prefix: dst.Routes[2].Dst, IfIndex: 2, Link: "eth0", Direction: model.Egress, Side: model.AsDestination, Packets: sent, Bytes: sent * size})
	dst.Traffic.Hops = append(dst.Traffic.Hops, model.HopCount{Prefix: src.Routes[2].Dst, IfIndex: 2, Link: "eth0", Direction: model.Ingress, Side: model.AsSource, Packets: got, Bytes: got * gotSize})
}

func (m *machine) returned(cidr string, side model.Side) {
	for _, d := range []model.Direction{model.Ingress, model.Egress} {
		h := model.HopCount{Prefix: prefix(cidr), IfIndex: 2, Link: "eth0", Direction: d, Side: side, Packets: 400}
		if d == model.Egress {
			h.FromUplink = 400
		}
		m.Traffic.Hops = append(m.Traffic.Hops, h)
	}
}

// policy drops packets for one of the node's pods, by a rule.
func (m *machine) policy(pod, from string, packets uint64) {
	m.PacketRules = append(m.PacketRules, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "filter", Chain: "FORWARD", Number: 1,
		Target: "DROP", Text: "-s 10.9.0.0/16 -j DROP", Counter: model.Counter{Packets: 2 * packets, Delta: packets}})
	m.Chains = append(m.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "filter", Name: "FORWARD", Hook: "FORWARD"})
	m.Traffic.Drops = append(m.Traffic.Drops, model.Drop{Src: addr(from), Dst: addr(pod), Reason: "NETFILTER_DROP", Location: "nft_do_chain",
		IfIndex: 2, Link: "eth0", Packets: packets})
}

// dropped has something drop packets at the uplink.
func (m *machine) dropped(src, dst string, reason model.Reason, packets uint64) {
	m.Traffic.Drops = append(m.Traffic.Drops, model.Drop{Src: addr(src), Dst: addr(dst), Reason: reason, Location: "here",
		IfIndex: 2, Link: "eth0", Packets: packets, First: m.Window.Start.Add(time.Second), Last: m.Window.End.Add(-time.Second)})
}

func (m *machine) source(name string, s model.Status) {
	for i := range m.Sources {
		if m.Sources[i].Name == name {
			m.Sources[i].Status = s
		}
	}
}

// shift moves a node's clock.
func (m *machine) shift(d time.Duration) {
	m.Window.Start, m.Window.End = m.Window.Start.Add(d), m.Window.End.Add(d)
	for p := range model.Each(m.Traffic.Peers) {
		p.FirstOut, p.LastOut, p.LastIn = p.FirstOut.Add(d), p.LastOut.Add(d), p.LastIn.Add(d)
	}
	for f := range model.Each(m.Flows) {
		f.Start = f.Start.Add(d)
	}
}

func TestOrder(t *testing.T) {
	c := newCluster(4)
	c.ask(1, 2, lostThere)
	c.ask(3, 2, lostThere)
	c.ask(2, 4, lostBack)
	c.ask(1, 3, fine)
	c.flow("10.2.4.10", "10.2.1.10", lostThere)
	c.nodes[2].policy("10.2.3.11", "10.2.4.10", 30)
	c.nodes[3].cut = "cut"
	sources := c.sources()
	want := Judge(sources)
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		r.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
		if got := Judge(sources); !reflect.DeepEqual(got, want) {
			t.Fatalf("in another order: got\n%+v\nwant\n%+v", got, want)
		}
	}
}
