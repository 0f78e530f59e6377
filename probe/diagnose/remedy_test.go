package diagnose

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// remedy is a node with how the fix of its finding begins, line by line, and what no line of it may have.
type remedy struct {
	name  string
	node  func() *testNode
	code  model.Code
	fix   []string
	never string
}

func remedies(t *testing.T, list []remedy) {
	t.Helper()
	for _, tt := range list {
		t.Run(tt.name, func(t *testing.T) {
			var f model.Finding
			for _, x := range agreed(t, tt.node()) {
				if x.Code == tt.code {
					f = x
				}
			}
			if len(f.Next) > 0 {
				f.Fix = append(f.Fix, "next: "+strings.Join(f.Next, "; "))
			}
			all := strings.Join(f.Fix, "\n")
			ok := len(f.Fix) >= len(tt.fix) && f.Code != ""
			for i := range tt.fix {
				ok = ok && strings.HasPrefix(f.Fix[i], tt.fix[i])
			}
			if !ok || tt.never != "" && strings.Contains(all, tt.never) {
				t.Errorf("%s %s\nfix:\n%s\nwant:\n%s\nnever %q", f.Code, f.Title, all, strings.Join(tt.fix, "\n"), tt.never)
			}
		})
	}
}

// staleBefore is a bridged node with rules for a pod's frames in front of the right one.
func staleBefore(macs ...string) *testNode {
	n := bridged()
	right := n.FrameRules
	n.FrameRules = nil
	for _, m := range macs {
		n.dnat("10.60.0.20", m).Counter.Delta = 0
	}
	n.FrameRules[0].Counter = model.Counter{Packets: 30, Delta: 30}
	n.FrameRules = append(n.FrameRules, right...)
	n.silent("10.60.0.20", out)
	return n
}

// refusing is a node whose chain FORWARD drops what a pod sends, by the first of so many equal rules.
func refusing(rules int) *testNode {
	n := filtered().live()
	for i := range rules {
		n.filter(model.NFT, "FORWARD", uint64(30*max(1-i, 0)), model.PacketRule{Src: to(pod5 + "/32"), Target: "DROP", Text: "-s 172.20.1.5/32 -j DROP"})
	}
	n.refuse("nft_do_chain", pod5, out, 30)
	return n
}

// policed is a node whose chain FORWARD has the policy DROP, and jumps to these chains.
func policed(chains ...string) *testNode {
	n := kubenet()
	n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "DROP", 9)
	for _, c := range chains {
		n.chain(model.NFT, "ip", "filter", c, "", "", 0)
		n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Target: c})
		n.filter(model.NFT, c, 0, model.PacketRule{In: onLink("docker9"), Target: "ACCEPT"})
	}
	n.refuse("nft_do_chain", pod5, out, 9)
	return n
}

// ruledBy is a node whose chain of a pod asks one of a policy, by a rule with a comment, and drops the rest by another.
func ruledBy(chain, policy, asks, drops string) *testNode {
	n := filtered()
	for _, c := range []string{chain, policy} {
		n.chain(model.NFT, "ip", "filter", c, "", "", 0)
	}
	n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Target: chain})
	n.filter(model.NFT, chain, 9, model.PacketRule{Target: policy, Comment: asks})
	n.filter(model.NFT, chain, 9, model.PacketRule{Target: "DROP", Comment: drops})
	n.refuse("nft_do_chain", far, pod5, 9)
	return n
}

// backendLeft is a node on which a chain leads a port to an address that no pod has any more.
func backendLeft(chain string) *testNode {
	n := kubenet()
	n.natRules(model.PacketRule{Chain: chain, Target: "DNAT", To: netip.MustParseAddrPort("172.20.1.77:80"), Text: "-p tcp -j DNAT --to-destination 172.20.1.77:80"})
	n.PacketRules[len(n.PacketRules)-1].Counter.Delta = 9
	n.drop("QUEUE_PURGE", "neigh_invalidate", pod5, "172.20.1.77", 9)
	return n
}

// outdatedFlows is a node with flows of a pod that are older than the rules of their service.
func outdatedFlows(count int) *testNode {
	n := serving(pod6)
	for i := range count {
		n.kept(pod5, virtualIP, virtualIP, pod5, 53, false, 29*time.Second)
		n.Flows[len(n.Flows)-1].Original.SrcPort += uint16(i)
		n.Flows[len(n.Flows)-1].Reply.DstPort += uint16(i)
	}
	n.questions(pod5, virtualIP, none)
	return n
}

// TestRemedies: what a fix does to the tables ends the loss, undoes no program's work, and opens nothing that was closed.
func TestRemedies(t *testing.T) {
	const deadToo = "0e:00:00:00:00:02"
	remedies(t, []remedy{
		{"two stale rules behind each other", func() *testNode { return staleBefore(deadMAC, deadToo) }, "StaleMACRewrite", []string{
			"ebtables-nft -t nat -D PREROUTING -p IPv4 -i nic0 --ip-dst 10.60.0.20 -j dnat --to-dst " + deadMAC,
			"ebtables-nft -t nat -D PREROUTING -p IPv4 -i nic0 --ip-dst 10.60.0.20 -j dnat --to-dst " + deadToo,
		}, "0a:58"},
		{"one stale rule, and the right one behind it", func() *testNode { return staleBefore(deadMAC) }, "StaleMACRewrite", []string{
			"ebtables-nft -t nat -D PREROUTING -p IPv4 -i nic0 --ip-dst 10.60.0.20 -j dnat --to-dst " + deadMAC,
		}, "0a:58"},
		{"the same rule three times", func() *testNode { return refusing(3) }, "PolicyDrop", []string{
			"iptables-nft -t filter -D FORWARD -s 172.20.1.5/32 -j DROP",
			"iptables-nft -t filter -D FORWARD -s 172.20.1.5/32 -j DROP",
			"iptables-nft -t filter -D FORWARD -s 172.20.1.5/32 -j DROP",
		}, ""},
		{"once", func() *testNode { return refusing(1) }, "PolicyDrop", []string{"iptables-nft -t filter -D FORWARD -s 172.20.1.5/32 -j DROP"},
			"\n"},
		{"behind the rule, the chain's policy drops as well", func() *testNode {
			n := refusing(1)
			n.Chains[len(n.Chains)-2].Policy = "DROP"
			return n
		}, "PolicyDrop", []string{"iptables-nft -t filter -D FORWARD -s 172.20.1.5/32 -j DROP", "iptables-nft -t filter -P FORWARD ACCEPT"}, ""},
		{"behind the rule, Docker's policy drops as well", func() *testNode {
			n := policed("DOCKER-USER", "DOCKER-FORWARD")
			n.Chains[1].Counter = model.Counter{}
			n.live().filter(model.NFT, "FORWARD", 9, model.PacketRule{Src: to(pod5 + "/32"), Target: "DROP", Text: "-s 172.20.1.5/32 -j DROP"})
			return n
		}, "PolicyDrop", []string{"iptables-nft -t filter -D FORWARD -s 172.20.1.5/32 -j DROP", "# packets that pass the above end at the policy of filter FORWARD"}, "-P FORWARD"},
		{"two stale answers behind each other", func() *testNode {
			n := bridged()
			n.FrameRules = nil
			n.arpreply("10.60.0.20", deadMAC).Counter = model.Counter{Packets: 9, Delta: 9}
			n.arpreply("10.60.0.20", deadToo)
			return n
		}, "StaleARPReply", []string{
			"ebtables-nft -t nat -D PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.60.0.20 -j arpreply --arpreply-mac " + deadMAC,
			"ebtables-nft -t nat -D PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.60.0.20 -j arpreply --arpreply-mac " + deadToo,
		}, ""},
		{"a stale answer, and the right one behind it", func() *testNode {
			n := bridged()
			n.FrameRules = nil
			n.arpreply("10.60.0.20", deadMAC).Counter = model.Counter{Packets: 9, Delta: 9}
			n.arpreply("10.60.0.20", "0a:58:00:00:00:20")
			return n
		}, "StaleARPReply", []string{
			"ebtables-nft -t nat -D PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.60.0.20 -j arpreply --arpreply-mac " + deadMAC,
		}, "0a:58"},
		{"a blackhole, and no other route behind it", func() *testNode { return discarding10(false) }, "BlackholeRoute",
			[]string{"next: ip route del blackhole 10.99.0.0/16"}, "\n"},
		{"a blackhole, and the default route behind it", func() *testNode { return discarding10(true) }, "BlackholeRoute",
			[]string{"ip route del blackhole 10.99.0.0/16"}, "next"},
		{"Docker's policy", func() *testNode { return policed("DOCKER-USER", "DOCKER-FORWARD") }, "PolicyDrop",
			[]string{"iptables -I DOCKER-USER -s 172.20.1.0/24 -j ACCEPT"}, "-P FORWARD"},
		{"ufw's policy", func() *testNode { return policed("ufw-before-forward") }, "PolicyDrop",
			[]string{"ufw route allow from 172.20.1.0/24"}, "-P FORWARD"},
		{"the policy of a chain in Podman's table", func() *testNode {
			n := kubenet()
			n.chain(model.NFT, "inet", "netavark", "FORWARD", "FORWARD", "DROP", 9)
			n.refuse("nft_do_chain", pod5, out, 9)
			return n
		}, "PolicyDrop", []string{"# Podman manages the rule: "}, "accept"},
		{"kube-router's rule, made from a policy", func() *testNode {
			return ruledBy("KUBE-POD-FW-X", "KUBE-NWPLCY-Y", "run through nw policy shut", "rule to REJECT traffic destined for POD name:web namespace: shop")
		}, "PolicyDrop", []string{"kubectl get networkpolicies -A # kube-router makes its rules from them: shut"}, "iptables"},
		{"Calico's rule, made from a policy", func() *testNode {
			n := ruledBy("cali-tw-cali5", "cali-pi-_abc", "cali:x", "cali:y")
			n.filter(model.NFT, "cali-pi-_abc", 0, model.PacketRule{Dst: to(pod6 + "/32"), Target: "ACCEPT",
				Text: `-m comment --comment "cali:z" -m comment --comment "Policy shop/shut ingress" -j ACCEPT`})
			return n
		}, "PolicyDrop", []string{"kubectl get networkpolicies -A; kubectl get globalnetworkpolicies.crd.projectcalico.org # Calico makes its rules from them: shop/shut"}, "iptables"},
		{"nobody's policy", func() *testNode { return policed() }, "PolicyDrop",
			[]string{"iptables-nft -t filter -P FORWARD ACCEPT"}, "allow"},
		{"firewalld's rule", func() *testNode {
			n := kubenet()
			n.chain(model.NFT, "inet", "firewalld", "filter_FORWARD", "FORWARD", "ACCEPT", 0)
			n.PacketRules = append(n.PacketRules, model.PacketRule{Backend: model.NFT, Family: "inet", Table: "firewalld", Chain: "filter_FORWARD",
				Native: true, Handle: 7, Target: "REJECT", Text: "reject with icmpx admin-prohibited"})
			n.refuse("nft_do_chain", pod5, out, 9)
			return n
		}, "PolicyDrop", []string{"firewall-cmd --permanent --new-policy=pods"}, "nft delete"},
		{"firewalld's rule for the node", func() *testNode {
			n := kubenet()
			n.chain(model.NFT, "inet", "firewalld", "filter_INPUT", "INPUT", "ACCEPT", 0)
			n.PacketRules = append(n.PacketRules, model.PacketRule{Backend: model.NFT, Family: "inet", Table: "firewalld", Chain: "filter_INPUT",
				Native: true, Handle: 7, Target: "REJECT", Text: "reject with icmpx admin-prohibited"})
			n.refuse("nft_do_chain", pod5, "10.50.0.4", 9)
			return n
		}, "PolicyDrop", []string{"firewall-cmd --permanent --new-policy=node"}, "nft delete"},
		{"an agent's masquerade", func() *testNode {
			n := kubenet()
			n.PacketRules = append(n.PacketRules[:1:1], n.PacketRules[3:]...)
			n.translated(pod5, far, far, "10.50.0.4", true)
			return n
		}, "UnexpectedMasquerade", []string{"# ip-masq-agent manages the chain: add 172.20.0.0/16 to nonMasqueradeCIDRs"}, "-I IP-MASQ-AGENT"},
		{"a script's masquerade", func() *testNode {
			n := kubenet()
			n.PacketRules = nil
			n.natRules(model.PacketRule{Chain: "POSTROUTING", Src: to("172.20.1.0/24"), Target: "MASQUERADE", Text: "-s 172.20.1.0/24 -j MASQUERADE"})
			n.translated(pod5, far, far, "10.50.0.4", true)
			return n
		}, "UnexpectedMasquerade", []string{"iptables-nft -t nat -I POSTROUTING -d 172.20."}, "manages"},
		{"a chain that portmap left", func() *testNode { return backendLeft("CNI-DN-0123456789abcdef01234") }, "DeadBackend",
			[]string{"iptables-nft -t nat -D CNI-DN-0123456789abcdef01234 -p tcp -j DNAT"}, "endpointslices"},
		{"a service's endpoint", func() *testNode { return backendLeft("KUBE-SEP-X") }, "DeadBackend",
			[]string{"# kube-proxy manages the rule", "next: kubectl get endpointslices"}, "iptables-nft -t nat -D"},
		{"twenty flows", func() *testNode { return outdatedFlows(20) }, "StaleFlow",
			[]string{"conntrack -D -p udp --orig-src 172.20.1.5 --orig-dst 10.0.0.10 --dport 53 --reply-src 10.0.0.10"}, "\n"},
		{"two flows", func() *testNode { return outdatedFlows(1) }, "StaleFlow",
			[]string{"conntrack -D -p udp --orig-src 172.20.1.5 --orig-dst 10.0.0.10 --sport 40000 --dport 53"}, "\n"},
		{"the ports of an agent's masquerade", func() *testNode { return fewPorts("IP-MASQ-AGENT") }, "SNATPortExhaustion",
			[]string{"# ip-masq-agent manages the rule: "}, "nonMasqueradeCIDRs"},
		{"the ports of a script's masquerade", func() *testNode { return fewPorts("POSTROUTING") }, "SNATPortExhaustion",
			[]string{"iptables-nft -t nat -R POSTROUTING 4 -p tcp -j MASQUERADE --to-ports 1024-65535"}, ""},
		{"a pod sends with an address that is not its own", func() *testNode {
			n := routedNode().live()
			n.sysctl("net.ipv4.conf.tap10.rp_filter", "1")
			n.dropOn("tap10", "IP_RPFILTER", "ip_rcv_finish_core", "198.51.100.7", "10.60.0.21", 30)
			return n
		}, "ReversePathFilter", nil, "rp_filter="},
		{"a pod sends with the address of another pod", func() *testNode {
			n := routedNode().live()
			n.sysctl("net.ipv4.conf.tap10.rp_filter", "1")
			n.dropOn("tap10", "IP_RPFILTER", "ip_rcv_finish_core", "10.60.0.21", out, 30)
			return n
		}, "ReversePathFilter", nil, "rp_filter="},
		{"a pod that was given the node's own address", func() *testNode { return addressTwice("ens5") }, "DuplicatePodIP",
			[]string{"kubectl delete pod POD"}, "addr del"},
		{"a link of the node that was left with a pod's address", func() *testNode { return addressTwice("old0") }, "DuplicatePodIP",
			[]string{"ip addr del 10.50.0.4/16 dev old0"}, "delete pod"},
		{"a second address of the NIC", func() *testNode {
			n := addressTwice("old0")
			n.Links[0].Addresses = append(n.Links[0].Addresses, prefix("10.50.0.4/32"))
			n.Links = n.Links[:len(n.Links)-1]
			return n
		}, "DuplicatePodIP", []string{"ip addr del 10.50.0.4/32 dev ens5"}, "delete pod"},
		{"a pod's entry that somebody announces with another MAC", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", deadMAC, 10, "REACHABLE")
			n.arp("10.60.0.20", 10, model.Ingress, true, deadMAC, 20)
			n.drop("OTHERHOST", "ip_rcv_core", "203.0.113.9", "10.60.0.20", 30).DstMAC = mac(deadMAC)
			return n
		}, "DuplicatePodIP", []string{"# find the machine with the MAC " + deadMAC + " behind tap10"}, "neigh del"},
		{"a pod's entry that another pod announces with its MAC", func() *testNode {
			n := podBridge().inNamespaces().announces(2, pod5, 20)
			n.neighbor(pod5, n.Pods[2].MAC.String(), 3, "REACHABLE")
			n.frames(pod5, 3, model.Egress, model.AsDestination, n.Pods[2].MAC.String(), 30)
			return n
		}, "StaleNeighbor", []string{"ip neigh replace 172.20.1.5 lladdr 0a:58:00:00:00:05 dev br-pods nud permanent",
			"next: tcpdump -c 3 -eni tap12 ether src 0a:58:00:00:00:07 # find what announces 172.20.1.5"}, ""},
		{"a pod's entry that nobody announces", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", deadMAC, 10, "PERMANENT")
			n.drop("OTHERHOST", "ip_rcv_core", "203.0.113.9", "10.60.0.20", 30).DstMAC = mac(deadMAC)
			return n
		}, "StaleNeighbor", []string{"ip neigh del 10.60.0.20 dev tap10"}, "\n"},
		{"a pod that does not answer ARP", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", "", 10, "FAILED")
			n.drop("NEIGH_FAILED", "neigh_invalidate", "203.0.113.9", "10.60.0.20", 5)
			return n
		}, "StaleNeighbor", nil, "neigh replace"},
		{"replies that come by another link than the requests left", func() *testNode {
			n := kubenet().live()
			n.Links = append(n.Links, model.Link{Index: 4, Name: "ens6", MAC: mac("00:0d:3a:00:00:02"), Up: true, Carrier: true,
				Role: model.RoleUplink, Addresses: []netip.Prefix{prefix("192.168.7.4/24")}})
			n.sysctl("net.ipv4.conf.ens6.rp_filter", "1")
			n.silent(pod5, out)
			n.dropOn("ens6", "IP_RPFILTER", "ip_rcv_finish_core", out, pod5, 30)
			return n
		}, "ReversePathFilter", []string{"sysctl -w net.ipv4.conf.ens6.rp_filter=2"}, ""},
	})
}

// discarding10 is a node that discards what pods send to a range, with or without a default route.
func discarding10(beyond bool) *testNode {
	n := kubenet().live()
	if !beyond {
		n.unroute("0.0.0.0/0")
	}
	n.route(model.Route{Dst: prefix("10.99.0.0/16"), Type: "blackhole"})
	n.dropOn("br-pods", "NOT_SPECIFIED", "ip_error", pod5, "10.99.0.7", 30)
	return n
}

// addressTwice is a node with a pod that has the address of a link.
func addressTwice(link string) *testNode {
	n := kubenet().live()
	n.pod("10.50.0.4", "0a:58:00:00:00:07", 3)
	n.live()
	if link != n.Links[0].Name {
		n.Links = append(n.Links, model.Link{Index: 50, Name: link, Kind: "dummy", MAC: mac("0a:00:00:00:00:50"), Up: true, Carrier: true,
			Addresses: n.Links[0].Addresses})
		n.Links[0].Addresses = []netip.Prefix{prefix("10.50.0.9/16")}
	}
	n.dropOn("br-pods", "IP_LOCAL_SOURCE", "ip_rcv_finish_core", "10.50.0.4", out, 30)
	return n
}

// fewPorts is a node whose masquerading gives twenty ports, which are all in use.
func fewPorts(chain string) *testNode {
	n := kubenet()
	n.PacketRules[3].Chain, n.PacketRules[3].Proto, n.PacketRules[3].Number = chain, tcp, 4
	n.PacketRules[3].ToPorts, n.PacketRules[3].Text = model.PortRange{First: 61000, Last: 61019}, "-p tcp -j MASQUERADE --to-ports 61000-61019"
	for i := range 20 {
		n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start, Replied: true, State: "ESTABLISHED",
			Original: model.Tuple{Src: addr(pod5), Dst: addr(out), SrcPort: uint16(40000 + i), DstPort: 443},
			Reply:    model.Tuple{Src: addr(out), Dst: addr("10.50.0.4"), SrcPort: 443, DstPort: uint16(61000 + i)}})
	}
	n.Conntrack.InsertFailed, n.Conntrack.Drop = 7, 7
	return n
}
