package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// vacant has the first pod ask for addresses of its range that nobody has.
func (n *testNode) vacant(addresses int) {
	for i := range addresses {
		a := fmt.Sprintf("172.20.1.%d", 100+i)
		n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.5", a, 9)
		n.arp(a, 10, model.Ingress, false, "0a:58:00:00:00:05", 9)
	}
}

// judged are the findings with their severities, and with the words that they begin with.
func judged(n *testNode) []string {
	var out []string
	for _, f := range Diagnose(&n.Snapshot) {
		out = append(out, fmt.Sprintf("%s %s %s", f.Severity, f.Code, f.Title))
	}
	return out
}

func TestSeverityOfDrops(t *testing.T) {
	const far = "172.20.2.9"
	lasting := func(reason model.Reason, location, dst string) *testNode {
		n := kubenet().live()
		d := n.drop(reason, location, far, dst, 40)
		d.First, d.Last = start, start.Add(5*time.Second)
		return n
	}
	// expiring is a node whose pod sends with these TTLs what expires.
	expiring := func(ttls ...int) *testNode {
		n := lasting("IP_INHDR", "ip_forward", pod5)
		d := &n.Traffic.Drops[0]
		d.Src, d.Dst = d.Dst, d.Src
		n.ttls(pod5, 10, model.Ingress, model.AsSource, 40, ttls...)
		return n
	}
	for _, tt := range []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"checksums are wrong all the time", func() *testNode { return lasting("TCP_CSUM", "tcp_v4_rcv", "172.20.1.5") },
			[]string{"warning UnexplainedDrop TCP_CSUM drops at tcp_v4_rcv"}},
		{"some were wrong for a moment", func() *testNode {
			n := lasting("UDP_CSUM", "__udp4_lib_rcv", "172.20.1.5")
			n.Traffic.Drops[0].Last = start
			return n
		}, []string{"info UnexplainedDrop UDP_CSUM drops at __udp4_lib_rcv"}},
		{"a key differs", func() *testNode { return lasting("TCP_MD5FAILURE", "tcp_v4_rcv", "172.20.1.5") },
			[]string{"warning UnexplainedDrop TCP_MD5FAILURE drops at tcp_v4_rcv"}},
		{"translated to the loopback address", func() *testNode {
			n := lasting("IP_LOCALNET", "ip_route_input_slow", "127.0.0.1")
			n.Traffic.Drops[0].Src = addr("172.20.1.5")
			return n
		}, []string{"warning UnexplainedDrop IP_LOCALNET drops at ip_route_input_slow"}},
		{"a queue is full, as with a bandwidth limit", func() *testNode { return lasting("QDISC_DROP", "__dev_queue_xmit", "172.20.1.5") },
			[]string{"info UnexplainedDrop QDISC_DROP drops at __dev_queue_xmit"}},
		{"nothing passes between two, and no rule that is read drops it", func() *testNode { return lasting("NETFILTER_DROP", "nft_do_chain", "172.20.1.5") },
			[]string{"warning PolicyDrop a firewall rule drops packets of 172.20.1.5"}},
		{"the tunnel knows nobody for the next hop", func() *testNode { return lasting("NO_TX_TARGET", "vxlan_xmit", "172.20.1.5") },
			[]string{"warning UnexplainedDrop NO_TX_TARGET drops at vxlan_xmit"}},
		{"some of it passes", func() *testNode {
			n := lasting("NO_TX_TARGET", "vxlan_xmit", "172.20.1.5")
			n.flow(far, "172.20.1.5", true)
			return n
		}, []string{"info UnexplainedDrop NO_TX_TARGET drops at vxlan_xmit"}},
		{"replies that are dropped behind connection tracking", func() *testNode {
			n := lasting("XFRM_POLICY", "ip_forward", "172.20.1.5")
			n.flow("172.20.1.5", far, true)
			return n
		}, []string{"warning UnexplainedDrop XFRM_POLICY drops at ip_forward"}},
		{"replies that are acknowledged", func() *testNode {
			n := lasting("XFRM_POLICY", "ip_forward", "172.20.1.5")
			n.flow("172.20.1.5", far, true)
			n.Flows[len(n.Flows)-1].Proto, n.Flows[len(n.Flows)-1].State = tcp, "ESTABLISHED"
			return n
		}, []string{"info UnexplainedDrop XFRM_POLICY drops at ip_forward"}},
		{"no rule that is read drops some of it for a moment", func() *testNode {
			n := lasting("NETFILTER_DROP", "nft_do_chain", "172.20.1.5")
			n.Traffic.Drops[0].Last = start
			return n
		}, []string{"info UnexplainedDrop NETFILTER_DROP drops at nft_do_chain"}},
		{"what passes is not known", func() *testNode {
			n := lasting("NO_TX_TARGET", "vxlan_xmit", "172.20.1.5")
			n.lose(model.SourceConntrack, model.Missing)
			return n
		}, []string{"info UnexplainedDrop NO_TX_TARGET drops at vxlan_xmit"}},
		{"what traceroute sends", func() *testNode { return lasting("IP_INHDR", "ip_forward", "172.20.1.5") },
			[]string{"info UnexplainedDrop IP_INHDR drops at ip_forward"}},
		{"a pod whose TTL was set to 1", func() *testNode { return expiring(1) }, []string{"warning UnexplainedDrop IP_INHDR drops at ip_forward"}},
		{"traceroute of a pod", func() *testNode { return expiring(1, 2, 3, 4) }, []string{"info UnexplainedDrop IP_INHDR drops at ip_forward"}},
		{"a pod looks for whoever is there", func() *testNode {
			n := kubenet()
			n.vacant(40)
			return n
		}, []string{"info UnansweredARP 172.20.1.5 sends to 40 addresses that no pod has"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := judged(tt.node()); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	f := Diagnose(&lasting("TCP_CSUM", "tcp_v4_rcv", "172.20.1.5").Snapshot)[0]
	if !strings.Contains(f.Why, "The checksum is wrong") || !strings.Contains(f.Next[0], "ethtool") {
		t.Errorf("the words for a wrong checksum are missing: %s %q", f.Why, f.Fix)
	}
}

// TestUnlikeEnds has packets that fit one end of a pod's link and not the other. The
// kernel gives no reason for these drops, and tells no sender.
func TestUnlikeEnds(t *testing.T) {
	const far, pod5, pod6 = "172.20.2.9", "172.20.1.5", "172.20.1.6"
	mtus := func(usual, first int) *testNode {
		n := kubenet().live()
		n.Pods[0].Netns, n.Node.Netns = 77, 1
		for i := range n.Links {
			n.Links[i].MTU = usual
		}
		n.link(10).MTU = first
		return n
	}
	lose := func(n *testNode, ifindex int, netns uint32, location, src, dst string, length int) *testNode {
		d := n.drop("NOT_SPECIFIED", location, src, dst, 9)
		d.IfIndex, d.Netns, d.Proto = ifindex, netns, 17
		n.sampled(d, head(17, 9000, 0))
		n.Traffic.Samples[len(n.Traffic.Samples)-1].Length = length
		return n
	}
	for _, tt := range []struct {
		name string
		node *testNode
		want []string
	}{
		{"the node's end is smaller than those of others",
			lose(lose(mtus(1500, 1300), 2, 77, "__dev_forward_skb2", pod5, far, 1428), 10, 1, "br_nf_dev_queue_xmit", pod6, pod5, 1428),
			[]string{"PathMTU proven 172.20.1.5 172.20.1.6 172.20.2.9"}},
		{"the pod's end is larger", lose(mtus(1500, 1500), 2, 77, "__dev_forward_skb2", pod5, far, 4028),
			[]string{"PathMTU proven 172.20.1.5 172.20.2.9"}},
		{"the pod's end is smaller", lose(mtus(1500, 1500), 10, 1, "____dev_forward_skb", far, pod5, 1428),
			[]string{"PathMTU likely 172.20.1.5 172.20.2.9"}},
		{"what was dropped there is small", lose(mtus(1500, 1500), 2, 77, "__dev_forward_skb2", pod5, far, 60),
			[]string{"UnexplainedDrop proven 172.20.1.5 172.20.2.9"}},
		{"it would have fitted the bridge's port", lose(mtus(1500, 1500), 10, 1, "br_nf_dev_queue_xmit", pod6, pod5, 1428),
			[]string{"UnexplainedDrop proven 172.20.1.5 172.20.1.6"}},
	} {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node, tt.want) })
	}
}
