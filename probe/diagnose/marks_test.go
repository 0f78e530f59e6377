package diagnose

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// secondCard is a node with routed pods, the last of which sends by a NIC and table of its own. Rules give connections that come
// by the first NIC a mark, which a routing rule leads back there.
func secondCard() *testNode {
	n := cardOfPods(true).with(model.SourceRoutes, model.SourceConntrack)
	n.link(4).Addresses = append(n.link(4).Addresses, prefix("10.51.0.4/16"))
	n.Rules = slices.Insert(n.Rules, 1, model.RoutingRule{Family: 4, Priority: 1024, Mark: 0x80, Mask: 0x80, Table: 254, Action: "lookup"})
	n.Rules = slices.DeleteFunc(n.Rules, func(r model.RoutingRule) bool { return r.From == prefix("10.50.0.20/32") })
	return n
}

// prerouting adds a rule of iptables before routing, in a table whose chain is made with the first.
func (n *testNode) prerouting(table string, priority int, r model.PacketRule) *testNode {
	if !slices.ContainsFunc(n.Chains, func(c model.Chain) bool { return c.Table == table && c.Hook == "PREROUTING" }) {
		n.chain(model.NFT, "ip", table, "PREROUTING", "PREROUTING", "ACCEPT", 30)
		n.Chains[len(n.Chains)-1].Priority = priority
	}
	n.filter(model.NFT, "PREROUTING", 30, r).Table = table
	return n
}

// restores is a rule that gives what comes by links its connection's mark.
func restores(links string) model.PacketRule {
	return model.PacketRule{In: onLink(links), Target: "CONNMARK", SetMark: model.MarkWrite{Mask: 0x80, Copied: 0x80},
		Text: "-i " + links + " -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80"}
}

// askedAt are connections to a port of the node, which is translated to the last pod's. Its replies leave by a link.
func (n *testNode) askedAt(link string, ifindex int, state string) *testNode {
	const client, own, pod = "10.50.0.5", "10.50.0.4", "10.50.0.21"
	for i := range uint16(4) {
		n.Flows = append(n.Flows, model.Flow{Proto: tcp, Replied: true, Assured: state == "TIME_WAIT", State: state, Mark: 0x80,
			Start:    start.Add(time.Duration(i) * time.Second),
			Original: model.Tuple{Src: addr(client), Dst: addr(own), SrcPort: 40000 + i, DstPort: 30080},
			Reply:    model.Tuple{Src: addr(pod), Dst: addr(client), SrcPort: 8080, DstPort: 40000 + i}})
	}
	n.peer(own, client, none, model.PeerCount{Packets: 12, Requests: 12})
	n.peer(own, client, model.PeerCount{Packets: 12, Replies: 12}, none)
	p := &n.Traffic.Peers[len(n.Traffic.Peers)-1]
	p.IfIndex, p.Link = ifindex, link
	return n
}

// TestMarks: marks are followed through connection tracking, the nat tables and what nft writes.
func TestMarks(t *testing.T) {
	const pod, service = "10.50.0.21", "10.96.0.9"
	// apart are connections of the last pod to one address, of which those by a service have a mark.
	apart := func(mark uint32) *testNode {
		n := secondCard().prerouting("mangle", -150, restores("tap+"))
		for i := range uint16(10) {
			n.begins(pod, "10.60.0.9", pod, 8080, 40000+i*7%10, 0.5+float64(i)*0.7, i%2 == 0)
			if f := &n.Flows[len(n.Flows)-1]; i%2 == 1 {
				f.Original.Dst, f.Mark = addr(service), mark
			}
		}
		n.peer(pod, "10.60.0.9", model.PeerCount{Packets: 60, Requests: 20, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
		n.bySecond()
		return n
	}
	twoUplinks := func(text string, discards bool, rules ...model.PacketRule) *testNode {
		n := ruledTo(model.Route{Type: model.Either(discards, "unreachable", "unicast"), Gateway: addr("10.50.0.9"), IfIndex: 2},
			model.RoutingRule{Mark: 2, Mask: 0xffffffff})
		for _, r := range rules {
			r.Text = text
			n.prerouting("mangle", -150, r)
		}
		if discards {
			n.dropOn("tap10", "NOT_SPECIFIED", "ip_error", "10.50.0.20", "203.0.113.9", 30)
		}
		return n
	}
	set := func(value uint32) model.MarkWrite { return model.MarkWrite{Value: value, Mask: 0xffffffff} }
	balanced := []model.PacketRule{
		{Target: "CONNMARK", SetMark: model.MarkWrite{Mask: 0xffffffff, Copied: 0xffffffff}},
		{Target: "MARK", SetMark: set(1), Mark: model.MarkMatch{Mask: 0xffffffff, Set: true}, Unknown: []string{"statistic --mode nth --every 2 --packet 0"}},
		{Target: "MARK", SetMark: set(2), Mark: model.MarkMatch{Mask: 0xffffffff, Set: true}},
		{Target: "CONNMARK", SetMark: model.MarkWrite{Mask: 0xffffffff, Copied: 0xffffffff, OfFlow: true}},
	}
	native := []model.PacketRule{
		{Target: "CONNMARK", Native: true, SetMark: model.MarkWrite{Value: 2, Mask: 0xffffffff, OfFlow: true}},
		{Target: "MARK", Native: true, SetMark: set(2), FlowMark: model.MarkMatch{Value: 2, Mask: 0xffffffff, Set: true}},
	}
	inNAT := func(mark uint32) *testNode {
		n := ruledTo(model.Route{Type: "blackhole"}, model.RoutingRule{Mark: mark, Mask: 0xffffffff})
		n.prerouting("nat", -100, model.PacketRule{Proto: udp, Target: "MARK", SetMark: set(0x64), Text: "-p udp -j MARK --set-xmark 0x64/0xffffffff"})
		if mark == 0x64 {
			n.dropOn("tap10", "NOT_SPECIFIED", "ip_error", "10.50.0.20", "203.0.113.9", 30).Proto = udp
		}
		return n
	}
	byProgram := func(mark uint32) *testNode {
		n := ruledTo(model.Route{Type: "blackhole"}, model.RoutingRule{Mark: mark, Mask: 0xffffffff})
		if mark == 0x64 {
			n.dropOn("tap10", "NOT_SPECIFIED", "ip_error", "10.50.0.20", "203.0.113.9", 30)
		}
		return n
	}
	collides := func(value uint32) *testNode {
		n := kubenet()
		n.chain(model.NFT, "ip", "mangle", "POSTROUTING", "POSTROUTING", "ACCEPT", 30)
		n.Chains[len(n.Chains)-1].Priority = -150
		n.natRules(model.PacketRule{Chain: "POSTROUTING", Mark: model.MarkMatch{Value: 0x40000, Mask: 0xff0000, Set: true}, Target: "MASQUERADE", Text: "-m mark --mark 0x40000/0xff0000 -j MASQUERADE"})
		n.filter(model.NFT, "POSTROUTING", 30, model.PacketRule{Target: "MARK", SetMark: model.MarkWrite{Value: value, Mask: 0xff0000}, Text: "-j MARK"}).Table = "mangle"
		n.translated(pod5, far, far, "10.50.0.4", true)
		return n
	}
	valid := func(setting string) *testNode {
		n := routed().with(model.SourceRoutes, model.SourceSysctl)
		n.Links = append(n.Links, model.Link{Index: 4, Name: "ens6", MAC: mac("00:0d:3a:00:00:02"), Up: true, Carrier: true, Role: model.RoleUplink})
		n.route(model.Route{Dst: prefix("10.60.0.0/16"), Gateway: addr("10.51.0.1"), IfIndex: 4})
		n.route(model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2, Table: 100})
		n.route(model.Route{Dst: prefix("10.50.0.20/32"), IfIndex: 10, Table: 100})
		n.Rules = append(builtinRules(), model.RoutingRule{Family: 4, Priority: 100, Mark: 0x64, Mask: 0xffffffff, Table: 100, Action: "lookup"})
		n.prerouting("mangle", -150, model.PacketRule{In: onLink("ens6"), Target: "MARK", SetMark: set(0x64), Text: "-i ens6 -j MARK --set-xmark 0x64/0xffffffff"})
		n.sysctl("net.ipv4.conf.ens6.rp_filter", "1")
		n.sysctl("net.ipv4.conf.all.src_valid_mark", setting)
		if setting == "1" {
			n.dropOn("ens6", "IP_RPFILTER", "ip_rcv_finish_core", "10.60.0.9", "10.50.0.20", 30)
		}
		return n
	}
	situations(t, []situation{
		{"replies leave by another NIC, as the rule that restores marks is for other links", func() *testNode {
			return secondCard().prerouting("mangle", -150, restores("eni+")).askedAt("ens6", 4, "SYN_RECV")
		}, []string{"warning NoReply"}, "-i eni+ -j CONNMARK --restore-mark", "ss -lntu"},
		{"replies leave by the NIC of the requests", func() *testNode {
			return secondCard().prerouting("mangle", -150, restores("tap+")).askedAt("ens5", 2, "TIME_WAIT")
		}, nil, "", ""},
		{"connections open although replies leave by another NIC", func() *testNode {
			return secondCard().askedAt("ens6", 4, "TIME_WAIT")
		}, nil, "", ""},
		{"what goes to a service is marked, and led to a NIC that is not the pod's", func() *testNode { return apart(0x80) },
			[]string{"warning NoReply"}, "led to ens5 by routing rule 1024; the others leave through ens6", ""},
		{"a mark of others leads nowhere else", func() *testNode { return apart(0x100) }, []string{"warning NoReply"}, "have the mark 256", ""},
		{"one of two uplinks' tables discards", func() *testNode { return twoUplinks("-j MARK", true, balanced...) },
			[]string{"critical BlackholeRoute"}, "fwmark 0x2/0xffffffff lookup 100 leads them", ""},
		{"both lead out", func() *testNode { return twoUplinks("-j MARK", false, balanced...) }, nil, "", ""},
		{"nft marks connections, and packets by these", func() *testNode { return twoUplinks("ct mark 0x2 meta mark set 0x2", true, native...) },
			[]string{"critical BlackholeRoute"}, "ct mark 0x2 meta mark set 0x2", ""},
		{"a rule of the nat table sets the mark", func() *testNode { return inNAT(0x64) }, []string{"critical BlackholeRoute"},
			"nat PREROUTING rule", ""},
		{"that of others", func() *testNode { return inNAT(0x65) }, nil, "", ""},
		{"a program sets the mark", func() *testNode { return byProgram(0x64) }, []string{"critical BlackholeRoute"},
			"tc filter show dev tap10 ingress", ""},
		{"and another one", func() *testNode { return byProgram(0x65) }, nil, "", ""},
		{"a mark of one program's is the masquerade of another", func() *testNode { return collides(0x40000) },
			[]string{"warning UnexpectedMasquerade"}, "-t mangle -D POSTROUTING", ""},
		{"marks that differ", func() *testNode { return collides(0x50000) }, nil, "", ""},
		{"the reverse path filter heeds marks", func() *testNode { return valid("1") }, []string{"warning ReversePathFilter"},
			"sysctl -w net.ipv4.conf.all.src_valid_mark=0", "rp_filter="},
		{"the reverse path filter heeds none", func() *testNode { return valid("0") }, nil, "", ""},
	})
}

// TestTablesOfPods: a rule in a pod leads to another table, or discards what the pod asks for.
func TestTablesOfPods(t *testing.T) {
	const client = "10.50.0.5"
	vpn := func(dst, dev string) *testNode {
		n := routed().with(model.SourceTC, model.SourcePods)
		p := &n.Pods[0]
		p.Interface = "eth0"
		p.Rules = []model.RoutingRule{{Family: 4, Priority: 5270, Table: 52, Action: "lookup"}}
		p.Tables = []model.Route{{Table: 52, Dst: prefix(dst), Link: dev, Type: model.Either(dev == "", "blackhole", "unicast")}}
		n.requested(client, "10.50.0.20", tcp, 80, 9, !p.Tables[0].Dst.Contains(addr(client)) || dev == "eth0")
		n.exchanges(1, "10.50.0.21")
		return n
	}
	lookups := func(rules ...model.RoutingRule) *testNode {
		n := routed().with(model.SourceTC, model.SourcePods)
		n.Pods[0].Resolver, n.Pods[0].Rules = &model.Resolver{Servers: []netip.Addr{addr("10.96.0.10")}}, rules
		n.exchanges(0, "10.50.0.20")
		n.exchanges(1, "10.50.0.21")
		return n
	}
	// led is a node on which a table of a pod's leads by another pod what its main table leads by the node.
	led := func(n *testNode) *testNode {
		p := &n.Pods[0]
		p.Tables = []model.Route{p.Routes[len(p.Routes)-1]}
		p.Tables[0].Table, p.Routes = 52, p.Routes[:len(p.Routes)-1]
		p.Rules = []model.RoutingRule{{Family: 4, Priority: 5270, Table: 52, Action: "lookup"}}
		return n
	}
	prohibits := model.RoutingRule{Family: 4, Priority: 30, To: prefix("10.96.0.0/16"), Action: "prohibit"}
	main := model.RoutingRule{Family: 4, Priority: 20, Table: 254, Action: "lookup"}
	situations(t, []situation{
		{"a VPN's table takes the replies", func() *testNode { return vpn("10.50.0.0/24", "tailscale0") },
			[]string{"warning PodNotReplying"}, "ip route del 10.50.0.0/24 dev tailscale0 table 52", ""},
		{"a VPN's table has other ranges", func() *testNode { return vpn("100.64.0.0/10", "tailscale0") }, nil, "", ""},
		{"a table of the pod's own interface", func() *testNode { return vpn("0.0.0.0/0", "eth0") }, nil, "", ""},
		{"a table that discards", func() *testNode { return vpn("10.0.0.0/8", "") }, []string{"warning BlackholeRoute"},
			"ip route del blackhole 10.0.0.0/8 table 52", ""},
		{"a table leads by another pod, which does not forward", func() *testNode { return led(byPod(false)) },
			[]string{"warning ForwardingDisabled"}, "sysctl -w net.ipv4.ip_forward=1", ""},
		{"a table leads by another pod, which forwards", func() *testNode { return led(byPod(true)) }, nil, "", ""},
		{"a table leads by another pod, and nobody replies", func() *testNode { return led(unsentTo(pod6)) },
			[]string{"warning UnexplainedDrop"}, "through the pod behind tap11, and gets no reply", ""},
		{"a table leads by another pod, by which replies come", func() *testNode {
			n := led(unsentTo(pod6))
			for i := range n.Flows {
				n.Flows[i].Replied = true
			}
			return n
		}, nil, "", ""},
		{"a rule discards what is for the name server", func() *testNode { return lookups(prohibits) }, []string{"warning BlackholeRoute"},
			"ip rule del to 10.96.0.0/16 prohibit priority 30", ""},
		{"the main table comes first", func() *testNode { return lookups(main, prohibits) }, nil, "", ""},
		{"a rule discards what is for others", func() *testNode {
			return lookups(model.RoutingRule{Family: 4, Priority: 30, To: prefix("198.51.100.0/24"), Action: "prohibit"})
		}, nil, "", ""},
	})
}

// TestLimits: a rule that drops what exceeds a limit is no rule to delete.
func TestLimits(t *testing.T) {
	limited := func(passed, dropped uint64, rules ...model.PacketRule) *testNode {
		n := filtered()
		for i, r := range rules {
			r.Proto, r.DstPorts = udp, onPort(53)
			n.filter(model.NFT, "FORWARD", model.Either(i == len(rules)-1, dropped, passed), r)
		}
		n.peer(pod5, out, model.PeerCount{Packets: passed, Other: passed}, model.PeerCount{Packets: passed, Other: passed})
		d := n.lost("nft_do_chain", pod5, out, 53, dropped)
		d.First, d.Last = start, end
		return n
	}
	above := model.PacketRule{Target: "DROP", Unknown: []string{"hashlimit --hashlimit-above 20/sec"}, Text: "-p udp --dport 53 -m hashlimit --hashlimit-above 20/sec -j DROP"}
	within := model.PacketRule{Target: "ACCEPT", Unknown: []string{"limit --limit 20/sec"}, Text: "-p udp --dport 53 -m limit --limit 20/sec -j ACCEPT"}
	rest := model.PacketRule{Target: "DROP", Text: "-p udp --dport 53 -j DROP"}
	situations(t, []situation{
		{"most of a pod's questions exceed a limit", func() *testNode { return limited(60, 240, above) }, []string{"warning PolicyDrop"},
			"raise it in filter FORWARD rule", "-D FORWARD"},
		{"a few do", func() *testNode { return limited(2000, 4, above) }, nil, "", "-D FORWARD"},
		{"a rule drops what the limit before it does not let pass", func() *testNode { return limited(60, 240, within, rest) },
			[]string{"warning PolicyDrop"}, "--limit 20/sec -j ACCEPT", "-D FORWARD"},
		{"a rule drops all", func() *testNode { return limited(0, 240, rest) }, []string{"warning PolicyDrop"}, "-D FORWARD", ""},
	})
}

// TestForgotten: connections go on of which connection tracking has no entry, and makes none.
func TestForgotten(t *testing.T) {
	forgotten := func(loose string, flags byte, known bool) *testNode {
		n := filtered().with(model.SourceConntrack)
		n.sysctl("net.netfilter.nf_conntrack_tcp_loose", loose)
		n.filter(model.NFT, "FORWARD", 60, model.PacketRule{Target: "DROP", Unknown: []string{"conntrack --ctstate INVALID"}, Text: "-m conntrack --ctstate INVALID -j DROP"})
		for _, ends := range [][2]string{{pod5, far}, {far, pod5}} {
			d := n.refuse("nft_do_chain", ends[0], ends[1], 30)
			d.First, d.Last = start, end
			h := head(tcp, 8080, flags)
			if ends[0] == far {
				h[20], h[21], h[22], h[23] = h[22], h[23], 0, 0
			}
			n.sampled(d, h)
		}
		if known {
			n.Flows = append(n.Flows, model.Flow{Proto: tcp, Replied: true, Assured: true, State: "CLOSE",
				Original: model.Tuple{Src: addr(pod5), Dst: addr(far), DstPort: 8080}, Reply: model.Tuple{Src: addr(far), Dst: addr(pod5), SrcPort: 8080}})
		}
		return n
	}
	const ack, fin = 0x18, 0x11
	situations(t, []situation{
		{"after a flush", func() *testNode { return forgotten("0", ack, false) }, []string{"warning InvalidDrop"},
			"nf_conntrack_tcp_loose=1", "be_liberal"},
		{"late segments of a connection that is closed", func() *testNode { return forgotten("0", fin, false) }, nil, "", ""},
		{"segments that its entry does not expect", func() *testNode { return forgotten("0", ack, true) }, nil, "", "tcp_loose"},
		{"entries are made of any segment", func() *testNode { return forgotten("1", ack, false) }, nil, "", "tcp_loose"},
	})
}

// TestGatewayOfPod: the address of a bridge is a pod's second one, or its only one.
func TestGatewayOfPod(t *testing.T) {
	with := func(list ...string) func() *testNode {
		return func() *testNode {
			n := kubenet().live()
			p := &n.Pods[0]
			p.Interface, p.Netns, p.Addresses = "eth0", 77, nil
			for _, a := range list {
				p.Addresses = append(p.Addresses, prefix(a))
			}
			d := n.dropOn("", "IP_LOCAL_SOURCE", "ip_rcv_finish_core", "172.20.1.1", pod5, 30)
			d.Netns, d.IfIndex = 77, 2
			return n
		}
	}
	situations(t, []situation{
		{"beside its own", with("172.20.1.5/24", "172.20.1.1/24"), []string{"critical DuplicatePodIP"}, "ip addr del 172.20.1.1/24 dev eth0", "ip link set"},
		{"alone", with("172.20.1.1/24"), []string{"critical DuplicatePodIP"}, "kubectl delete pod", ""},
	})
}
