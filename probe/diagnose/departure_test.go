package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// ttls are packets of an address at a link with these TTLs.
func (n *testNode) ttls(a string, ifindex int, d model.Direction, s model.Side, packets uint64, list ...int) {
	n.passes(a, ifindex, d, s, packets, 0)
	h := &n.Traffic.Hops[len(n.Traffic.Hops)-1]
	h.TTLs = 0
	for _, x := range list {
		h.TTLs |= 1 << (x % 64)
	}
}

// overTunnel is a node of flannel whose pods' packets for another range go by a tunnel.
func overTunnel(kind, name string) *testNode {
	n := kubenet()
	n.Node.Plugin = "flannel"
	n.Links = append(n.Links, model.Link{Index: 7, Name: name, Kind: kind, MAC: mac("0a:00:00:00:00:07"), Up: true, Carrier: true,
		Role: model.RoleTunnel})
	n.route(model.Route{Dst: prefix("172.20.3.0/24"), Gateway: addr("172.20.3.0"), IfIndex: 7})
	return n.live()
}

// TestDeparture: what returns to the node left it before, with a higher TTL. What did not is another's.
func TestDeparture(t *testing.T) {
	in, outward := model.Ingress, model.Egress
	spoofed := func() *testNode {
		n := kubenet().live()
		n.answered(pod5, out)
		n.ttls(pod5, 2, outward, model.AsSource, 40, 63)
		n.ttls(pod5, 2, in, model.AsSource, 20, 57)
		n.peer(pod5, pod6, none, model.PeerCount{Packets: 20, Requests: 20})
		n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", pod5, pod6, 20)
		return n
	}
	situations(t, []situation{
		{"spoofed packets of the node's own pod, which the filter refuses", spoofed, nil, "", "rp_filter"},
		{"spoofed with all TTLs, filter off", func() *testNode {
			n := kubenet().live()
			n.answered(pod5, out)
			n.ttls(pod5, 2, outward, model.AsSource, 40, 63)
			n.ttls(pod5, 2, in, model.AsSource, 90, 40, 44, 48, 50, 52, 57, 60, 101, 115, 120)
			n.peer(pod5, "172.20.1.77", none, model.PeerCount{Packets: 90, Requests: 90})
			return n
		}, nil, "", "rp_filter"},
		{"spoofed packets of a pod that sends nothing itself, for another node's pods", func() *testNode {
			n := routed()
			n.ttls("10.50.0.20", 2, in, model.AsSource, 60, 118)
			n.peer("10.50.0.20", "10.50.7.9", none, model.PeerCount{Packets: 60, Other: 60})
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "10.50.0.20", "10.50.7.9", 60)
			return n
		}, nil, "", "rp_filter"},
		{"the next router sends a pod's packets back", func() *testNode {
			n := kubenet().live()
			n.ttls(pod5, 2, outward, model.AsSource, 20, 63)
			n.ttls(pod5, 2, in, model.AsSource, 20, 62)
			n.peer(pod5, "10.99.0.7", model.PeerCount{Packets: 20, Requests: 20}, model.PeerCount{Packets: 20, Requests: 20})
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", pod5, "10.99.0.7", 20)
			return n
		}, []string{"critical RoutingLoop"}, "", "rp_filter"},
		{"a mirrored port brings a copy of all that the node sends", func() *testNode {
			n := routed()
			n.ttls("10.50.0.20", 2, outward, model.AsSource, 40, 63)
			n.ttls("10.50.0.20", 2, in, model.AsSource, 40, 63)
			n.peer("10.50.0.20", out, model.PeerCount{Packets: 40, Requests: 5, Replies: 35}, model.PeerCount{Packets: 80, Replies: 75, Requests: 5})
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "10.50.0.20", out, 40)
			return n
		}, nil, "", "rp_filter"},
		{"packets of another node's pods come by a NIC that leads nowhere to them", func() *testNode {
			n := kubenet().live()
			n.Links = append(n.Links, model.Link{Index: 4, Name: "ens6", MAC: mac("00:0d:3a:00:00:02"), Up: true, Carrier: true,
				Role: model.RoleUplink})
			n.dropOn("ens6", "IP_RPFILTER", "ip_rcv_finish_core", far, pod6, 30)
			return n
		}, []string{"warning ReversePathFilter"}, "", ""},
		{"a tunnel to this node itself", func() *testNode {
			n := overTunnel("vxlan", "flannel.1")
			n.ttls(pod5, 7, outward, model.AsSource, 60, 63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53)
			n.ttls(pod5, 7, in, model.AsSource, 58, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52)
			n.peer(pod5, "172.20.3.9", model.PeerCount{Packets: 60, Requests: 60}, model.PeerCount{Packets: 58, Requests: 58})
			n.Traffic.Peers[0].IfIndex, n.Traffic.Peers[0].Link = 7, "flannel.1"
			n.dropOn("flannel.1", "IP_INHDR", "ip_forward", pod5, "172.20.3.9", 4)
			return n
		}, []string{"critical RoutingLoop"}, "bridge fdb show dev flannel.1", "route tables"},
		{"an IPIP tunnel to this node itself, of Calico", func() *testNode {
			n := newNode("ens5", "10.20.0.4", "10.20.0.0/24", "10.20.0.1")
			n.Node.Plugin = "calico"
			n.pod("10.244.9.65", "0a:58:00:00:00:65", 0)
			n.Links = append(n.Links, model.Link{Index: 7, Name: "tunl0", Kind: "ipip", Up: true, Carrier: true, Role: model.RoleTunnel})
			n.route(model.Route{Dst: prefix("10.244.9.65/32"), IfIndex: 10})
			n.route(model.Route{Dst: prefix("10.244.7.0/26"), Gateway: addr("10.20.0.4"), IfIndex: 7})
			n.ttls("10.244.9.65", 7, outward, model.AsSource, 90, 63, 62, 61, 60, 59, 58, 57, 56, 55)
			n.ttls("10.244.9.65", 7, in, model.AsSource, 89, 62, 61, 60, 59, 58, 57, 56, 55, 54)
			n.peer("10.244.9.65", "10.244.7.3", model.PeerCount{Packets: 90, Requests: 90}, model.PeerCount{Packets: 89, Requests: 89})
			n.Traffic.Peers[0].IfIndex, n.Traffic.Peers[0].Link = 7, "tunl0"
			n.dropOn("tunl0", "IP_INHDR", "ip_forward", "10.244.9.65", "10.244.7.3", 6)
			return n.live()
		}, []string{"critical RoutingLoop"}, "", ""},
		{"a tunnel that brings answers", func() *testNode {
			n := overTunnel("vxlan", "flannel.1")
			n.ttls(pod5, 7, outward, model.AsSource, 60, 63)
			n.ttls(pod5, 7, in, model.AsDestination, 58, 62, 61, 60, 59, 58, 57, 56, 55)
			n.peer(pod5, "172.20.3.9", syn, synAck)
			n.Traffic.Peers[0].IfIndex, n.Traffic.Peers[0].Link = 7, "flannel.1"
			return n
		}, nil, "", ""},
		{"frames for a pod are flooded out of the NIC on its bridge, as they came", func() *testNode {
			n := bridged().live()
			n.ttls("10.60.0.20", 2, in, model.AsDestination, 90, 64, 128, 63, 127, 61, 59, 55, 52)
			n.ttls("10.60.0.20", 2, outward, model.AsDestination, 30, 64, 128, 63, 127, 61, 59, 55, 52)
			n.exchanges(0, "10.60.0.20")
			return n
		}, nil, "", ""},
	})
}
