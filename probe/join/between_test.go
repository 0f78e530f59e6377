package join

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// asks adds connections of n1 to one port, without a reply, of which the far node tracks
// none, and of whose packets some arrive at its uplink.
func (c *cluster) asks(from, to string, port uint16, sent, arrive uint64) {
	src, dst := c.has(addr(from)), c.has(addr(to))
	for i := range 4 {
		src.flows(c, addr(from), addr(to), false, []uint16{port})
		src.Flows[len(src.Flows)-1].Start = start.Add(time.Duration(2+i) * time.Second)
	}
	for p := range model.Each(src.Traffic.Peers) {
		if p.Local == addr(from) && p.Remote == addr(to) {
			p.Out.Packets, p.Out.Requests = p.Out.Packets+sent, p.Out.Requests+sent
		}
	}
	for p := range model.Each(dst.Traffic.Peers) {
		if p.Local == addr(to) && p.Remote == addr(from) {
			p.In.Packets, p.In.Requests = p.In.Packets+arrive, p.In.Requests+arrive
		}
	}
}

type verdict struct {
	name  string
	nodes int
	make  func(*cluster)
	want  []string
}

func judge(t *testing.T, tests []verdict) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(tt.nodes)
			tt.make(c)
			judged(t, c, tt.want...)
		})
	}
}

// TestLostPort: netfilter drops the first packet of a connection before it is tracked,
// so that the far node has no connection although its packets arrived.
func TestLostPort(t *testing.T) {
	judge(t, []verdict{
		{"between the nodes", 2, func(c *cluster) {
			c.ask(1, 2, fine)
			c.asks("10.2.1.10", "10.2.2.11", 8443, 12, 0)
		}, []string{"NoReply proven 10.2.2.11 on n1,n2"}},
		{"by a policy of the far node", 2, func(c *cluster) {
			c.ask(1, 2, fine)
			c.asks("10.2.1.10", "10.2.2.11", 8443, 12, 12)
			c.nodes[1].policy("10.2.2.11", "10.2.1.10", 12)
		}, []string{"PolicyDrop proven 10.2.1.10 on n2"}},
		{"by a policy of the far node, which was watched for less long", 2, func(c *cluster) {
			c.ask(1, 2, fine)
			c.asks("10.2.1.10", "10.2.2.11", 8443, 12, 6)
			c.nodes[1].policy("10.2.2.11", "10.2.1.10", 6)
		}, []string{"PolicyDrop proven 10.2.1.10 on n2"}},
		{"by the far node, which no finding explains", 2, func(c *cluster) {
			c.ask(1, 2, fine)
			c.asks("10.2.1.10", "10.2.2.11", 8443, 12, 12)
		}, nil},
		{"the same, where it was watched for half as long", 2, func(c *cluster) {
			c.ask(1, 2, fine)
			c.asks("10.2.1.10", "10.2.2.11", 8443, 12, 6)
			for p := range model.Each(c.nodes[1].Traffic.Peers) {
				if p.Local == addr("10.2.2.11") && p.Remote == addr("10.2.1.10") {
					p.In.Requests, p.In.Packets, p.Out.Replies, p.Out.Packets = 16, 16, 10, 10
				}
			}
		}, nil},
	})
}
