package diagnose

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// rejected is a drop of segments by netfilter of which one was sampled.
func (n *testNode) rejected(link, location, src, dst string, packets uint64, h []byte) *model.Drop {
	d := n.dropOn(link, "NETFILTER_DROP", location, src, dst, packets)
	d.Proto, d.First, d.Last = h[9], start, end
	n.sampled(d, h)
	return d
}

const synFlag, ackFlag = 2, 16

// TestUncounted: which rule drops is found by exclusion where its counter does not tell, and none is said to have
// dropped more than it counted.
func TestUncounted(t *testing.T) {
	restarted := model.Counter{Packets: 500, Delta: 1, Restarted: true}
	native := func(chain, text string, unknown ...string) model.PacketRule {
		return model.PacketRule{Backend: model.NFT, Family: "inet", Table: "fw", Chain: chain, Native: true, Text: text,
			Handle: uint64(len(text)), Unknown: unknown, Target: "DROP"}
	}
	nft := func(hook string, rules ...model.PacketRule) *testNode {
		n := kubenet().live()
		n.chain(model.NFT, "inet", "fw", "c", hook, "ACCEPT", 0)
		n.PacketRules = append(n.PacketRules, rules...)
		return n
	}
	situations(t, []situation{
		{"a SYN is never INVALID", func() *testNode {
			n := nft("FORWARD", native("c", "ct state invalid drop", "ct state invalid"), native("c", "meta skuid 7 drop", "meta skuid 7"))
			n.rejected("ens5", "nft_do_chain", far, pod5, 30, head(tcp, 5432, synFlag))
			return n
		}, []string{"warning PolicyDrop"}, "meta skuid 7", ""},
		{"segments after the end are INVALID", func() *testNode {
			n := nft("FORWARD", native("c", "ct state invalid drop", "ct state invalid"), native("c", "tcp flags syn drop", "tcp flags syn"))
			n.PacketRules = n.PacketRules[:len(n.PacketRules)-1]
			n.rejected("ens5", "nft_do_chain", far, pod5, 30, head(tcp, 5432, ackFlag|4))
			return n
		}, nil, "", ""},
		{"no more on a rule than it counted", func() *testNode {
			n := filtered().live()
			n.filter(model.NFT, "FORWARD", 284, model.PacketRule{Dst: to("172.20.1.5/32"), Target: "DROP", Text: "-d 172.20.1.5/32 -j DROP"})
			n.rejected("ens5", "nft_do_chain", far, pod5, 590, head(tcp, 443, ackFlag))
			return n
		}, []string{"warning PolicyDrop", "warning PolicyDrop"}, "284", ""},
		{"a few more than it counted, of several senders: read in part, they are no proof", func() *testNode {
			n := filtered().live()
			n.filter(model.NFT, "FORWARD", 290, model.PacketRule{Dst: to("172.20.1.5/32"), Target: "DROP", Text: "-d 172.20.1.5/32 -j DROP"})
			for _, from := range []string{far, "172.20.2.10", "172.20.2.11"} {
				n.rejected("ens5", "nft_do_chain", from, pod5, 100, head(tcp, 443, synFlag))
			}
			return n
		}, []string{"warning PolicyDrop"}, "-d 172.20.1.5/32 -j DROP", ""},
		{"a counter that was zeroed in the window", func() *testNode {
			n := filtered().live()
			n.filter(model.NFT, "FORWARD", 0, model.PacketRule{Dst: to("172.20.1.5/32"), Target: "DROP", Text: "-d 172.20.1.5/32 -j DROP"}).Counter = restarted
			n.rejected("ens5", "nft_do_chain", far, pod5, 90, head(tcp, 443, synFlag))
			return n
		}, []string{"warning PolicyDrop"}, "-d 172.20.1.5/32 -j DROP", ""},
		{"a broadcast of a pod is for the node", func() *testNode {
			n := kubenet().live()
			n.chain(model.NFT, "ip", "filter", "INPUT", "INPUT", "DROP", 40)
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "DROP", 3)
			n.rejected("br-pods", "nft_do_chain", pod5, "172.20.1.255", 40, head(udp, 67, 0))
			return n
		}, []string{"warning PolicyDrop"}, "INPUT", ""},
		{"a group that nobody joined", func() *testNode {
			n := kubenet().live()
			n.chain(model.NFT, "ip", "filter", "INPUT", "INPUT", "DROP", 40)
			n.rejected("br-pods", "nft_do_chain", pod5, "224.0.0.251", 40, head(udp, 5353, 0))
			return n
		}, nil, "", ""},
		{"all SYNs to a node are rejected", func() *testNode {
			n := kubenet().live()
			n.chain(model.NFT, "inet", "firewalld", "filter_INPUT", "INPUT", "ACCEPT", 0)
			for _, r := range []model.PacketRule{
				native("filter_INPUT", "ct state invalid drop", "ct state invalid"),
				native("filter_INPUT", "reject with icmpx admin-prohibited"),
			} {
				r.Table = "firewalld"
				n.PacketRules = append(n.PacketRules, r)
			}
			n.PacketRules[len(n.PacketRules)-1].Target = "REJECT"
			n.rejected("br-pods", "nft_do_chain", pod5, "10.50.0.4", 30, head(tcp, 10250, synFlag))
			n.peer(pod5, "10.50.0.4", none, none)
			return n
		}, []string{"warning PolicyDrop"}, "reject with icmpx", ""},
		{"segments of closed connections alone: a guess may stay information", func() *testNode {
			n := kubenet().live()
			n.chain(model.NFT, "inet", "firewalld", "filter_INPUT", "INPUT", "ACCEPT", 0)
			r := native("filter_INPUT", "ct state invalid drop", "ct state invalid")
			r.Table = "firewalld"
			n.PacketRules = append(n.PacketRules, r)
			n.rejected("br-pods", "nft_do_chain", pod5, "10.50.0.4", 30, head(tcp, 10250, ackFlag|1))
			return n
		}, nil, "", ""},
		{"IPv6: requests to a node port, behind a rule for INVALID", func() *testNode {
			n := dual()
			n.chain(model.NFT, "inet", "fw", "c", "FORWARD", "ACCEPT", 0)
			n.PacketRules = append(n.PacketRules, native("c", "ct state invalid drop", "ct state invalid"),
				native("c", "tcp dport 30000-32767 drop"))
			n.PacketRules[len(n.PacketRules)-1].DstPorts = []model.PortRange{{First: 30000, Last: 32767}}
			h := make([]byte, 60)
			h[0], h[6], h[42], h[43], h[53] = 0x60, tcp, 0x75, 0x31, synFlag
			d := n.dropOn("ens5", "NETFILTER_DROP", "nft_do_chain", "fd20:0:0:2::9", "fd20:0:0:1::6", 30)
			d.Proto, d.First, d.Last = tcp, start, end
			n.sampled(d, h)
			return n
		}, []string{"warning PolicyDrop"}, "tcp dport 30000-32767 drop", ""},
		{"a chain of a removed add-on leads metadata requests to a port of the node", func() *testNode {
			n := kubenet().live()
			n.natRules(model.PacketRule{Chain: "PREROUTING", Dst: to("169.254.169.254/32"), Proto: tcp, DstPorts: onPort(80), Target: "DNAT",
				To: netip.MustParseAddrPort("10.50.0.4:8181"), Text: "-d 169.254.169.254/32 -p tcp --dport 80 -j DNAT --to-destination 10.50.0.4:8181",
				Counter: model.Counter{Packets: 30, Delta: 30}})
			d := n.drop("NO_SOCKET", "tcp_v4_rcv", pod5, "10.50.0.4", 30)
			d.Proto, d.First, d.Last = tcp, start, end
			n.sampled(d, head(tcp, 8181, synFlag))
			return n
		}, []string{"warning NoListener"}, "10.50.0.4:8181", ""},
		{"a host port of portmap whose host process is gone", func() *testNode {
			n := routed()
			n.natRules(model.PacketRule{Chain: "CNI-DN-0123", Dst: to("10.50.0.4/32"), Proto: tcp, DstPorts: onPort(8080), Target: "DNAT",
				To: netip.MustParseAddrPort("10.50.0.4:9090"), Text: "-d 10.50.0.4/32 -p tcp --dport 8080 -j DNAT --to-destination 10.50.0.4:9090",
				Counter: model.Counter{Packets: 12, Delta: 12}})
			d := n.drop("NO_SOCKET", "tcp_v4_rcv", "10.50.0.20", "10.50.0.4", 12)
			d.Proto, d.First, d.Last = tcp, start, end
			n.sampled(d, head(tcp, 9090, synFlag))
			return n
		}, []string{"warning NoListener"}, "--to-destination 10.50.0.4:9090", ""},
		{"a pod asks a port of the node that nobody has, and no rule leads there", func() *testNode {
			n := routed()
			n.natRules(model.PacketRule{Chain: "PREROUTING", Dst: to("169.254.169.254/32"), Proto: tcp, DstPorts: onPort(80), Target: "DNAT",
				To: netip.MustParseAddrPort("10.50.0.4:8181"), Text: "-j DNAT --to-destination 10.50.0.4:8181", Counter: model.Counter{Packets: 30, Delta: 30}})
			d := n.drop("NO_SOCKET", "tcp_v4_rcv", "10.50.0.20", "10.50.0.4", 12)
			d.Proto = tcp
			n.sampled(d, head(tcp, 9100, synFlag))
			return n
		}, nil, "", ""},
		{"SYNs and late segments, by one rule for INVALID that counted: that one dropped the latter", func() *testNode {
			n := filtered().live()
			n.filter(model.NFT, "FORWARD", 30, model.PacketRule{Unknown: []string{"-m conntrack --ctstate INVALID"}, Target: "DROP",
				Text: "-m conntrack --ctstate INVALID -j DROP"})
			n.filter(model.NFT, "FORWARD", 30, model.PacketRule{Dst: to("172.20.1.0/24"), Target: "DROP", Text: "-d 172.20.1.0/24 -j DROP"})
			n.rejected("ens5", "nft_do_chain", far, pod5, 30, head(tcp, 443, synFlag))
			return n
		}, []string{"warning PolicyDrop"}, "-d 172.20.1.0/24 -j DROP", "INVALID"},
	})
}
