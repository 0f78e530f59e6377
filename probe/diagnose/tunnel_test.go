package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestTunnelSilence: what leaves by a tunnel is judged by connection tracking, since
// uplinks show the tunnel's own packets only.
func TestTunnelSilence(t *testing.T) {
	tunnel := func(remote string, flows int, replied bool) *node {
		n := kubenet()
		n.Links = append(n.Links, model.Link{Index: 7, Name: "vx0", Kind: "vxlan", Up: true, Carrier: true, Role: model.RoleTunnel})
		n.route(model.Route{Dst: prefix("172.20.2.0/24"), Gateway: addr("172.20.2.0"), IfIndex: 7})
		n.answered(pod5, "203.0.113.9")
		n.tracked(pod5, remote, tcp, 80, flows, replied)
		return n
	}
	check(t, []fixture{
		{"nothing comes back", func() *node { return tunnel(far, 5, false) }, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"replies come", func() *node { return tunnel(far, 5, true) }, nil},
		{"a few requests", func() *node { return tunnel(far, 2, false) }, nil},
		{"the node drops them at the tunnel", func() *node {
			n := tunnel(far, 5, false)
			d := n.dropOn("vx0", "NO_TX_TARGET", "vxlan_xmit", pod5, far, 9)
			d.IfIndex = 7
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.5 172.20.2.9"}},
		{"by the uplink, which counts pairs itself", func() *node { return tunnel("172.20.3.9", 5, false) }, nil},
	})
}
