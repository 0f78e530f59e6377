package diagnose

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

var update = flag.Bool("update", false, "write what findings say to testdata")

// TestSentences has findings whose sentences no other test meets, and compares all that they
// say.
func TestSentences(t *testing.T) {
	const path = "testdata/sentences.txt"
	var b strings.Builder
	for _, tt := range []struct {
		name string
		node *testNode
	}{
		{"replies leave again", repliesLeave()},
		{"queue of a pod's link", fullQueueOf(10, "")},
		{"queue of an ifb", fullQueueOf(3, "ifb")},
		{"no such service", refusedBy(noSuchService, "NETFILTER_DROP")},
		{"no such port", refusedBy(noSuchPort, "NETFILTER_DROP")},
		{"no local endpoints", refusedBy("shop/cart:http"+noLocalEndpoints, "NETFILTER_DROP")},
		{"two rules without endpoints", refusedBy("shop/cart:http"+noEndpoints, "shop/cart:http"+noEndpoints)},
		{"two destinations without ports", twoExhausted()},
		{"XDP", hooked("XDP", "bpf_prog_run_xdp", model.ProgramXDP)},
		{"netkit", hooked("NOT_SPECIFIED", "netkit_xmit", "")},
		{"a tc filter", hooked("TC_INGRESS", "__netif_receive_skb_core", model.ProgramTC)},
		{"programs on cgroups", hooked("BPF_CGROUP_EGRESS", "ip_finish_output", model.ProgramCgroup)},
		{"a reset", resetting()},
		{"rules lead a pod to itself", hairpinRule()},
		{"another node's address", foreignNode()},
		{"a rule that was not read whole", unsureMasquerade(false)},
		{"a native rule", unsureMasquerade(true)},
		{"other rules may match", rivalRules()},
		{"a bridge port that is not the pod's", steady("BRIDGE_INGRESS_STP_STATE", "br_handle_frame")},
		{"a blackhole that is gone", steady("BLACKHOLE", "dst_discard_out")},
		{"a request by the link that leads there", steady("ARP_PVLAN_DISABLE", "ip_rcv_finish_core")},
		{"a wrong source MAC", steady("MAC_INVALID_SOURCE", "br_handle_frame")},
		{"the tunnel's own frames", steady("LOCAL_MAC", "vxlan_rcv")},
		{"no such VNI", steady("VXLAN_VNI_NOT_FOUND", "vxlan_rcv")},
		{"a wrong VXLAN header", steady("VXLAN_INVALID_HDR", "vxlan_rcv")},
		{"congestion in a tunnel", steady("IP_TUNNEL_ECN", "vxlan_rcv")},
		{"a security module", steady("SECURITY_HOOK", "tcp_v4_rcv")},
		{"a loop of devices", steady("RECURSION_LIMIT", "__dev_queue_xmit")},
		{"a queue for L4S", steady("DUALPI2_STEP_DROP", "__dev_queue_xmit")},
		{"PSP", steady("PSP_INPUT", "tcp_v4_rcv")},
		{"Open vSwitch", steady("OVS_DROP_LAST_ACTION", "do_execute_actions")},
	} {
		for _, f := range Diagnose(&tt.node.Snapshot) {
			fmt.Fprintf(&b, "## %s\n%s %s %s %d %v\n%s\n%s\n", tt.name, brief(f), f.Severity, f.LastHopAlive, f.Packets, f.Cause, f.Title, f.Why)
			for _, e := range f.Evidence {
				fmt.Fprintf(&b, "%s: %s\n", e.Source, e.Text)
			}
			fmt.Fprintf(&b, "unseen %s\nelse %s\nfix %s\nnext %s\n", strings.Join(f.Unseen, "\nunseen "), strings.Join(f.Alternatives, "\nelse "),
				strings.Join(f.Fix, "\nfix "), strings.Join(f.Next, "\nnext "))
		}
	}
	if got := b.String(); got != held(t, path, got) {
		t.Errorf("findings say something else than in %s:\n%s", path, got)
	}
}

// held is what a file has that should be so; with -update it is written before.
func held(t *testing.T, path, text string) string {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(want)
}

// steady is a node that drops packets to a pod for as long as it is watched.
func steady(reason model.Reason, location string) *testNode {
	n := kubenet()
	d := n.drop(reason, location, far, pod5, 40)
	d.First, d.Last = n.Window.Start, n.Window.End
	return n
}

func repliesLeave() *testNode {
	n := kubenet()
	for i := range 4 {
		f := n.translated(pod5, out, out, "10.50.0.4", true)
		f.State, f.Start = "SYN_RECV", start.Add(time.Duration(i))
	}
	n.passes(pod5, 2, model.Egress, model.AsDestination, 9, 1)
	n.passes(pod5, 3, model.Egress, model.AsDestination, 5, 1)
	return n
}

func fullQueueOf(ifindex int, kind string) *testNode {
	n := kubenet().with(model.SourceQueues)
	l := n.link(ifindex)
	if kind != "" {
		l.Kind, l.Role = kind, ""
	}
	n.Queues = []model.Queue{{IfIndex: ifindex, Link: l.Name, Kind: "fq_codel", Handle: "1:", Limit: 3000, SentDelta: 10, DropsDelta: 40}}
	d := n.dropOn(l.Name, "QDISC_DROP", "__dev_queue_xmit", far, pod5, 30)
	d.First, d.Last = n.Window.Start, n.Window.End
	return n
}

func refusedBy(comments ...string) *testNode {
	n := filtered()
	for i, c := range comments {
		if c == "NETFILTER_DROP" {
			continue
		}
		n.filter(model.NFT, "FORWARD", uint64(40+i), model.PacketRule{Target: "KUBE-FORWARD"})
		n.chain(model.NFT, "ip", "filter", "KUBE-FORWARD", "", "", 0)
		n.filter(model.NFT, "KUBE-FORWARD", uint64(40+i), model.PacketRule{Target: "DROP", Comment: c, Dst: to(fmt.Sprintf("10.0.0.1%d/32", i))})
		n.refuse("nft_do_chain", pod5, fmt.Sprintf("10.0.0.1%d", i), uint64(40+i))
	}
	return n
}

func twoExhausted() *testNode {
	n := kubenet()
	n.PacketRules[3].ToPorts, n.PacketRules[3].Text = model.PortRange{First: 61000, Last: 61005}, "-j MASQUERADE --to-ports 61000-61005"
	n.Conntrack.InsertFailed = 7
	for _, to := range []string{out, "203.0.113.77"} {
		for i := range 6 {
			n.translated(pod5, to, to, "10.50.0.4", true).Reply.DstPort = uint16(61000 + i)
		}
	}
	return n
}

func hooked(reason model.Reason, location string, kind model.ProgramKind) *testNode {
	n := kubenet().with(model.SourcePrograms)
	n.Node.Netns = 1
	n.dropOn("tap10", reason, location, pod5, far, 9).Netns = 1
	if kind == model.ProgramCgroup {
		for i := range 10 {
			n.Programs = append(n.Programs, model.Program{Kind: kind, ID: uint32(i), Name: "sd_fw_egress", Direction: model.Egress, Cgroup: "/x"})
		}
	} else if kind != "" {
		n.Programs = []model.Program{{Kind: kind, ID: 4, Name: "filter", Filter: "bpf", Priority: 7, Handle: 1, Netns: 1, IfIndex: 10, Link: "tap10",
			Direction: model.Ingress}}
	}
	return n
}

func resetting() *testNode {
	n := kubenet()
	n.Pods[0].Netns, n.Pods[0].Interface, n.Pods[0].NetnsName = 77, "eth0", "cni-1"
	d := n.drop("NO_SOCKET", "tcp_v4_rcv", far, pod5, 9)
	d.Netns, d.Proto = 77, tcp
	n.sampled(d, head(tcp, 8080, 2))
	n.passes(pod5, 10, model.Ingress, model.AsSource, 9, 1)
	n.Traffic.Hops[0].RST, n.Traffic.Hops[0].ICMPErrors = 9, 1
	return n
}

func hairpinRule() *testNode {
	n := plain()
	n.drop("IP_LOCAL_SOURCE", "ip_rcv_finish_core", pod5, pod5, 9)
	n.natRules(model.PacketRule{Chain: "PREROUTING", Number: 3, Target: "DNAT", To: netip.AddrPortFrom(addr(pod5), 80), Dst: to("10.0.0.10/32"),
		Text: "-d 10.0.0.10 -j DNAT", Counter: model.Counter{Packets: 9, Delta: 9}})
	return n
}

func foreignNode() *testNode {
	n := kubenet()
	n.Cluster.Nodes = []model.ClusterNode{{Name: "worker-7", Addresses: []netip.Addr{addr("198.51.100.9")}}}
	n.PacketRules = n.PacketRules[:3]
	n.natRules(model.PacketRule{Chain: "IP-MASQ-AGENT", Number: 4, Target: "SNAT", To: netip.AddrPortFrom(addr("198.51.100.9"), 0),
		Text: "-j SNAT --to-source 198.51.100.9"})
	n.answered(pod6, "203.0.113.80")
	for _, to := range []string{out, "203.0.113.77"} {
		for range 3 {
			n.translated(pod5, to, to, "198.51.100.9", false)
		}
	}
	return n
}

func unsureMasquerade(native bool) *testNode {
	n := kubenet()
	n.PacketRules = n.PacketRules[:1]
	n.natRules(
		model.PacketRule{Chain: "IP-MASQ-AGENT", Target: "RETURN", Unknown: []string{"-m set --match-set s dst"}, Text: "-m set --match-set s dst -j RETURN"},
		model.PacketRule{Chain: "IP-MASQ-AGENT", Target: "MASQUERADE", Text: "-j MASQUERADE", Native: native},
	)
	n.translated(pod5, far, far, "10.50.0.4", true)
	return n
}

func rivalRules() *testNode {
	n := filtered()
	n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Target: "DROP", Unknown: []string{"-m set --match-set s src"}, Comment: "mine"})
	n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Target: "DROP", Unknown: []string{"-m set --match-set t src"}})
	n.refuse("nft_do_chain", pod5, far, 40)
	return n
}
