package diagnose

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestWrongNextHopMAC: an entry for a next hop is wrong where nothing that was sent
// there is answered, and something contradicts it or it is pinned.
func TestWrongNextHopMAC(t *testing.T) {
	const wrong, vrrp, other = "02:99:00:00:00:01", "00:00:5e:00:01:0a", "00:0d:3a:00:00:99"
	// gateway is a node whose entry for the gateway is this one. What it sends by
	// it is silent; its neighbours answer.
	gateway := func(hw, state string, neighbors ...string) *testNode {
		n := kubenet()
		n.Neighbors = nil
		n.neighbor("10.50.0.1", hw, 2, state)
		for i, m := range neighbors {
			a := "10.50.0." + string(rune('5'+i))
			n.neighbor(a, m, 2, "REACHABLE")
			n.exchange("10.50.0.4", a, m, m, synAck)
		}
		return n
	}
	lost := func(n *testNode, hw, from string, remotes ...string) *testNode {
		for _, a := range remotes {
			in := none
			if from != "" {
				in = syn
			}
			n.exchange(pod5, a, hw, from, in)
		}
		return n
	}
	check(t, []fixture{
		{"pinned, and others show the fabric's", func() *testNode {
			return lost(gateway(wrong, "PERMANENT", fabricMAC, fabricMAC), wrong, "", far, "172.20.3.9")
		},
			[]string{"WrongNextHopMAC proven 172.20.1.5 172.20.2.9 172.20.3.9"}},
		{"pinned, on a node that should have routes to other nodes' pods", func() *testNode {
			n := lost(gateway(wrong, "PERMANENT", fabricMAC, fabricMAC), wrong, "", far, "172.20.2.8")
			n.Node.Plugin = "kindnet"
			return n
		}, []string{"WrongNextHopMAC proven 172.20.1.5 172.20.2.8 172.20.2.9"}},
		{"pinned, and packets come in from the fabric", func() *testNode {
			return lost(gateway(wrong, "PERMANENT", fabricMAC), wrong, fabricMAC, far, "172.20.3.9")
		},
			[]string{"WrongNextHopMAC likely 172.20.1.5 172.20.2.9 172.20.3.9"}},
		{"other nodes have a wrong one for this node's", func() *testNode {
			n := kubenet()
			d := n.dropOn("ens5", "OTHERHOST", "ip_rcv_core", far, pod5, 20)
			d.First, d.Last, d.DstMAC = start, start.Add(9*time.Second), mac(wrong)
			n.frames(pod5, 2, model.Ingress, model.AsDestination, wrong, 20)
			return n
		}, []string{"WrongNextHopMAC proven 172.20.1.5 172.20.2.9"}},
		{"what came for this node's, and was given a wrong one here", func() *testNode {
			n := kubenet()
			d := n.dropOn("ens5", "OTHERHOST", "ip_rcv_core", far, pod5, 20)
			d.First, d.Last, d.DstMAC = start, start.Add(9*time.Second), mac(wrong)
			n.frames(pod5, 2, model.Ingress, model.AsDestination, n.Links[0].MAC.String(), 20)
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.5 172.20.2.9"}},
		{"a few frames for another's MAC, which a switch floods", func() *testNode {
			n := kubenet()
			d := n.dropOn("ens5", "OTHERHOST", "ip_rcv_core", far, pod5, 3)
			d.First, d.Last, d.DstMAC = start, start.Add(time.Second), mac(wrong)
			n.frames(pod5, 2, model.Ingress, model.AsDestination, wrong, 3)
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.5 172.20.2.9"}},
		{"pinned, and nothing else known", func() *testNode { return lost(gateway(wrong, "PERMANENT", other), wrong, "", far) },
			[]string{"WrongNextHopMAC likely 172.20.1.5 172.20.2.9"}},
		{"pinned, and what goes by it is answered", func() *testNode {
			return lost(gateway(wrong, "PERMANENT", fabricMAC, fabricMAC), wrong, fabricMAC, far).exchange(pod6, "172.20.3.9", wrong, fabricMAC, synAck)
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"pinned to what is right, and one target is down", func() *testNode {
			n := lost(gateway(fabricMAC, "PERMANENT", fabricMAC, fabricMAC), fabricMAC, "", out)
			n.PacketRules[2].Dst = to(out + "/32")
			return n
		}, []string{"NoReply likely 172.20.1.5 203.0.113.9"}},
		{"pinned to a router that sends to the node, and nothing returns", func() *testNode {
			return lost(gateway(other, "PERMANENT", "02:00:00:00:00:05", "02:00:00:00:00:06"), other, other, far)
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"learned, and the network behind is silent", func() *testNode { return lost(gateway(other, "REACHABLE", fabricMAC), other, "", far, "172.20.3.9") },
			[]string{"MissingUDR likely 172.20.1.5 172.20.2.0/24 172.20.3.0/24"}},
		{"learned from one that is not the fabric", func() *testNode {
			return lost(gateway(wrong, "REACHABLE", fabricMAC, fabricMAC), wrong, fabricMAC, far, "172.20.3.9")
		}, []string{"WrongNextHopMAC likely 172.20.1.5 172.20.2.9 172.20.3.9"}},
		{"it answers ARP with another", func() *testNode {
			n := lost(gateway(wrong, "STALE", other), wrong, "", far)
			n.arp("10.50.0.1", 2, model.Ingress, true, fabricMAC, 2)
			return n
		}, []string{"WrongNextHopMAC proven 172.20.1.5 172.20.2.9"}},
		{"it answers ARP with this one", func() *testNode {
			n := lost(gateway(wrong, "PERMANENT", fabricMAC, fabricMAC), wrong, fabricMAC, far, "172.20.3.9")
			n.arp("10.50.0.1", 2, model.Ingress, true, wrong, 2)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9 172.20.3.9"}},
		{"another machine announces it, and frames come from the fabric", func() *testNode {
			n := lost(gateway(wrong, "REACHABLE"), wrong, fabricMAC, far, "172.20.3.9")
			n.arp("10.50.0.1", 2, model.Ingress, true, wrong, 9)
			return n
		}, []string{"WrongNextHopMAC likely 172.20.1.5 172.20.2.9 172.20.3.9"}},
		{"two machines reply for it, and frames come from the other", func() *testNode {
			n := lost(gateway(wrong, "REACHABLE"), wrong, fabricMAC, far)
			n.arp("10.50.0.1", 2, model.Ingress, true, wrong, 1)
			n.arp("10.50.0.1", 2, model.Ingress, true, fabricMAC, 1)
			return n
		}, []string{"WrongNextHopMAC likely 172.20.1.5 172.20.2.9"}},
		{"another machine announces it and forwards", func() *testNode {
			n := gateway(wrong, "REACHABLE").exchange(pod5, far, wrong, fabricMAC, synAck)
			n.arp("10.50.0.1", 2, model.Ingress, true, wrong, 9)
			return n
		}, nil},
		{"it replies without its MAC, to what asks that MAC alone", func() *testNode {
			n := lost(gateway(other, "REACHABLE", fabricMAC), other, "", far, "172.20.3.9")
			n.arp("10.50.0.1", 2, model.Ingress, true, "00:00:00:00:00:00", 2)
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.2.0/24 172.20.3.0/24"}},
		{"a virtual router, whose frames come from others", func() *testNode {
			return lost(gateway(vrrp, "PERMANENT", other, other), vrrp, other, far, "172.20.3.9")
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9 172.20.3.9"}},
		{"two routers answer from elsewhere", func() *testNode {
			n := gateway(fabricMAC, "REACHABLE", other, other)
			n.exchange(pod5, far, fabricMAC, other, synAck)
			n.exchange(pod6, "172.20.3.9", fabricMAC, wrong, synAck)
			return n
		}, nil},
		{"another node is pinned and down, as some plugins pin nodes", func() *testNode {
			n := gateway(fabricMAC, "REACHABLE", other)
			n.neighbor("10.50.0.9", wrong, 2, "PERMANENT")
			n.route(model.Route{Dst: prefix("172.20.9.0/24"), Gateway: addr("10.50.0.9"), IfIndex: 2, Type: "unicast"})
			n.exchange(pod5, "172.20.9.9", wrong, "", none)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.9.9"}},
		{"another node is pinned to what it does not send from", func() *testNode {
			n := gateway(fabricMAC, "REACHABLE", other)
			n.neighbor("10.50.0.9", wrong, 2, "PERMANENT")
			n.route(model.Route{Dst: prefix("172.20.9.0/24"), Gateway: addr("10.50.0.9"), IfIndex: 2, Type: "unicast"})
			n.exchange(pod5, "172.20.9.9", wrong, "02:00:00:00:00:09", syn)
			return n
		}, []string{"WrongNextHopMAC likely 172.20.1.5 172.20.9.9"}},
	})
	n := lost(gateway(wrong, "PERMANENT", fabricMAC, fabricMAC), wrong, "", far, "172.20.3.9")
	if f := Diagnose(&n.Snapshot)[0]; f.Fix[0] != "ip neigh del 10.50.0.1 dev ens5" || f.Severity != model.Critical {
		t.Errorf("%s, fix %q", f.Severity, f.Fix)
	}
}

// exchange adds packets between two addresses, which leave for one MAC and come in
// from another.
func (n *testNode) exchange(local, remote, leaves, arrives string, in model.PeerCount) *testNode {
	n.peer(local, remote, syn, in)
	frames := &n.Traffic.MACs[len(n.Traffic.MACs)-1]
	frames.Dst = mac(leaves)
	if arrives != "" {
		n.Traffic.MACs = append(n.Traffic.MACs, model.MACPair{Addr: addr(local), IfIndex: 2, Link: n.Links[0].Name,
			Direction: model.Ingress, Side: model.AsDestination, Src: mac(arrives), Dst: mac(nicMAC), Packets: 5})
	}
	return n
}
