package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// The fix brings back what the kernel took with a link that went down.
func TestPodLinkDownFix(t *testing.T) {
	twoStacks := func() *testNode {
		n := routedNode()
		for i := range n.Pods {
			p := &n.Pods[i]
			p.Interface, p.NetnsName = "eth0", "pod"
			n.link(p.LinkIndex).Addresses = []netip.Prefix{prefix("169.254.1.1/32"), prefix("fd00:60::1/128")}
			p.Routes = []model.Route{
				{Dst: prefix("0.0.0.0/0"), Gateway: addr("169.254.1.1"), Type: "unicast", Table: 254, Link: "eth0"},
				{Dst: prefix("169.254.1.1/32"), Type: "unicast", Table: 254, Link: "eth0"},
				{Dst: prefix("10.60.0.0/24"), Type: "unicast", Table: 254, Link: "eth0", Protocol: "kernel"},
			}
		}
		n.Pods[1].Addresses = append(n.Pods[1].Addresses, prefix("fd00:60::21/128"))
		return n
	}
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"the host side", func() *testNode {
			n := twoStacks()
			n.link(10).Up, n.link(10).Carrier = false, false
			n.link(10).Addresses = n.link(10).Addresses[:1]
			n.unroute("10.60.0.20/32")
			return n
		}, []string{"ip link set dev tap10 up", "ip -6 addr add fd00:60::1/128 dev tap10", "ip route replace 10.60.0.20/32 dev tap10"}},
		{"the pod's side", func() *testNode {
			n := twoStacks()
			n.link(10).Carrier, n.Pods[0].Up, n.Pods[0].Routes, n.Pods[0].Gateways = false, false, nil, nil
			n.route(model.Route{Table: 254, Dst: prefix("fd00:60::20/128"), IfIndex: 10, Type: "unicast"})
			return n
		}, []string{
			"nsenter --net=/run/netns/pod ip link set dev eth0 up # then the routes that it lost with that",
			"nsenter --net=/run/netns/pod ip -6 addr add fd00:60::20/128 dev eth0 nodad",
			"nsenter --net=/run/netns/pod ip route replace 169.254.1.1/32 dev eth0 scope link",
			"nsenter --net=/run/netns/pod ip route replace default via 169.254.1.1 dev eth0",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			found := agreed(t, test.node())
			if len(found) != 1 || found[0].Code != "PodLinkDown" || !slices.Equal(found[0].Fix, test.want) {
				t.Errorf("got %+v\nwant the fix %q", found, test.want)
			}
		})
	}
}
