package diagnose

import (
	"fmt"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// nic is a kubenet node whose uplink lost packets below its hooks, by a counter.
func nic(kind model.LossKind, counter string, lost, passed uint64) *testNode {
	n := kubenet().with(model.SourceStats)
	up := n.link(2)
	n.Devices = []model.Device{{
		IfIndex: up.Index, Link: up.Name, Driver: "hv_netvsc", RxRing: 512, RxRingMax: 8192, TxRing: 192, TxRingMax: 192,
		ReceivedDelta: passed, SentDelta: passed,
		Losses: []model.DeviceLoss{{Name: counter, Kind: kind, Total: 1000 + lost, Delta: lost}},
	}}
	return n
}

// TestBelow: what a NIC counts is a fault from a hundredth of its packets on, what a burst
// loses is information, and what was counted before the window is nothing.
func TestBelow(t *testing.T) {
	softnet := func(dropped, processed uint64, own bool) *testNode {
		n := kubenet()
		n.Softnet = []model.Softnet{{CPU: 0, ProcessedDelta: processed}, {CPU: 3, ProcessedDelta: processed, DroppedDelta: dropped, SqueezedDelta: 7}}
		if own {
			n.Sysctls = append(n.Sysctls, model.Sysctl{Name: node.MaxBacklog, Value: "1000"})
		}
		return n
	}
	table := func(fulls uint64) *testNode {
		n := kubenet()
		n.NeighborTables = []model.NeighborTable{{Name: model.NeighborTable4, Entries: 1024, FullsDelta: fulls}, {Name: model.NeighborTable6, Entries: 9}}
		n.Sysctls = append(n.Sysctls, model.Sysctl{Name: "net.ipv4.neigh.default.gc_thresh3", Value: "1024"})
		return n
	}
	refused := func(n *testNode, packets uint64) *testNode {
		d := n.drop("NEIGH_CREATEFAIL", "ip_finish_output2", "172.20.1.5", "10.50.0.77", packets)
		d.First, d.Last = n.Window.Start, n.Window.End
		return n
	}
	for _, tt := range []struct {
		name string
		n    *testNode
		want string
		fix  string
	}{
		{"no receive buffer was free", nic(model.LossNoBuffer, "rx_no_buffer", 500, 10_000), "warning NICDrop the receive queue of NIC ens5 is full", "ethtool -G ens5 rx 8192 # the link may be down for a moment"},
		{"a burst", nic(model.LossNoBuffer, "rx_no_buffer", 50, 100_000), "info NICDrop the receive queue of NIC ens5 is full", ""},
		{"before the window", nic(model.LossNoBuffer, "rx_no_buffer", 0, 100_000), "", ""},
		{"protocols that nobody takes", nic(model.LossReceived, "rx_dropped", 500, 1000), "info NICDrop NIC ens5 drops received packets", ""},
		{"not sent", nic(model.LossSent, "tx_dropped", 500, 1000), "warning NICDrop NIC ens5 drops outgoing packets", ""},
		{"a queue hung", nic(model.LossTimeout, "tx_timeout", 1, 100_000), "warning NICDrop a transmit queue of ens5 hung and was reset", ""},
		{"connections beyond the machine's size", nic(model.LossAllowance, "conntrack_allowance_exceeded", 30, 100_000), "warning AllowanceExceeded the cloud drops new connections on ens5: the machine's limit of tracked connections is reached", ""},
		{"bandwidth for a moment", nic(model.LossAllowance, "bw_in_allowance_exceeded", 30, 100_000), "info AllowanceExceeded traffic of ens5 exceeds the machine size's limits: the cloud drops or delays packets", ""},
		{"packets a second", nic(model.LossAllowance, "pps_allowance_exceeded", 30, 100_000), "info AllowanceExceeded traffic of ens5 exceeds the machine size's limits: the cloud drops or delays packets", ""},
		{"the cloud's own services", nic(model.LossAllowance, "linklocal_allowance_exceeded", 30, 100_000), "warning AllowanceExceeded the cloud drops packets on ens5 to its own services, such as DNS", ""},
		{"a CPU does not keep up", softnet(900, 10_000, true), "warning BacklogFull the receive backlog of 1 CPU is full", "sysctl -w net.core.netdev_max_backlog=4000 # a longer queue helps only against bursts"},
		{"a CPU in a burst", softnet(40, 1_000_000, true), "info BacklogFull the receive backlog of 1 CPU is full", ""},
		{"the machine's CPUs, in another namespace", softnet(900, 10_000, false), "", ""},
		{"neighbours of the node's own", table(90), "warning NeighborTableFull the ARP table is full: 1024 entries, limit 1024", "sysctl -w net.ipv4.neigh.default.gc_thresh3=4096; sysctl -w net.ipv4.neigh.default.gc_thresh2=2048"},
		{"of a pod", refused(table(90), 60), "critical NeighborTableFull the ARP table is full: 1024 entries, limit 1024", ""},
		{"of a pod, in another namespace", refused(kubenet(), 60), "critical NeighborTableFull the ARP table is full", ""},
		{"a full table long ago", table(0), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := agreed(t, tt.n)
			got := ""
			for _, f := range found {
				got += fmt.Sprintf("%s %s %s", f.Severity, f.Code, f.Title)
				complete(t, f)
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if tt.fix != "" && !slices.Contains(steps(found[0]), tt.fix) {
				t.Errorf("fixes %q lack %q", steps(found[0]), tt.fix)
			}
		})
	}
}

// TestBacklogPlace: a packet that a full backlog lost was counted last at the far end of the link that it came in by.
func TestBacklogPlace(t *testing.T) {
	for link, want := range map[string]model.Place{
		"tap10": {Link: "eth0", Role: model.RolePod, Direction: model.Egress},
		"ens5":  {Direction: model.Ingress},
		"":      {Direction: model.Ingress},
	} {
		n := kubenet()
		n.Pods[0].Interface = "eth0"
		d := n.drop("CPU_BACKLOG", "enqueue_to_backlog", "172.20.1.5", "203.0.113.9", 500)
		d.Link, d.First, d.Last = link, n.Window.Start, n.Window.End
		found := Diagnose(&n.Snapshot)
		if len(found) != 1 || found[0].Code != "BacklogFull" || found[0].LastHopAlive != want {
			t.Errorf("by %q: %+v", link, found)
		}
	}
}

// TestBelowSilence: silence beside packets that die below the hooks says so among its
// alternatives; beside a NIC that loses a few it does not.
func TestBelowSilence(t *testing.T) {
	for lost, want := range map[uint64]bool{500: true, 50: false} {
		n := nic(model.LossNoBuffer, "rx_no_buffer", lost, 10_000)
		n.silent("172.20.1.5", "203.0.113.9")
		n.answered("172.20.1.6", "203.0.113.8")
		var alternatives []string
		for _, f := range Diagnose(&n.Snapshot) {
			if f.Code == "NoReply" {
				alternatives = f.Alternatives
			}
		}
		said := slices.Contains(alternatives, fmt.Sprintf("packets were lost below the hooks of ens5 in the window: its counter rx_no_buffer rose by %d", lost))
		if len(alternatives) == 0 || said != want {
			t.Errorf("%d lost: alternatives %q", lost, alternatives)
		}
	}
}
