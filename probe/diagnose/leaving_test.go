package diagnose

import (
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// twoNICs is a node with a second NIC in a network of its own.
func twoNICs(n *testNode) *testNode {
	n.Links = append(n.Links, model.Link{Index: 4, Name: "ens6", MAC: mac("00:0d:3a:00:00:02"), Up: true, Carrier: true, Role: model.RoleUplink})
	n.link(4).Addresses = append(n.link(4).Addresses, prefix("10.51.0.4/16"))
	n.Node.Uplinks = append(n.Node.Uplinks, "ens6")
	n.route(model.Route{Dst: prefix("10.51.0.0/16"), IfIndex: 4})
	n.neighbor("10.51.0.1", fabricMAC, 4, "REACHABLE")
	return n
}

// by has the last pair of addresses leave by the second NIC.
func (n *testNode) bySecond() {
	p := &n.Traffic.Peers[len(n.Traffic.Peers)-1]
	p.IfIndex, p.Link = 4, "ens6"
	m := &n.Traffic.MACs[len(n.Traffic.MACs)-1]
	m.IfIndex, m.Link = 4, "ens6"
}

// translatedTo are connections of a pod that leave with an address of the node's.
func (n *testNode) translatedTo(pod, remote, as string, replied bool) {
	for i := range 4 {
		n.begins(pod, remote, as, 443, uint16(40000+i), 1+float64(i), replied)
	}
	n.peer(as, remote, model.PeerCount{Packets: 12, Requests: 12}, model.Either(replied, synAck, none))
}

// lowered is a node on which a rule sets the TTL of what a pod sends, beside one that gets no reply.
func lowered(pod string) *testNode {
	n := kubenet().live()
	n.answered("10.50.0.4", "10.50.0.9")
	n.translatedTo(pod5, out, "10.50.0.4", false)
	rule := model.PacketRule{Src: to(pod + "/32"), Target: "TTL", Text: "-s " + pod + "/32 -j TTL --ttl-set 1"}
	n.filter(model.NFT, "FORWARD", 12, rule).Table = "mangle"
	n.Traffic.Hops = append(n.Traffic.Hops, model.HopCount{Addr: addr("10.50.0.4"), IfIndex: 2, Link: "ens5", Direction: model.Egress,
		Side: model.AsSource, Packets: 12, TTLs: 1<<1 | 1<<63})
	return n
}

// TestLeaving: that requests leave correctly is said where source and link fit, and only there.
func TestLeaving(t *testing.T) {
	list := []situation{
		{"the source is another NIC's address", func() *testNode {
			n := twoNICs(kubenet()).live()
			n.answered("10.50.0.4", "10.50.0.9")
			n.translatedTo(pod5, out, "10.50.0.4", false)
			n.bySecond()
			return n
		}, []string{"warning NoReply"}, "10.50.0.4 is an address of ens5", ""},
		{"healthy: so, and the network answers", func() *testNode {
			n := twoNICs(kubenet()).live()
			n.translatedTo(pod5, out, "10.50.0.4", true)
			n.bySecond()
			return n
		}, nil, "", ""},
		{"a rule sets a time to live that no router forwards", func() *testNode { return lowered(pod5) },
			[]string{"warning NoReply"}, "iptables-nft -t mangle -D FORWARD -s " + pod5 + "/32 -j TTL --ttl-set 1", "correctly"},
		{"the rule is about another pod", func() *testNode { return lowered(pod6) }, []string{"warning NoReply"}, "correctly", "-j TTL"},
		{"nobody answers the node's old address, and others the new one", func() *testNode {
			n := kubenet().live()
			n.Links[0].Addresses = append(n.Links[0].Addresses, prefix("10.50.0.5/16"))
			n.translatedTo(pod5, out, "10.50.0.4", false)
			n.translatedTo(pod6, out2, "10.50.0.4", false)
			n.translatedTo(pod6, "203.0.113.77", "10.50.0.5", true)
			return n
		}, []string{"warning NoReply"}, "replies to 10.50.0.5 arrive", ""},
		{"healthy: a second address that nobody asks with", func() *testNode {
			n := kubenet().live()
			n.Links[0].Addresses = append(n.Links[0].Addresses, prefix("10.50.0.5/16"))
			n.translatedTo(pod5, out, "10.50.0.4", true)
			return n
		}, nil, "", ""},
		{"two default routes of one metric, by two NICs", func() *testNode {
			n := twoNICs(routed())
			n.Node.Plugin = "aws"
			n.route(model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.51.0.1"), IfIndex: 4})
			slices.Reverse(n.Routes)
			n.answered("10.50.0.4", "10.50.0.9")
			n.silent("10.50.0.20", out)
			n.bySecond()
			return n
		}, []string{"warning NoReply"}, "same metric", ""},
		{"healthy: two default routes of one metric, and all answer", func() *testNode {
			n := twoNICs(routed())
			n.route(model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.51.0.1"), IfIndex: 4})
			n.answered("10.50.0.20", out)
			n.bySecond()
			return n
		}, nil, "", ""},
		{"the source is an address of lo, which routers announce, and one target is down", func() *testNode {
			n := kubenet().live()
			n.Links = append(n.Links, model.Link{Index: 1, Name: "lo", Up: true, Role: model.RoleOther})
			n.link(1).Addresses = append(n.link(1).Addresses, prefix("10.77.0.4/32"))
			n.translatedTo(pod5, out, "10.77.0.4", false)
			n.translatedTo(pod5, out2, "10.77.0.4", true)
			return n
		}, []string{"warning NoReply"}, "correctly", ""},
	}
	situations(t, list)
	for i := range list {
		for _, f := range Diagnose(&list[i].node().Snapshot) {
			if list[i].says != "correctly" && strings.Contains(f.Why, "correctly") {
				t.Errorf("%s: %s", list[i].name, f.Why)
			}
		}
	}
}
