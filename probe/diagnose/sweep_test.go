package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// scans has a pod open connections to some ports of an address, in vain.
func (n *testNode) scans(local, remote string, ports int) {
	n.silent(local, remote)
	for i := range ports {
		p := uint16(80 + i)
		n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start,
			Original: model.Tuple{Src: addr(local), Dst: addr(remote), DstPort: p},
			Reply:    model.Tuple{Src: addr(remote), Dst: addr(local), SrcPort: p}})
	}
}

func TestScans(t *testing.T) {
	const pod5, pod6 = "172.20.1.5", "172.20.1.6"
	const unreachable = "pods here cannot reach 172.20.3.0/24: no route beyond ens5, or none back"
	scanned := func(addresses, ports int) *testNode {
		n := kubenet().live()
		n.answered(pod6, "172.20.2.9")
		for i := range addresses {
			n.scans(pod5, fmt.Sprintf("172.20.3.%d", 1+i), ports)
		}
		return n
	}
	for _, tt := range []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"many addresses on three ports each", func() *testNode { return scanned(40, 3) },
			[]string{"info NoReply 172.20.1.5 sends requests to 40 addresses of 172.20.3.0/24 that do not reply"}},
		{"all of a range that is known to be a node's", func() *testNode {
			n := scanned(200, 3)
			n.Cluster.Nodes = []model.ClusterNode{{Name: "aks-3", PodCIDRs: []netip.Prefix{prefix("172.20.3.0/24")}}}
			return n
		}, []string{"critical MissingUDR " + unreachable}},
		{"many on two ports each, as a pod that reads metrics", func() *testNode { return scanned(40, 2) },
			[]string{"critical MissingUDR " + unreachable}},
		{"more than a node has pods", func() *testNode { return scanned(200, 1) },
			[]string{"info NoReply 172.20.1.5 sends requests to 200 addresses of 172.20.3.0/24 that do not reply"}},
		{"few on many ports each", func() *testNode { return scanned(5, 9) },
			[]string{"critical MissingUDR " + unreachable}},
		{"another pod asks for one of them too", func() *testNode {
			n := scanned(40, 3)
			n.scans(pod6, "172.20.3.7", 1)
			return n
		}, []string{"warning NoReply no reply from 172.20.3.7", "info NoReply 172.20.1.5 sends requests to 39 addresses of 172.20.3.0/24 that do not reply"}},
		{"another pod asks for two of them too", func() *testNode {
			n := scanned(40, 3)
			n.scans(pod6, "172.20.3.7", 1)
			n.scans(pod6, "172.20.3.8", 1)
			return n
		}, []string{"critical MissingUDR " + unreachable, "info NoReply 172.20.1.5 sends requests to 38 addresses of 172.20.3.0/24 that do not reply"}},
		{"a peer of a peer-to-peer network, many of whose peers are gone", func() *testNode {
			n := kubenet().live()
			n.datagrams(pod5, "198.51.100.9", 30303, 3, true)
			for i := range 40 {
				n.datagrams(pod5, fmt.Sprintf("8.%d.3.9", i), 30303, 3, false)
			}
			n.Flows[20].Start = time.Time{} // asked before the window, and again
			return n
		}, []string{"info NoReply 172.20.1.5 sends requests to 40 internet addresses that do not reply on udp/30303"}},
		{"none of them replies on that port", func() *testNode {
			n := kubenet().live()
			n.answered(pod6, "198.51.100.9")
			for i := range 40 {
				n.scans(pod5, fmt.Sprintf("8.%d.3.9", i), 1)
			}
			return n
		}, []string{"warning NoReply no reply from 8.0.3.9, 8.1.3.9, 8.2.3.9, 8.3.3.9 and 36 more"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := judged(tt.node()); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
