package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

const (
	selfAddr  = "10.50.0.4"
	rangeAddr = "172.20.1.1"
)

// echo adds an echo request of the node's own and what came of it.
func (n *testNode) echo(from, to string, answered bool) {
	p := model.Probe{Kind: model.ProbeEcho, IfIndex: 2, Link: n.Links[0].Name, From: addr(from), To: addr(to), Sent: 2, Answered: answered}
	if answered {
		p.Sent, p.RTT = 1, time.Millisecond
	}
	n.Probes = append(n.Probes, p)
}

// asked is a kubenet node of three, silent towards both others, with a control.
func asked() *testNode {
	n := three()
	n.answered(selfAddr, "10.50.0.5")
	n.silent("172.20.1.5", "172.20.2.9")
	n.silent("172.20.1.6", "172.20.3.9")
	return n
}

// said is a finding with its title's beginning and its first fix's end.
func said(f model.Finding) string {
	title, _, _ := strings.Cut(f.Title, ", the route table")
	command, _, _ := strings.Cut(f.Fix[0], " #")
	fix := strings.Fields(command)
	return brief(f) + "; " + title + "; " + fix[3] + " " + fix[len(fix)-1]
}

// TestProbesTellTheRoute goes through the answers that echo requests can have.
func TestProbesTellTheRoute(t *testing.T) {
	const (
		both      = "MissingUDR likely " + restUDR + "; "
		second    = "MissingUDR likely 172.20.1.5 172.20.2.0/24; "
		third     = "MissingUDR likely 172.20.1.6 172.20.3.0/24; "
		own       = "pods here get no reply from 172.20.2.0/24: no route back to this node's pods; route 10.50.0.4"
		ownBoth   = "pods here get no reply from 172.20.2.0/24, 172.20.3.0/24: no route back to this node's pods; route 10.50.0.4"
		either    = "pods here cannot reach 172.20.2.0/24, 172.20.3.0/24: no route in either direction; subnet ROUTE_TABLE"
		untold    = "pods here cannot reach 172.20.2.0/24, 172.20.3.0/24: no route beyond ens5, or none back; subnet ROUTE_TABLE"
		to2, to3  = "pods here cannot reach 172.20.2.0/24: no route to there; route 10.50.0.5", "pods here cannot reach 172.20.3.0/24: no route to there; route 10.50.0.6"
		noReply23 = "NoReply likely " + twoPods + " 172.20.2.9 172.20.3.9"
	)
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"no probe", asked, []string{both + untold}},
		{"the way there works, the return path is lost", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.1", true)
			n.echo(selfAddr, "172.20.3.1", true)
			n.echo(selfAddr, "10.50.0.5", true)
			n.echo(rangeAddr, "10.50.0.5", false)
			return n
		}, []string{both + ownBoth}},
		{"the way there works, nobody asked for the return path", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.9", true)
			n.echo(selfAddr, "172.20.3.9", true)
			return n
		}, []string{noReply23}},
		{"one way there works, nobody asked for another way", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.1", true)
			return n
		}, []string{noReply23}},
		{"a silent pod answers the node, and its range", func() *testNode {
			n := three()
			n.answered(selfAddr, "10.50.0.5")
			n.silent("172.20.1.5", "172.20.2.9")
			n.echo(selfAddr, "172.20.2.9", true)
			n.echo(rangeAddr, "172.20.2.9", true)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"an answer to this node's range needs both routes", func() *testNode {
			n := asked()
			n.echo(rangeAddr, "172.20.2.9", true)
			n.echo(rangeAddr, "172.20.3.9", true)
			return n
		}, []string{noReply23}},
		{"a silent pod answers the node and not its range", func() *testNode {
			n := kubenet()
			n.answered("10.50.0.4", "203.0.113.9")
			n.silent("172.20.1.5", "172.20.2.9")
			n.echo(selfAddr, "172.20.2.9", true)
			n.echo(rangeAddr, "172.20.2.9", false)
			return n
		}, []string{second + own}},
		{"a silent pod answers no echo either", func() *testNode {
			n := three()
			n.answered(selfAddr, "10.50.0.5")
			n.silent("172.20.1.5", "172.20.2.9")
			n.echo(selfAddr, "172.20.2.1", true)
			n.echo(selfAddr, "172.20.2.9", false)
			n.echo(rangeAddr, "172.20.2.9", false)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"the ways there are lost, the return path works", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.1", false)
			n.echo(selfAddr, "172.20.3.1", false)
			n.echo(selfAddr, "10.50.0.5", true)
			n.echo(selfAddr, "10.50.0.6", true)
			n.echo(rangeAddr, "10.50.0.5", true)
			return n
		}, []string{second + to2, third + to3}},
		{"both ways are lost", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.1", false)
			n.echo(selfAddr, "172.20.3.1", false)
			n.echo(selfAddr, "10.50.0.5", true)
			n.echo(selfAddr, "10.50.0.6", true)
			n.echo(rangeAddr, "10.50.0.5", false)
			n.echo(rangeAddr, "10.50.0.6", false)
			return n
		}, []string{both + either}},
		{"the return path is lost, and one way there", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.1", true)
			n.echo(selfAddr, "172.20.3.1", false)
			n.echo(selfAddr, "10.50.0.6", true)
			n.echo(rangeAddr, "10.50.0.6", false)
			return n
		}, []string{second + own, third + to3}},
		{"both ways work", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.1", true)
			n.echo(selfAddr, "172.20.3.1", true)
			n.echo(rangeAddr, "10.50.0.5", true)
			return n
		}, []string{noReply23}},
		{"the way there works, and the return path by what answers pods", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.6", "172.20.3.9")
			n.echo(selfAddr, "172.20.3.1", true)
			return n
		}, []string{"NoReply likely 172.20.1.6 172.20.3.9"}},
		{"the other nodes are silent too: a silence tells nothing", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.1", false)
			n.echo(selfAddr, "172.20.3.1", false)
			n.echo(selfAddr, "10.50.0.5", false)
			n.echo(rangeAddr, "10.50.0.5", false)
			return n
		}, []string{both + untold}},
		{"one node is silent altogether", func() *testNode {
			n := asked()
			n.echo(selfAddr, "172.20.2.1", false)
			n.echo(selfAddr, "172.20.3.1", false)
			n.echo(selfAddr, "10.50.0.5", true)
			n.echo(selfAddr, "10.50.0.6", false)
			n.echo(rangeAddr, "10.50.0.5", true)
			return n
		}, []string{second + to2, "NoReply likely 172.20.1.6 172.20.3.9"}},
		{"nobody needs to have a range's first address", func() *testNode {
			n := asked()
			n.Node.Plugin = "unknown"
			n.echo(selfAddr, "172.20.2.1", false)
			n.echo(selfAddr, "172.20.3.1", false)
			n.echo(selfAddr, "10.50.0.5", true)
			n.echo(selfAddr, "10.50.0.6", true)
			return n
		}, []string{both + untold}},
		{"nothing but a probe answers", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.20.2.9")
			n.echo(selfAddr, "172.20.2.1", true)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"pods of the range ask: the return path works", func() *testNode {
			n := kubenet()
			n.Node.Plugin = "kubenet"
			n.peer("172.20.1.5", "172.20.2.9", synAck, syn)
			n.halfOpen("172.20.2.9", "172.20.1.5", 2)
			n.echo(selfAddr, "172.20.2.1", false)
			n.echo(selfAddr, "10.50.0.77", true)
			return n
		}, []string{second + "pods here cannot reach 172.20.2.0/24: no route to there; route NODE_IP"}},
		{"an answer outweighs the files", func() *testNode {
			n := asked()
			n.table(rightRows[1:2], subnetA)
			n.subnet(tableA)
			n.echo(selfAddr, "172.20.3.1", true)
			n.echo(rangeAddr, "10.50.0.5", true)
			return n
		}, []string{noReply23}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := tt.node()
			var got []string
			for _, f := range Diagnose(&n.Snapshot) {
				if f.Code == "MissingUDR" {
					got = append(got, said(f))
				} else {
					got = append(got, brief(f))
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(tt.want, "\n     "))
			}
		})
	}
}

// TestProbesOfOneFamily: what IPv4's probes tell says nothing of IPv6's routes.
func TestProbesOfOneFamily(t *testing.T) {
	const pod, far, self, own, other = "fd20:0:0:1::5", "fd20:0:0:2::9", "fd50::4", "fd20:0:0:1::1", "fd50::5"
	node := func() *testNode {
		n := dual()
		n.Node.Plugin = "kubenet"
		n.Cluster.Nodes = []model.ClusterNode{{
			Name: "b", Addresses: []netip.Addr{addr("10.50.0.5"), addr(other)}, PodCIDRs: []netip.Prefix{prefix("172.20.2.0/24"), prefix("fd20:0:0:2::/64")},
		}}
		n.answered("172.20.1.5", "172.20.2.9")
		n.answered(self, other)
		n.silent(pod, far)
		n.silent(pod, far+"9")
		return n
	}
	plan := Probes(&node().Snapshot)
	for _, want := range []string{
		"echo " + self + " fd20:0:0:2::1", "echo " + self + " " + other, "echo " + own + " " + other, "echo " + self + " " + far,
		"echo 10.50.0.4 172.20.2.1", "echo 10.50.0.4 10.50.0.5",
	} {
		if !slices.ContainsFunc(plan, func(p model.Probe) bool { return fmt.Sprintf("%s %s %s", p.Kind, p.From, p.To) == want }) {
			t.Errorf("no %s in %+v", want, plan)
		}
	}
	for _, tt := range []struct {
		name  string
		six   bool
		title string
	}{
		{"IPv6 answers from the node alone", true, "pods here cannot reach fd20:0:0:2::/64: no route to there"},
		{"IPv4 answers from the node alone", false, "pods here cannot reach fd20:0:0:2::/64: no route beyond ens5, or none back"},
	} {
		n := node()
		n.echo("10.50.0.4", "10.50.0.5", true)
		n.echo(rangeAddr, "10.50.0.5", true)
		n.echo(self, "fd20:0:0:2::1", false)
		if tt.six {
			n.echo(self, other, true)
			n.echo(own, other, true)
		}
		list := agreed(t, n)
		if len(list) != 1 || list[0].Title != tt.title {
			t.Errorf("%s: %+v", tt.name, list)
		}
	}
}

// TestMoreRangesThanProbes wants one cause for what nobody asked about too.
func TestMoreRangesThanProbes(t *testing.T) {
	for _, there := range []bool{false, true} {
		n := three()
		n.answered(selfAddr, "10.50.0.5")
		for _, a := range []string{"2.9", "3.9", "4.9", "5.9", "6.9"} {
			n.silent("172.20.1.5", "172.20."+a)
		}
		n.echo(selfAddr, "172.20.2.1", there)
		n.echo(selfAddr, "172.20.3.1", there)
		n.echo(selfAddr, "10.50.0.5", true)
		n.echo(selfAddr, "10.50.0.6", true)
		n.echo(rangeAddr, "10.50.0.5", false)
		n.echo(rangeAddr, "10.50.0.6", false)
		want := "no route in either direction"
		if there {
			want = "no route back to this node's pods"
		}
		if got := Diagnose(&n.Snapshot); len(got) != 1 || len(got[0].Peers) != 5 || !strings.Contains(got[0].Title, want) {
			t.Errorf("echoes answered %v: got %v, want one %q of five ranges", there, got, want)
		}
	}
}

// TestProbesAreNoFinding wants no finding of probes without lost traffic.
func TestProbesAreNoFinding(t *testing.T) {
	for _, answered := range []bool{false, true} {
		n := three()
		n.answered("172.20.1.5", "172.20.2.9")
		for _, to := range []string{"172.20.2.1", "172.20.3.1", "10.50.0.5", "10.50.0.6"} {
			n.echo(selfAddr, to, answered)
			n.echo(rangeAddr, to, answered)
		}
		for _, f := range Diagnose(&n.Snapshot) {
			t.Errorf("answered %v: %s", answered, brief(f))
		}
	}
}

// TestPlan says what is asked, in which order.
func TestPlan(t *testing.T) {
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"silent ranges of known nodes", asked, []string{
			"echo 10.50.0.4 172.20.2.1", "echo 10.50.0.4 172.20.3.1",
			"echo 10.50.0.4 10.50.0.5", "echo 172.20.1.1 10.50.0.5", "echo 10.50.0.4 10.50.0.6", "echo 172.20.1.1 10.50.0.6",
			"echo 10.50.0.4 172.20.2.9", "echo 172.20.1.1 172.20.2.9", "echo 10.50.0.4 172.20.3.9", "echo 172.20.1.1 172.20.3.9",
		}},
		{"nobody knows the nodes: who talks here", func() *testNode {
			n := kubenet()
			n.answered(selfAddr, "10.50.0.9")
			n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr("10.50.0.8"), MAC: mac(fabricMAC), IfIndex: 2, State: "STALE"})
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{
			"echo 10.50.0.4 172.20.2.1", "echo 10.50.0.4 10.50.0.9", "echo 172.20.1.1 10.50.0.9",
			"echo 10.50.0.4 10.50.0.8", "echo 172.20.1.1 10.50.0.8", "echo 10.50.0.4 172.20.2.9", "echo 172.20.1.1 172.20.2.9",
		}},
		{"nobody talks here: the next hops of routes", func() *testNode {
			n := kubenet()
			n.route(model.Route{Dst: prefix("192.0.2.0/24"), Gateway: addr("10.50.0.7"), IfIndex: 2})
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{
			"echo 10.50.0.4 172.20.2.1", "echo 10.50.0.4 10.50.0.7", "echo 172.20.1.1 10.50.0.7",
			"echo 10.50.0.4 172.20.2.9", "echo 172.20.1.1 172.20.2.9",
		}},
		{"one pod of a range that answers", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.8")
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{"echo 10.50.0.4 172.20.2.1", "echo 10.50.0.4 172.20.2.9", "echo 172.20.1.1 172.20.2.9"}},
		{"all is well", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.answered("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"echo 10.50.0.4 172.20.2.1"}},
		{"a destination that does not answer", func() *testNode {
			n := bridged()
			n.Neighbors[0].IfIndex = 3
			n.answered("10.60.0.20", "203.0.113.9")
			n.silent("10.60.0.20", "10.60.3.3")
			return n
		}, []string{"echo 10.60.0.4 10.60.3.3"}},
		{"no gateway is known by its MAC", func() *testNode {
			n := asked()
			n.Neighbors = nil
			return n
		}, nil},
		{"the fabric routes pods by itself", func() *testNode {
			n := asked()
			n.Node.Plugin = "azure-overlay"
			return n
		}, []string{"echo 10.50.0.4 172.20.2.9", "echo 10.50.0.4 172.20.3.9"}},
		{"who has an address that pods ask for", func() *testNode { return nobody("") }, []string{"arp 172.20.1.1 172.20.1.99"}},
		{"an answer must overwrite no entry", func() *testNode { return nobody("STALE") }, nil},
		{"but can a failed one", func() *testNode { return nobody("FAILED") }, []string{"arp 172.20.1.1 172.20.1.99"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := tt.node()
			var got []string
			for _, p := range Probes(&n.Snapshot) {
				got = append(got, fmt.Sprintf("%s %s %s", p.Kind, p.From, p.To))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(tt.want, "\n     "))
			}
		})
	}
}

// TestPlanIsBounded wants few probes of many silent ranges, each from an
// address of the node with the MAC of the link that it leaves by.
func TestPlanIsBounded(t *testing.T) {
	n := kubenet()
	for i := range 200 {
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 20, byte(20 + i), 0}), 24)
		ip := netip.AddrFrom4([4]byte{10, 50, 1, byte(i)})
		n.Cluster.Nodes = append(n.Cluster.Nodes, model.ClusterNode{Name: fmt.Sprint(i), Addresses: []netip.Addr{ip}, PodCIDRs: []netip.Prefix{cidr}})
		n.silent("172.20.1.5", cidr.Addr().Next().Next().String())
	}
	plan := Probes(&n.Snapshot)
	if len(plan) == 0 || len(plan) > 16 {
		t.Errorf("%d probes", len(plan))
	}
	for _, p := range plan {
		if p.From != addr(selfAddr) && p.From != addr(rangeAddr) || p.SrcMAC != mac(nicMAC) || p.DstMAC != mac(fabricMAC) || p.Link != "ens5" || p.IfIndex != 2 {
			t.Errorf("%+v", p)
		}
	}
}

// nobody is a node whose pods ask for an address that none has; entry is the
// state of the node's own neighbour entry for it.
func nobody(entry string) *testNode {
	n := kubenet()
	n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.5", "172.20.1.99", 12)
	n.Traffic.ARP = append(n.Traffic.ARP, model.ARPCount{IfIndex: 10, Link: "tap10", Direction: model.Ingress, Addr: addr("172.20.1.99"), Packets: 30})
	if entry != "" {
		n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr("172.20.1.99"), IfIndex: 3, State: entry})
		if entry != "FAILED" {
			n.Neighbors[len(n.Neighbors)-1].MAC = mac(deadMAC)
		}
	}
	return n
}

// TestARPProbe holds what an answer, or none, does to a finding.
func TestARPProbe(t *testing.T) {
	for _, tt := range []struct {
		macs       []model.MAC
		confidence model.Confidence
		evidence   string
	}{
		{nil, model.Likely, "no answer"},
		{[]model.MAC{mac(deadMAC)}, model.Possible, "answered with " + deadMAC},
		{[]model.MAC{mac(fabricMAC)}, model.Likely, "answered by the gateway"},
	} {
		n := nobody("")
		n.Probes = []model.Probe{{Kind: model.ProbeARP, Link: "br-pods", From: addr(rangeAddr), To: addr("172.20.1.99"), Answered: tt.macs != nil, MACs: tt.macs}}
		found := agreed(t, n)
		if len(found) != 1 || found[0].Code != "UnansweredARP" || found[0].Confidence != tt.confidence ||
			!slices.ContainsFunc(found[0].Evidence, func(e model.Evidence) bool {
				return e.Source == model.SourceProbes && strings.Contains(e.Text, tt.evidence)
			}) {
			t.Errorf("answered by %v: %+v", tt.macs, found)
		}
	}
}
