package diagnose

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

func TestForeignSNAT(t *testing.T) {
	const alien = "10.50.77.77"
	rule := model.PacketRule{Chain: "POSTROUTING", Src: to("172.20.1.0/24"), Out: onLink("ens5"), Target: "SNAT", To: netip.MustParseAddrPort(alien + ":0"),
		Text: "-s 172.20.1.0/24 -o ens5 -j SNAT --to-source " + alien}
	as := func(source string, replied bool, targets ...string) *testNode {
		n := kubenet()
		n.natRules(rule)
		last := len(n.PacketRules) - 1
		n.PacketRules[0], n.PacketRules[last] = n.PacketRules[last], n.PacketRules[0]
		n.answered("10.50.0.4", "10.50.0.5")
		for _, a := range targets {
			n.translated(pod5, a, a, source, replied)
			n.translated(pod6, a, a, source, replied)
		}
		return n
	}
	check(t, []fixture{
		{"two targets", func() *testNode { return as(alien, false, out, far) }, []string{"ForeignSNAT proven 172.20.1.5 172.20.1.6 172.20.2.9 203.0.113.9"}},
		{"one target, which may be down", func() *testNode { return as(alien, false, out) }, []string{"ForeignSNAT likely 172.20.1.5 172.20.1.6 203.0.113.9"}},
		{"the network leads the address here", func() *testNode { return as(alien, true, out, far) }, nil},
		{"the network leads the address here, and a target is down", func() *testNode {
			n := as(alien, true, out)
			n.translated(pod5, out2, out2, alien, false)
			n.translated(pod6, out2, out2, alien, false)
			return n
		}, nil},
		{"flows from before the window had replies", func() *testNode {
			n := as(alien, false, out, far)
			n.translated(pod5, out2, out2, alien, true).Start = time.Time{}
			return n
		}, []string{"ForeignSNAT likely 172.20.1.5 172.20.1.6 172.20.2.9 203.0.113.9"}},
		{"another address of the node's", func() *testNode {
			n := as(alien, false, out, out2)
			n.Links = append(n.Links, model.Link{Index: 40, Name: "egress0", Kind: "dummy", Up: true, Addresses: []netip.Prefix{prefix(alien + "/32")}})
			return n
		}, nil},
		{"a range that a local route gives the node", func() *testNode {
			n := as(alien, false, out, out2)
			n.route(model.Route{Dst: prefix("10.50.77.0/24"), IfIndex: 1, Type: "local", Table: 255})
			return n
		}, nil},
		{"datagrams that want no reply", func() *testNode {
			n := as(alien, false, out, out2)
			for i := range n.Flows {
				n.Flows[i].Proto, n.Flows[i].Original.DstPort = udp, 8125
			}
			return n
		}, nil},
		{"flows that have just begun", func() *testNode {
			n := as(alien, false, out, out2)
			for i := range n.Flows {
				n.Flows[i].Start = end
			}
			return n
		}, nil},
		{"the addresses are unread", func() *testNode {
			n := as(alien, false, out, out2)
			n.lose(model.SourceLinks, model.Partial)
			return n
		}, nil},
		{"the rule is gone", func() *testNode {
			n := as(alien, false, out, out2)
			n.PacketRules = n.PacketRules[1:4]
			return n
		}, []string{"ForeignSNAT likely 172.20.1.5 172.20.1.6 198.51.100.7 203.0.113.9"}},
		{"the rule is gone, and so are all flows but older ones", func() *testNode {
			n := as(alien, false, out, out2)
			n.PacketRules = n.PacketRules[1:4]
			for i := range n.Flows {
				n.Flows[i].Start = time.Time{}
			}
			return n
		}, nil},
		{"connections from before the window are still tried", func() *testNode {
			n := as(alien, false, out, out2)
			for i := range n.Flows {
				n.Flows[i].Start = time.Time{}
			}
			return n
		}, []string{"ForeignSNAT proven 172.20.1.5 172.20.1.6 198.51.100.7 203.0.113.9"}},
	})
	fix := func(n *testNode) string { return strings.Join(Diagnose(&n.Snapshot)[0].Fix[1:3], " ") }
	n := as(alien, false, out, out2)
	n.PacketRules = n.PacketRules[:1]
	if got, want := fix(n), "# if it is not: iptables-nft -t nat -R POSTROUTING 0 -s 172.20.1.0/24 -o ens5 -j MASQUERADE"; got != want {
		t.Errorf("without another rule: fix\n got %s\nwant %s", got, want)
	}
	n.natRules(model.PacketRule{Chain: "POSTROUTING", Number: 9, Target: "MASQUERADE", Text: "-j MASQUERADE"})
	if got, want := fix(n), "# if it is not: iptables-nft -t nat -D POSTROUTING -s 172.20.1.0/24 -o ens5 -j SNAT --to-source "+alien; got != want {
		t.Errorf("before another rule: fix\n got %s\nwant %s", got, want)
	}
}
