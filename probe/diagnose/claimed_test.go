package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestClaimed: another route, link or address of this node takes what is meant for a machine beyond it.
func TestClaimed(t *testing.T) {
	situations(t, []situation{
		{"docker0 has the range of the company's network", func() *testNode {
			n := kubenet().live()
			n.bridgeOf(8, "docker0", "02:42:00:00:00:08", "172.17.0.1/16")
			n.passes(pod5, n.Pods[0].LinkIndex, model.Ingress, model.AsSource, 30, 1)
			n.dropOn("docker0", "NEIGH_FAILED", "neigh_invalidate", pod5, "172.17.40.9", 30)
			n.arp("172.17.40.9", 8, model.Egress, false, "02:42:00:00:00:08", 30)
			n.neighbor("172.17.40.9", "00:00:00:00:00:00", 8, "FAILED")
			return n
		}, []string{"warning UnansweredARP"}, "another network than 172.17.0.0/16", ""},
		{"a VIP that is left on the node, and another machine announces it", func() *testNode {
			n := kubenet().live()
			n.Links[0].Addresses = append(n.Links[0].Addresses, prefix("10.50.0.100/32"))
			n.arp("10.50.0.100", 2, model.Ingress, true, "00:0d:3a:00:00:99", 5)
			n.arp("10.50.0.100", 2, model.Ingress, false, "00:0d:3a:00:00:99", 5)
			n.passes(pod5, n.Pods[0].LinkIndex, model.Ingress, model.AsSource, 30, 1)
			d := n.drop("NO_SOCKET", "tcp_v4_rcv", pod5, "10.50.0.100", 30)
			d.Proto, d.First, d.Last = tcp, start, end
			n.sampled(d, head(tcp, 6443, synFlag))
			return n
		}, []string{"warning NoListener"}, "00:0d:3a:00:00:99", ""},
		{"a tunnel's route has the node itself for its next hop", func() *testNode {
			n := newNode("ens5", "10.20.0.4", "10.20.0.0/24", "10.20.0.1")
			n.Node.Plugin = "calico"
			n.pod("10.244.9.65", "0a:58:00:00:00:65", 0)
			n.Links = append(n.Links, model.Link{Index: 7, Name: "tunl0", Kind: "ipip", Up: true, Carrier: true, Role: model.RoleTunnel})
			n.route(model.Route{Dst: prefix("10.244.9.65/32"), IfIndex: 10})
			n.route(model.Route{Dst: prefix("10.244.7.0/26"), Gateway: addr("10.20.0.4"), IfIndex: 7})
			n.answered("10.20.0.4", "10.20.0.9")
			for i := range 6 {
				n.begins("10.244.9.65", "10.244.7.3", "10.244.9.65", 443, uint16(40000+i), 1+float64(i), false)
			}
			return n.live()
		}, []string{"warning NoReply"}, "10.20.0.4, is this node itself", ""},
		{"healthy: a container of docker0 answers", func() *testNode {
			n := kubenet().live()
			n.bridgeOf(8, "docker0", "02:42:00:00:00:08", "172.17.0.1/16")
			n.arp("172.17.0.2", 8, model.Egress, false, "02:42:00:00:00:08", 3)
			n.arp("172.17.0.2", 8, model.Ingress, true, "02:42:ac:11:00:02", 3)
			n.neighbor("172.17.0.2", "02:42:ac:11:00:02", 8, "REACHABLE")
			return n
		}, nil, "", ""},
		{"healthy: a virtual address that came here within the window, and serves", func() *testNode {
			n := kubenet().live()
			n.Links[0].Addresses = append(n.Links[0].Addresses, prefix("10.50.0.100/32"))
			n.arp("10.50.0.100", 2, model.Ingress, true, "00:0d:3a:00:00:99", 2)
			n.arp("10.50.0.100", 2, model.Egress, true, nicMAC, 5)
			return n
		}, nil, "", ""},
	})
}
