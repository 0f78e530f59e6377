package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// unflooded is a node whose bridge floods not all to a pod's port, and asks for the pod's MAC in vain.
func unflooded(change func(*model.BridgePort)) *testNode {
	n := kubenet().live().with(model.SourceBridge)
	for i := range n.Links {
		if l := &n.Links[i]; l.Master == 3 {
			l.Port = &model.BridgePort{State: model.PortForwarding, Learning: true, Flood: true, BroadcastFlood: true}
		}
	}
	change(n.link(10).Port)
	n.neighbor(pod5, "", 3, "FAILED")
	n.arp(pod5, 3, model.Egress, false, "0a:00:00:00:00:03", 20)
	n.drop("NEIGH_FAILED", "neigh_invalidate", out, pod5, 20)
	return n
}

// TestPortFlags: frames to a pod are followed up to the port by which they should leave.
func TestPortFlags(t *testing.T) {
	remedies(t, []remedy{
		{"no broadcasts to a pod's port", func() *testNode { return unflooded(func(p *model.BridgePort) { p.BroadcastFlood = false }) },
			"BridgePortBlocked", []string{"bridge link set dev tap10 bcast_flood on"}, "neigh replace"},
		{"no multicasts to a pod's port, by IPv6", func() *testNode {
			n := unflooded(func(p *model.BridgePort) { p.MulticastOff = true })
			n.Pods[0].Addresses = append(n.Pods[0].Addresses, prefix("fd00:5::5/64"))
			n.Traffic.Drops[0].Src, n.Traffic.Drops[0].Dst = addr("2001:db8::9"), addr("fd00:5::5")
			n.Traffic.ARP[0].Addr = addr("fd00:5::5")
			return n
		}, "BridgePortBlocked", []string{"bridge link set dev tap10 mcast_flood on"}, ""},
		{"no multicasts to a port, and IPv4", func() *testNode { return unflooded(func(p *model.BridgePort) { p.MulticastOff = true }) },
			"StaleNeighbor", []string{"next: "}, "_flood"},
		{"broadcasts to a pod that does not answer", func() *testNode { return unflooded(func(*model.BridgePort) {}) },
			"StaleNeighbor", []string{"next: "}, "bcast_flood"},
	})
	situations(t, []situation{
		{"no broadcasts to a port, and an entry that is pinned", func() *testNode {
			n := unflooded(func(p *model.BridgePort) { p.BroadcastFlood = false })
			n.Traffic.Drops, n.Traffic.ARP, n.Neighbors = nil, nil, n.Neighbors[:1]
			n.neighbor(pod5, "0a:58:00:00:00:05", 3, "PERMANENT")
			n.exchanges(0, pod5)
			return n
		}, nil, "", ""},
	})
}
