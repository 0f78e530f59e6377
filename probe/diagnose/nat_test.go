package diagnose

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// chain adds a base chain of a filter table.
func (n *testNode) chain(b model.Backend, family, table, name, hook, policy string, delta uint64) {
	n.Chains = append(n.Chains, model.Chain{Backend: b, Family: family, Table: table, Name: name, Hook: hook, Policy: policy,
		Counter: model.Counter{Packets: delta, Delta: delta}})
}

// filter adds a rule of iptables' filter table that counted so many packets.
func (n *testNode) filter(b model.Backend, chain string, delta uint64, r model.PacketRule) *model.PacketRule {
	r.Backend, r.Family, r.Table, r.Chain, r.Number = b, "ip", "filter", chain, len(n.PacketRules)+1
	r.Counter = model.Counter{Packets: delta, Delta: delta}
	if r.Text == "" {
		r.Text = "-j " + r.Target
	}
	n.PacketRules = append(n.PacketRules, r)
	return &n.PacketRules[len(n.PacketRules)-1]
}

// filtered is a kubenet node with a FORWARD chain in both backends.
func filtered() *testNode {
	n := kubenet()
	n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
	n.chain(model.Legacy, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
	return n
}

func (n *testNode) refuse(location, src, dst string, packets uint64) *model.Drop {
	d := n.drop("NETFILTER_DROP", location, src, dst, packets)
	d.Proto, d.Link = 6, "ens5"
	return d
}

func to(s string) model.AddrMatch       { return model.AddrMatch{Prefix: prefix(s)} }
func onLink(s string) model.IfMatch     { return model.IfMatch{Name: s} }
func onPort(p uint16) []model.PortRange { return []model.PortRange{{First: p, Last: p}} }

const (
	pod5, pod6 = "172.20.1.5", "172.20.1.6"
	far        = "172.20.2.9"
	out        = "203.0.113.9"
)

func TestPolicyDrop(t *testing.T) {
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"one rule for a pod", func() *testNode {
			n := filtered()
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: to(pod5 + "/32"), Target: "DROP"})
			n.refuse("nft_do_chain", far, pod5, 9)
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"a rule that counted nothing dropped nothing", func() *testNode {
			n := filtered()
			n.filter(model.NFT, "FORWARD", 0, model.PacketRule{Dst: to(pod5 + "/32"), Target: "DROP"})
			n.refuse("nft_do_chain", far, pod5, 9)
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.5 172.20.2.9"}},
		{"a rule written anew at the end dropped before that", func() *testNode {
			n := filtered()
			n.filter(model.NFT, "FORWARD", 0, model.PacketRule{Dst: to(pod5 + "/32"), Target: "DROP"}).Counter.Restarted = true
			n.refuse("nft_do_chain", far, pod5, 9)
			return n
		}, []string{"PolicyDrop likely 172.20.1.5 172.20.2.9"}},
		{"a chain that only a map leads to, by its counter", func() *testNode {
			n := filtered()
			native := func(chain, map_, target string, delta uint64) {
				r := n.filter(model.NFT, chain, delta, model.PacketRule{Target: target, Map: map_})
				r.Table, r.Native, r.Counter.Kept = "site", true, true
			}
			n.chain(model.NFT, "ip", "site", "base", "FORWARD", "ACCEPT", 0)
			n.chain(model.NFT, "ip", "site", "of-a-pod", "", "", 0)
			native("base", "by-link", "", 0)
			native("base", "", "DROP", 0)
			native("of-a-pod", "", "DROP", 9)
			n.refuse("nft_do_chain", far, pod5, 9)
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"maps in very many chains, as kube-proxy has them", func() *testNode {
			n := filtered()
			n.chain(model.NFT, "ip", "site", "base", "FORWARD", "ACCEPT", 0)
			native := func(chain string, r model.PacketRule, delta uint64) {
				p := n.filter(model.NFT, chain, delta, r)
				p.Table, p.Native, p.Counter.Kept = "site", true, true
			}
			native("base", model.PacketRule{Map: "services"}, 0)
			for i := range 2000 {
				name := fmt.Sprintf("of-service-%d", i)
				n.chain(model.NFT, "ip", "site", name, "", "", 0)
				native(name, model.PacketRule{Map: "endpoints"}, 0)
				native(name, model.PacketRule{Target: "DROP"}, uint64(i/1999*9))
			}
			n.refuse("nft_do_chain", far, pod5, 9)
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"both rules for links that are not known, one cause", func() *testNode {
			n := filtered()
			for _, c := range []string{"cali-from-wl-dispatch", "cali-to-wl-dispatch"} {
				n.chain(model.NFT, "ip", "filter", c, "", "", 0)
				jump := model.PacketRule{Target: c, In: onLink("tap+")}
				if c == "cali-to-wl-dispatch" {
					jump.In, jump.Out = jump.Out, jump.In
				}
				n.filter(model.NFT, "FORWARD", 9, jump)
				n.filter(model.NFT, c, 9, model.PacketRule{Target: "DROP", Comment: "cali:x Unknown interface"})
			}
			n.refuse("nft_do_chain", far, pod5, 9)
			n.refuse("nft_do_chain", pod5, far, 9).Link = "tap10"
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"two rules, told apart by their matches", func() *testNode {
			n := filtered()
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: to(pod5 + "/32"), Target: "DROP"})
			n.filter(model.NFT, "FORWARD", 20, model.PacketRule{Src: to(pod6 + "/32"), Proto: 6, Target: "REJECT"})
			n.refuse("nft_do_chain", far, pod5, 9)
			n.refuse("nft_do_chain", pod6, out, 20).Link = "br-pods"
			return n
		}, []string{"PolicyDrop proven 172.20.1.6 203.0.113.9", "PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"two rules, told apart by what they counted", func() *testNode {
			n := filtered()
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Proto: 6, DstPorts: onPort(80), Target: "DROP"})
			n.filter(model.NFT, "FORWARD", 20, model.PacketRule{Proto: 6, DstPorts: onPort(443), Target: "DROP", Text: "-p tcp --dport 443 -j DROP"})
			n.refuse("nft_do_chain", far, pod5, 9)
			n.refuse("nft_do_chain", far, pod6, 20)
			return n
		}, []string{"PolicyDrop proven 172.20.1.6 172.20.2.9", "PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"the backend is told by where it drops", func() *testNode {
			n := filtered()
			n.filter(model.Legacy, "FORWARD", 7, model.PacketRule{Dst: to("172.20.1.0/24"), Target: "DROP"})
			n.filter(model.NFT, "FORWARD", 8, model.PacketRule{Dst: to("172.20.1.0/24"), Target: "DROP"})
			n.refuse("nf_hook_slow", far, pod5, 7)
			n.refuse("nft_do_chain", far, pod6, 8)
			return n
		}, []string{"PolicyDrop proven 172.20.1.6 172.20.2.9", "PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"through jumps by link", func() *testNode {
			n := filtered()
			for _, c := range []string{"cali-from", "cali-fw-a", "cali-fw-b"} {
				n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "filter", Name: c})
			}
			n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Target: "cali-from"})
			n.filter(model.NFT, "cali-from", 20, model.PacketRule{In: onLink("tap10"), Target: "cali-fw-a", Goto: true})
			n.filter(model.NFT, "cali-from", 20, model.PacketRule{In: onLink("tap11"), Target: "cali-fw-b", Goto: true})
			n.filter(model.NFT, "cali-fw-a", 20, model.PacketRule{Target: "DROP"})
			n.filter(model.NFT, "cali-fw-b", 20, model.PacketRule{Target: "ACCEPT"})
			n.refuse("nft_do_chain", pod5, pod6, 20).Link = "tap10"
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.1.6"}},
		{"chains in a ring", func() *testNode {
			n := filtered()
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "filter", Name: "A"})
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Target: "A"})
			n.filter(model.NFT, "A", 9, model.PacketRule{Target: "A"})
			n.filter(model.NFT, "A", 9, model.PacketRule{Dst: to(pod5 + "/32"), Target: "DROP"})
			n.refuse("nft_do_chain", far, pod5, 9)
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"the policy of FORWARD", func() *testNode {
			n := kubenet()
			n.chain(model.Legacy, "ip", "filter", "FORWARD", "FORWARD", "DROP", 30)
			n.refuse("nf_hook_slow", pod5, out, 10).Link = "br-pods"
			n.refuse("nf_hook_slow", out, pod6, 20)
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.1.6 203.0.113.9"}},
		{"nft's own rule without a counter", func() *testNode {
			n := kubenet()
			n.chain(model.NFT, "inet", "site", "fw", "FORWARD", "ACCEPT", 0)
			r := n.filter(model.NFT, "fw", 0, model.PacketRule{Dst: to(pod5 + "/32"), Target: "DROP", Text: "ip daddr 172.20.1.5 drop"})
			r.Family, r.Table, r.Native, r.Handle = "inet", "site", true, 4
			n.refuse("nft_do_chain", far, pod5, 9)
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"a bridge rule", func() *testNode {
			n := filtered()
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "bridge", Table: "filter", Name: "FORWARD", Hook: "FORWARD", Policy: "ACCEPT"})
			r := n.frameRule(model.FrameRule{EtherType: 0x0800, IPDst: to(pod5 + "/32"), Target: model.TargetDrop})
			r.Table, r.Chain, r.Counter = "filter", "FORWARD", model.Counter{Packets: 9, Delta: 9}
			n.refuse("nft_do_chain", pod6, pod5, 9).Link = "tap10"
			return n
		}, []string{"BridgeRuleDrop proven 172.20.1.5 172.20.1.6"}},
		{"AKS's own bans", func() *testNode {
			n := filtered()
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: to("168.63.129.16/32"), Proto: 6, DstPorts: onPort(80), Target: "DROP"})
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: to("169.254.169.254/32"), Target: "REJECT", Comment: "AKS managed: metadata"})
			n.refuse("nft_do_chain", pod5, "168.63.129.16", 9)
			n.refuse("nft_do_chain", pod5, "169.254.169.254", 9)
			return n
		}, nil},
		{"AKS's own ban, written anew in the window", func() *testNode {
			n := filtered()
			r := n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: to("168.63.129.16/32"), Proto: 6, DstPorts: onPort(80), Target: "DROP"})
			r.Counter = model.Counter{Packets: 2, Restarted: true}
			n.refuse("nft_do_chain", pod5, "168.63.129.16", 9)
			return n
		}, nil},
		{"a ban of the wire server's DNS is nobody's design", func() *testNode {
			n := filtered()
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: to("168.63.129.16/32"), Proto: 17, DstPorts: onPort(53), Target: "DROP"})
			n.refuse("nft_do_chain", pod5, "168.63.129.16", 9).Proto = 17
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 168.63.129.16"}},
		{"the rules are unread", func() *testNode {
			n := filtered()
			n.lose(model.SourceNAT, model.Missing)
			n.refuse("nft_do_chain", far, pod5, 9)
			return n
		}, []string{"PolicyDrop likely 172.20.1.5 172.20.2.9"}},
		{"rules in the pod's own namespace", func() *testNode {
			n := filtered()
			n.Pods[0].Netns = 77
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Target: "DROP"})
			n.refuse("nft_do_chain", far, pod5, 9).Netns = 77
			return n
		}, []string{"PolicyDrop likely 172.20.1.5 172.20.2.9"}},
		{"a new pod whose policy was not yet written", func() *testNode {
			n := filtered()
			n.Pods[0].Since = start.Add(4 * time.Second)
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Target: "DROP"})
			n.refuse("nft_do_chain", pod5, out, 9).Last = start.Add(5 * time.Second)
			return n
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestBridgedCopies: kube-proxy's rule for invalid packets meets the copies of
// what a promiscuous bridge took to the pod, and what was for the node.
func TestBridgedCopies(t *testing.T) {
	invalid := func(promisc bool, to string) *testNode {
		n := filtered()
		n.Links[1].Promisc = promisc
		n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Unknown: []string{"ctstate INVALID"}, Target: "DROP", Text: "-m conntrack --ctstate INVALID -j DROP"})
		d := n.refuse("nft_do_chain", pod6, pod5, 40)
		d.IfIndex, d.Link, d.DstMAC = 3, "br-pods", mac(to)
		return n
	}
	own, bridge := "0a:58:00:00:00:05", "0a:00:00:00:00:03"
	want := []string{"PolicyDrop proven 172.20.1.5 172.20.1.6 172.20.1.5 172.20.1.6"}
	verdicts(t, invalid(true, own), nil)
	verdicts(t, invalid(true, bridge), want)
	verdicts(t, invalid(false, own), want)
}

func TestPolicyDropOwner(t *testing.T) {
	tests := []struct {
		chain, comment, owner, fix string
	}{
		{"FORWARD", "", "no program that lasthop knows", "iptables-nft -t filter -D FORWARD -j DROP # unless this is intended"},
		{"FORWARD", "cali:abc", "Calico", "kubectl get networkpolicies -A; kubectl get globalnetworkpolicies.crd.projectcalico.org # Calico makes its rules from them"},
		{"AZURE-NPM-EGRESS-DROPS", "", "Azure Network Policy Manager", "kubectl get networkpolicies -A # Azure Network Policy Manager makes its rules from them"},
		{"IP-MASQ-AGENT", "", "ip-masq-agent",
			"# ip-masq-agent manages the rule: change nonMasqueradeCIDRs: kubectl -n kube-system edit configmap ip-masq-agent # AKS: azure-ip-masq-agent-config"},
		{"DOCKER-ISOLATION-STAGE-2", "", "Docker", "iptables -I DOCKER-USER -s 172.20.1.0/24 -j ACCEPT; iptables -I DOCKER-USER -d 172.20.1.0/24 -j ACCEPT # Docker leaves this chain to you"},
		{"NETAVARK_FORWARD", "", "Podman", "# Podman manages the rule: change the configuration of Podman"},
		{"DOCKER-USER", "", "no program that lasthop knows", "iptables-nft -t filter -D DOCKER-USER -j DROP # unless this is intended"},
		{"KUBE-EXTERNAL-SERVICES", "shop/cart:http has no endpoints", "kube-proxy rejects packets from 172.20.1.5 to the service shop/cart", "kubectl -n shop get endpointslices -l kubernetes.io/service-name=cart"},
	}
	for _, tt := range tests {
		n := filtered()
		if tt.chain != "FORWARD" {
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "filter", Name: tt.chain})
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Target: tt.chain})
		}
		n.filter(model.NFT, tt.chain, 9, model.PacketRule{Target: "DROP", Comment: tt.comment})
		n.refuse("nft_do_chain", far, pod5, 9)
		found := agreed(t, n)
		if len(found) != 1 || !strings.Contains(found[0].Why, tt.owner) || steps(found[0])[0] != tt.fix {
			t.Errorf("%s %q: got %+v", tt.chain, tt.comment, found)
		}
	}
}

func TestPolicyDropFix(t *testing.T) {
	n := kubenet()
	n.chain(model.Legacy, "ip", "filter", "FORWARD", "FORWARD", "DROP", 9)
	n.refuse("nf_hook_slow", far, pod5, 9)
	if got, want := Diagnose(&n.Snapshot)[0].Fix[0], "iptables-legacy -t filter -P FORWARD ACCEPT # unless this is intended"; got != want {
		t.Errorf("fix\n got %s\nwant %s", got, want)
	}
	n = kubenet()
	n.chain(model.NFT, "inet", "site", "fw", "FORWARD", "DROP", 0)
	n.refuse("nft_do_chain", far, pod5, 9)
	if got, want := Diagnose(&n.Snapshot)[0].Fix[0], "nft chain inet site fw '{ policy accept; }' # unless this is intended"; got != want {
		t.Errorf("fix\n got %s\nwant %s", got, want)
	}
}

// translated adds a flow with the address that its source was given.
func (n *testNode) translated(src, dst, backend, as string, replied bool) *model.Flow {
	n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start, Replied: replied,
		Original: model.Tuple{Src: addr(src), Dst: addr(dst), SrcPort: uint16(40000 + len(n.Flows)), DstPort: 80},
		Reply:    model.Tuple{Src: addr(backend), Dst: addr(as), SrcPort: 80, DstPort: uint16(40000 + len(n.Flows))}})
	return &n.Flows[len(n.Flows)-1]
}

func TestUnexpectedMasquerade(t *testing.T) {
	all := func() *testNode {
		n := kubenet()
		n.PacketRules = slices.Delete(n.PacketRules, 1, 3)
		n.translated(pod5, far, far, "10.50.0.4", true)
		n.translated(pod6, far, far, "10.50.0.4", true)
		return n
	}
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"no exclusion is left", all, []string{"UnexpectedMasquerade proven 172.20.1.5 172.20.1.6 172.20.2.9"}},
		{"each pod has a rule of its own, in one chain", func() *testNode {
			n := all()
			n.PacketRules = n.PacketRules[:1]
			n.natRules(
				model.PacketRule{Chain: "IP-MASQ-AGENT", Src: model.AddrMatch{Prefix: model.Host(addr(pod5))}, Target: "MASQUERADE"},
				model.PacketRule{Chain: "IP-MASQ-AGENT", Src: model.AddrMatch{Prefix: model.Host(addr(pod6))}, Target: "MASQUERADE"},
			)
			return n
		}, []string{"UnexpectedMasquerade proven 172.20.1.5 172.20.1.6 172.20.2.9"}},
		{"towards the outside it is right", func() *testNode {
			n := kubenet()
			n.translated(pod5, out, out, "10.50.0.4", true)
			return n
		}, nil},
		{"a service that leads to a pod may translate", func() *testNode {
			n := all()
			n.Flows = nil
			n.translated(pod5, "10.0.0.10", far, "10.50.0.4", true)
			return n
		}, nil},
		{"an old flow outlives the rule", func() *testNode {
			n := kubenet()
			n.translated(pod5, far, far, "10.50.0.4", true).Start = time.Time{}
			return n
		}, nil},
		{"the rules are unread", func() *testNode {
			n := all()
			n.PacketRules = nil
			n.lose(model.SourceNAT, model.Missing)
			return n
		}, nil}, // It may be the CNI plugins' own.
		{"pods of the node's subnet", func() *testNode {
			n := bridged()
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "nat", Name: "POSTROUTING", Hook: "POSTROUTING", Priority: 100})
			n.natRules(model.PacketRule{Chain: "POSTROUTING", Target: "MASQUERADE", Text: "-j MASQUERADE"})
			n.translated("10.60.0.20", "10.60.9.9", "10.60.9.9", "10.60.0.4", true)
			return n
		}, []string{"UnexpectedMasquerade likely 10.60.0.20 10.60.9.9"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// head is the start of an IPv4 packet.
func head(proto uint8, dstPort uint16, flags byte) []byte {
	h := make([]byte, 40)
	h[0], h[9] = 0x45, proto
	h[22], h[23], h[33] = byte(dstPort>>8), byte(dstPort), flags
	return h
}

// sampled takes a sample of a drop; a header without addresses gets the drop's.
func (n *testNode) sampled(d *model.Drop, h []byte) {
	switch {
	case !d.Src.IsValid() || !d.Dst.IsValid() || !bytes.Equal(h[12:20], make([]byte, 8)):
	case d.Src.Is4():
		copy(h[12:], append(d.Src.AsSlice(), d.Dst.AsSlice()...))
	case h[0]>>4 == 6:
		copy(h[8:], append(d.Src.AsSlice(), d.Dst.AsSlice()...))
	default:
		h = slices.Concat([]byte{0x60, 0, 0, 0, 0, 0, h[9], 64}, d.Src.AsSlice(), d.Dst.AsSlice(), h[20:])
	}
	n.Traffic.Samples = append(n.Traffic.Samples, model.Sample{Src: d.Src, Dst: d.Dst, Reason: d.Reason, Netns: d.Netns, IfIndex: d.IfIndex, Head: h})
}

func TestDelivered(t *testing.T) {
	in := func(n *testNode) *testNode {
		n.Pods[0].Netns = 77
		return n
	}
	// unheard is a node whose pod gets segments to a port that no socket has.
	unheard := func(reason model.Reason, port uint16, flags byte) func() *testNode {
		return func() *testNode {
			n := in(kubenet())
			d := n.drop(reason, "tcp_v4_rcv", far, pod5, 9)
			d.Netns, d.Proto = 77, 6
			n.sampled(d, head(6, port, flags))
			return n
		}
	}
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"a closed port", unheard("NO_SOCKET", 8080, 2), []string{"NoListener proven 172.20.1.5 172.20.2.9"}},
		{"a closed port, before Linux 5.17", unheard("", 8080, 2), []string{"NoListener proven 172.20.1.5 172.20.2.9"}},
		{"the last segments of connections, before Linux 5.17", unheard("", 8080, 0x11), nil},
		{"a closed port of the node", func() *testNode {
			n := kubenet()
			d := n.drop("NO_SOCKET", "tcp_v4_rcv", pod5, "10.50.0.4", 9)
			d.Proto = tcp
			n.sampled(d, head(tcp, 9100, 2))
			return n
		}, []string{"NoListener proven 172.20.1.5 10.50.0.4"}},
		{"late segments are no questions", unheard("NO_SOCKET", 8080, 0x10), nil},
		{"nor are answers to a client that has given up", unheard("NO_SOCKET", 53086, 0x12), nil},
		{"a full buffer", func() *testNode {
			n := in(kubenet())
			n.drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", far, pod5, 9).Netns = 77
			n.drop("PROTO_MEM", "udp_queue_rcv_one_skb", pod6, pod5, 9).Netns = 77
			return n
		}, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.6 172.20.2.9"}},
		{"a full queue of new connections", func() *testNode {
			n := in(kubenet())
			n.drop("TCP_LISTEN_OVERFLOW", "tcp_check_req", far, pod5, 9).Netns = 77
			return n
		}, []string{"ReceiveOverflow proven 172.20.1.5 172.20.2.9"}},
		{"the same, of handshakes with SYN cookies", func() *testNode {
			n := in(kubenet())
			n.drop("NO_SOCKET", "cookie_v4_check", far, pod5, 9).Netns = 77
			return n
		}, []string{"ReceiveOverflow proven 172.20.1.5 172.20.2.9"}},
		{"answers to a ping with a raw socket", func() *testNode {
			n := in(kubenet())
			for _, location := range []string{"ping_rcv", "raw_rcv", "icmp_rcv", "icmpv6_rcv"} {
				n.drop("NO_SOCKET", location, far, pod5, 20).Netns = 77
			}
			return n
		}, nil},
		{"groups that nobody has joined, and calls to all", func() *testNode {
			n := in(kubenet())
			n.drop("NOT_SPECIFIED", "ip_rcv_finish_core", pod5, "224.0.0.251", 20)
			n.drop("NOT_SPECIFIED", "ip_rcv_finish_core", pod5, "239.255.255.250", 20).Netns = 77
			n.drop("NOT_SPECIFIED", "__udp4_lib_rcv", pod5, "255.255.255.255", 20)
			n.drop("", "__udp4_lib_rcv", pod5, "172.20.1.255", 20)
			return n
		}, nil},
		{"a pod went, and its route", func() *testNode {
			n := in(kubenet())
			n.PastPods = []model.Pod{{Addresses: []netip.Prefix{prefix("172.20.1.77/32")}}}
			n.dropOn("br-pods", "NOT_SPECIFIED", "ip_error", pod5, "172.20.1.77", 9)
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", pod6, "172.20.1.77", 9)
			return n
		}, nil},
		{"a group is not routed", func() *testNode {
			n := in(kubenet())
			n.drop("IP_INNOROUTES", "ip_error", pod5, "239.1.2.3", 20)
			n.drop("NOT_SPECIFIED", "ip_rcv_finish_core", pod5, "172.20.2.255", 20)
			return n
		}, []string{
			"UnexplainedDrop proven 172.20.1.5 172.20.2.255",
			"UnexplainedDrop proven 172.20.1.5 239.1.2.3",
		}},
		{"one packet is nothing", func() *testNode {
			n := in(kubenet())
			n.drop("NO_SOCKET", "__udp4_lib_rcv", far, pod5, 1).Netns = 77
			return n
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestDropCauses: a drop that a finding is about is not one that is expected.
func TestDropCauses(t *testing.T) {
	n := kubenet()
	n.Pods[0].Netns = 77
	n.drop("TCP_LISTEN_OVERFLOW", "tcp_check_req", far, pod5, 9).Netns = 77
	n.drop("TCP_OLD_DATA", "tcp_rcv_established", far, pod5, 9).Netns = 77
	n.drop("SKB_CSUM", "ip_rcv_core", far, pod5, 2)
	causes := Judge(&n.Snapshot).Causes
	if want := []model.DropCause{{Code: "ReceiveOverflow", Object: "f.Pods=[" + pod5 + "]"}, {Ordinary: loss.Delivered}, {Ordinary: model.ExcusedFew}}; !slices.Equal(causes, want) {
		t.Errorf("causes %+v, want %+v", causes, want)
	}
}

func TestDeadBackend(t *testing.T) {
	dead := func(n *testNode) *testNode {
		n.translated(pod5, "10.0.0.10", "172.20.1.77", pod5, false)
		n.translated(pod5, "10.0.0.10", "172.20.1.77", pod5, false)
		return n
	}
	rule := model.PacketRule{Chain: "KUBE-SEP-X", Target: "DNAT", To: netip.MustParseAddrPort("172.20.1.77:80"), Text: "-j DNAT"}
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"a rule leads there", func() *testNode {
			n := dead(kubenet())
			n.natRules(rule)
			n.drop("NEIGH_FAILED", "neigh_invalidate", pod5, "172.20.1.77", 2)
			n.drop("QUEUE_PURGE", "neigh_invalidate", pod5, "172.20.1.77", 9)
			return n
		}, []string{"DeadBackend proven 172.20.1.5 10.0.0.10 172.20.1.77"}},
		{"no flow was entered", func() *testNode {
			n := kubenet()
			n.natRules(rule)
			n.PacketRules[len(n.PacketRules)-1].Counter.Delta = 9
			n.drop("QUEUE_PURGE", "neigh_invalidate", pod5, "172.20.1.77", 9)
			return n
		}, []string{"DeadBackend proven 172.20.1.5 172.20.1.77"}},
		{"no flow was entered, and the rule does not count", func() *testNode {
			n := kubenet()
			n.natRules(rule)
			n.drop("QUEUE_PURGE", "neigh_invalidate", pod5, "172.20.1.77", 9)
			return n
		}, []string{"DeadBackend proven 172.20.1.5 172.20.1.77"}},
		{"a rule leads there, and nobody asks", func() *testNode {
			n := kubenet()
			n.natRules(rule)
			return n
		}, nil},
		{"only flows remember it", func() *testNode { return dead(kubenet()) },
			[]string{"DeadBackend likely 172.20.1.5 10.0.0.10 172.20.1.77"}},
		{"a flow from before the window goes on", func() *testNode {
			n := kubenet()
			n.translated(pod5, "10.0.0.10", "172.20.1.77", pod5, false).Start = time.Time{}
			n.peer(pod5, "172.20.1.77", model.PeerCount{Packets: 40, Other: 40}, none)
			return n
		}, []string{"DeadBackend likely 172.20.1.5 10.0.0.10 172.20.1.77"}},
		{"a flow from before the window, and no packet", func() *testNode {
			n := kubenet()
			n.translated(pod5, "10.0.0.10", "172.20.1.77", pod5, false).Start = time.Time{}
			return n
		}, nil},
		{"its pod went away in the window", func() *testNode {
			n := dead(kubenet())
			n.PastPods = []model.Pod{{Addresses: []netip.Prefix{prefix("172.20.1.77/32")}}}
			return n
		}, nil},
		{"it answers", func() *testNode {
			n := dead(kubenet())
			n.translated(pod5, "10.0.0.10", "172.20.1.77", pod5, true)
			return n
		}, nil},
		{"a route that keeps the pods' range together discards what is for none", func() *testNode {
			n := kubenet()
			n.natRules(rule)
			n.PacketRules[len(n.PacketRules)-1].Counter.Delta = 9
			n.unroute("172.20.1.0/24")
			n.route(model.Route{Dst: prefix("172.20.1.0/24"), Type: "blackhole", Protocol: "bird"})
			n.Links[1].Addresses = nil
			n.dropOn(n.Pods[0].Link, "NOT_SPECIFIED", "ip_error", pod5, "172.20.1.77", 9)
			return n
		}, []string{"DeadBackend likely 172.20.1.5 172.20.1.77"}},
		{"a backend on another node is not ours to judge", func() *testNode {
			n := kubenet()
			n.translated(pod5, "10.0.0.10", far, pod5, false)
			n.translated(pod5, "10.0.0.10", far, pod5, false)
			return n
		}, nil},
		{"the pods are unread", func() *testNode {
			n := dead(kubenet())
			n.lose(model.SourcePods, model.Partial)
			return n
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestDeadBackendNamesRule wants the rule in the sentence that says what happens.
func TestDeadBackendNamesRule(t *testing.T) {
	n := kubenet()
	n.natRules(model.PacketRule{Chain: "KUBE-SEP-X", Number: 2, Target: "DNAT", To: netip.MustParseAddrPort("172.20.1.77:80"), Text: "-j DNAT"})
	n.translated(pod5, "10.0.0.10", "172.20.1.77", pod5, false)
	n.translated(pod5, "10.0.0.10", "172.20.1.77", pod5, false)
	if why := Diagnose(&n.Snapshot)[0].Why; !strings.Contains(why, "translated to 172.20.1.77 by nat KUBE-SEP-X rule 2") {
		t.Error(why)
	}
}

func TestSNATPortExhaustion(t *testing.T) {
	add := func(n *testNode, to string, ports uint16, state string) {
		for i := range ports {
			f := n.translated(pod5, to, to, "10.50.0.4", true)
			f.Reply.DstPort, f.State, f.Start = 61000+i, state, time.Time{}
		}
	}
	flows := func(ports uint16, failed uint64) *testNode {
		n := kubenet()
		n.PacketRules[3].ToPorts = model.PortRange{First: 61000, Last: 61019}
		add(n, out, ports, "ESTABLISHED")
		n.Conntrack.InsertFailed, n.Conntrack.Drop = failed, failed
		return n
	}
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"all ports are held and insertions fail", func() *testNode { return flows(20, 7) }, []string{"SNATPortExhaustion proven 172.20.1.5 203.0.113.9"}},
		{"nearly all ports are held", func() *testNode { return flows(19, 0) }, []string{"SNATPortExhaustion likely 172.20.1.5 203.0.113.9"}},
		{"nearly all ports are held, and insertions of others fail", func() *testNode { return flows(19, 7) }, []string{"SNATPortExhaustion likely 172.20.1.5 203.0.113.9"}},
		{"half of the ports are held", func() *testNode { return flows(10, 7) }, nil},
		{"the three ports of a rule are held, and entries of its flows are refused", func() *testNode {
			n := flows(3, 7)
			n.PacketRules[3].ToPorts.Last = 61002
			n.drop("NETFILTER_DROP", "nf_hook_slow", pod5, out, 7).Proto = tcp
			return n
		}, []string{"SNATPortExhaustion proven 172.20.1.5 203.0.113.9"}},
		{"the three ports of a rule are held by whom they are for", func() *testNode {
			n := flows(3, 0)
			n.PacketRules[3].ToPorts.Last = 61002
			return n
		}, nil},
		{"as many flows of the whole range", func() *testNode {
			n := flows(20, 7)
			n.PacketRules[3].ToPorts = model.PortRange{}
			return n
		}, nil},
		{"one destination's ports are held, another's were and are given again", func() *testNode {
			n := flows(20, 7)
			add(n, "203.0.113.77", 20, "TIME_WAIT")
			return n
		}, []string{"SNATPortExhaustion proven 172.20.1.5 203.0.113.9"}},
		{"closed connections, whose ports new ones get", func() *testNode {
			n := flows(0, 7)
			add(n, out, 20, "TIME_WAIT")
			n.Flows[4].Start = start
			return n
		}, nil},
		{"closed connections, and nothing fails", func() *testNode {
			n := flows(0, 0)
			add(n, out, 20, "CLOSE")
			return n
		}, nil},
		{"closed connections keep their ports, as on older kernels", func() *testNode {
			n := flows(0, 7)
			add(n, out, 20, "TIME_WAIT")
			return n
		}, []string{"SNATPortExhaustion likely 172.20.1.5 203.0.113.9"}},
		{"only one pod has few ports", func() *testNode {
			n := flows(20, 7)
			n.PacketRules[3].Src = to(pod6 + "/32")
			n.natRules(model.PacketRule{Chain: "IP-MASQ-AGENT", Target: "MASQUERADE", Text: "-j MASQUERADE"})
			return n
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
	few := flows(20, 7)
	few.PacketRules[3].Number, few.PacketRules[3].Text = 4, "-p tcp -j MASQUERADE --to-ports 61000-61019"
	if fix := Diagnose(&few.Snapshot)[0].Fix[0]; !strings.HasPrefix(fix, "# ip-masq-agent manages the rule: ") {
		t.Errorf("fix %q of a rule that an agent keeps", fix)
	}
	few.PacketRules[3].Chain = "POSTROUTING"
	f := Diagnose(&few.Snapshot)[0]
	if want := "iptables-nft -t nat -R POSTROUTING 4 -p tcp -j MASQUERADE --to-ports 1024-65535"; !strings.HasPrefix(f.Fix[0], want) {
		t.Errorf("fix %q, want %s", f.Fix, want)
	}
	if f.Packets != 7 || !strings.Contains(f.Why, "7 first packets of new flows got no port") {
		t.Errorf("%d packets: %s", f.Packets, f.Why)
	}
}

func TestBPFDrop(t *testing.T) {
	n := kubenet()
	n.drop("TC_INGRESS", "__netif_receive_skb_core", pod5, far, 9)
	n.drop("TC_INGRESS", "__netif_receive_skb_core", pod5, pod6, 9)
	for i := range n.Traffic.Drops {
		n.Traffic.Drops[i].IfIndex, n.Traffic.Drops[i].Link = 10, "tap10"
	}
	n.drop("TC_EGRESS", "__dev_queue_xmit", out, pod6, 9).Link = "br-pods"
	verdicts(t, n, []string{"BPFDrop proven 172.20.1.5 172.20.1.6 172.20.2.9", "BPFDrop proven 172.20.1.6 203.0.113.9"})
}

// TestBPFDropNamesPrograms wants the programs of the very hook, in their order,
// and the owner's advice.
func TestBPFDropNamesPrograms(t *testing.T) {
	const inside = 77
	on := func(netns uint32, index int, link string, d model.Direction, p model.Program) model.Program {
		p.Netns, p.IfIndex, p.Link, p.Direction = netns, index, link, d
		return p
	}
	n := kubenet().with(model.SourcePrograms)
	n.Node.Netns = 1
	n.Programs = []model.Program{
		on(n.Node.Netns, 10, "tap10", model.Ingress, model.Program{Kind: model.ProgramXDP, ID: 3, Name: "other_hook"}),
		on(n.Node.Netns, 10, "tap10", model.Ingress, model.Program{Kind: model.ProgramTCX, ID: 4, Name: "first"}),
		on(n.Node.Netns, 10, "tap10", model.Ingress, model.Program{Kind: model.ProgramTC, ID: 5, Name: "cil_from_container-tap10", Filter: "bpf", Priority: 1, Handle: 1}),
		on(n.Node.Netns, 10, "tap10", model.Egress, model.Program{Kind: model.ProgramTC, ID: 6, Name: "other_way", Filter: "bpf", Priority: 1, Handle: 1}),
		on(n.Node.Netns, 11, "tap11", model.Ingress, model.Program{Kind: model.ProgramTC, Filter: "flower", Priority: 7, Handle: 1}),
		on(inside, 10, "eth0", model.Ingress, model.Program{Kind: model.ProgramTCX, ID: 8, Name: "in_pod"}),
	}
	n.Pods[0].Netns, n.Pods[0].NetnsName = inside, "cni-1"
	at := func(netns uint32, index int, link string) {
		d := n.drop("TC_INGRESS", "__netif_receive_skb_core", pod5, far, 9)
		d.Netns, d.IfIndex, d.Link = netns, index, link
	}
	at(n.Node.Netns, 10, "tap10")
	at(n.Node.Netns, 11, "tap11")
	at(inside, 10, "")
	want := map[string][]string{
		"tap10": {"on tap10 ingress, program 1 of 2: tcx program first, id 4",
			"on tap10 ingress, program 2 of 2: tc program cil_from_container-tap10, id 5, pref 1 handle 0x1 — owner: Cilium"},
		"tap11": {"on tap11 ingress: tc filter flower, pref 7 handle 0x1"},
		"eth0":  {"on eth0 ingress: tcx program in_pod, id 8"},
	}
	fixes := map[string]string{
		"tap10": "kubectl -n kube-system exec CILIUM-POD-OF-THIS-NODE -- cilium-dbg monitor",
		"tap11": "# if it has no owner: tc filter del dev tap11 ingress pref 7 handle 0x1 flower",
		"eth0":  "# if it has no owner: nsenter --net=/run/netns/cni-1 bpftool net detach tcx_ingress dev eth0 #",
	}
	for _, f := range Diagnose(&n.Snapshot) {
		link := f.LastHopAlive.Link
		var got []string
		for _, e := range f.Evidence {
			if e.Source == model.SourcePrograms {
				got = append(got, e.Text)
			}
		}
		if !slices.Equal(got, want[link]) || (len(f.Unseen) > 0) != (len(got) > 1) {
			t.Errorf("%s on %s: %q, unseen %q; want %q", f.Code, link, got, f.Unseen, want[link])
		}
		if !slices.ContainsFunc(steps(f), func(s string) bool { return strings.HasPrefix(s, fixes[link]) }) {
			t.Errorf("%s on %s: fix %q, want %q", f.Code, link, f.Fix, fixes[link])
		}
		delete(want, link)
	}
	if len(want) > 0 {
		t.Errorf("nothing found on %v", want)
	}
}

// TestBPFDropOfLink wants no command that detaches what a link holds.
func TestBPFDropOfLink(t *testing.T) {
	n := kubenet().with(model.SourcePrograms)
	n.Programs = []model.Program{{Kind: model.ProgramTCX, ID: 4, Name: "held", BPFLink: 12, IfIndex: 10, Link: "tap10", Direction: model.Ingress}}
	n.dropOn("tap10", "TC_INGRESS", "__netif_receive_skb_core", pod5, far, 9)
	fix := strings.Join(Diagnose(&n.Snapshot)[0].Fix, "\n")
	if strings.Contains(fix, "detach") || !strings.Contains(fix, "bpftool link show id 12") {
		t.Errorf("fix %s", fix)
	}
}

// TestBPFDropOfNetkit wants the program named whose end of the pair sent the packets.
// The kernel tells the receiving end.
func TestBPFDropOfNetkit(t *testing.T) {
	n := kubenet().with(model.SourcePrograms)
	n.Node.Netns, n.Pods[0].Netns, n.Pods[0].Interface = 1, 77, "eth0"
	on := func(d model.Direction, id uint32) model.Program {
		return model.Program{Kind: model.ProgramNetkit, ID: id, Name: "guard", BPFLink: 9, Netns: 1, IfIndex: 10, Link: "tap10", Direction: d}
	}
	n.Programs = []model.Program{on(model.Ingress, 4), on(model.Egress, 5)}
	for _, tt := range []struct {
		src, dst string
		netns    uint32
		index    int
		link     string
		want     string
	}{
		{pod5, far, 1, 10, "tap10", "on tap10 ingress: netkit program guard, id 4"},
		{far, pod5, 77, 2, "", "on tap10 egress: netkit program guard, id 5"},
	} {
		n.Traffic.Drops = nil
		d := n.drop("NOT_SPECIFIED", "netkit_xmit", tt.src, tt.dst, 9)
		d.Netns, d.IfIndex, d.Link = tt.netns, tt.index, tt.link
		f := Diagnose(&n.Snapshot)[0]
		shown := slices.ContainsFunc(f.Evidence, func(e model.Evidence) bool { return e.Text == tt.want })
		if f.Code != "BPFDrop" || !shown || !strings.Contains(f.Fix[len(f.Fix)-1], "bpftool link show id 9") {
			t.Errorf("from %s: %+v, want %q", tt.src, f, tt.want)
		}
	}
}

// TestBPFDropOfCgroup wants a cgroup's programs named, and none blamed: which one
// the pod's process is in is not known.
func TestBPFDropOfCgroup(t *testing.T) {
	n := kubenet().with(model.SourcePrograms)
	n.Node.Netns, n.Pods[0].Netns, n.Pods[0].Interface = 1, 77, "eth0"
	for _, link := range []int{2, 3} {
		d := n.drop("BPF_CGROUP_EGRESS", "ip_finish_output", pod5, out, 50)
		d.Netns, d.IfIndex = 77, link
	}
	verdicts(t, n, []string{"BPFDrop proven 172.20.1.5 203.0.113.9"})
	for i := range 20 {
		n.Programs = append(n.Programs, model.Program{Kind: model.ProgramCgroup, ID: uint32(70 + i), Name: "acct", Direction: model.Egress,
			Cgroup: "/system.slice/billing.service"})
	}
	verdicts(t, n, []string{"BPFDrop likely 172.20.1.5 203.0.113.9"})
	f := Diagnose(&n.Snapshot)[0]
	var said []string
	for _, e := range f.Evidence {
		said = append(said, e.Text)
	}
	all := strings.Join(append(append(append(said, f.Fix...), f.Next...), f.Title, f.Why), "\n")
	for _, never := range []string{"detach", "number", "link"} {
		if strings.Contains(all, never) {
			t.Errorf("%q in\n%s", never, all)
		}
	}
	if !strings.Contains(all, "cgroup program acct, id 70, on /system.slice/billing.service") || !strings.Contains(all, "and 12 more") ||
		f.LastHopAlive != (model.Place{Link: "eth0", Role: model.RolePod, Direction: model.Egress}) {
		t.Errorf("%+v\n%s", f.LastHopAlive, all)
	}
}

func TestConntrackFull(t *testing.T) {
	full := func(c model.Conntrack) *testNode {
		n := filtered()
		n.Conntrack = c
		return n
	}
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"new flows are dropped", func() *testNode {
			n := full(model.Conntrack{Count: 1000, Max: 1000, Drop: 9})
			n.refuse("nf_hook_slow", pod5, out, 9)
			return n
		}, []string{"ConntrackFull proven 172.20.1.5 203.0.113.9"}},
		{"a rule drops besides", func() *testNode {
			n := full(model.Conntrack{Count: 1000, Max: 1000, Drop: 9})
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Target: "DROP"})
			n.refuse("nft_do_chain", far, pod6, 9)
			n.refuse("nf_hook_slow", pod5, out, 9)
			return n
		}, []string{"ConntrackFull proven 172.20.1.5 203.0.113.9", "PolicyDrop proven 172.20.1.6 172.20.2.9"}},
		{"flows are thrown out early", func() *testNode { return full(model.Conntrack{Count: 990, Max: 1000, EarlyDrop: 40}) }, []string{"ConntrackFull likely"}},
		{"nearly full, and nothing is lost", func() *testNode { return full(model.Conntrack{Count: 960, Max: 1000}) }, []string{"ConntrackFull possible"}},
		{"half full", func() *testNode { return full(model.Conntrack{Count: 500, Max: 1000, Drop: 9}) }, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestInetTable: a table of the family inet sees both versions of IP, and a rule
// of it that names addresses matches one of them only.
func TestInetTable(t *testing.T) {
	const mask = "site_nat"
	// inet is a node whose only rules of address translation are these, and
	// whose pods have addresses of both versions.
	inet := func(rules ...model.PacketRule) *testNode {
		n := dual()
		n.PacketRules, n.Chains = nil, []model.Chain{{Backend: model.NFT, Family: "inet", Table: mask, Name: "leaving", Hook: "POSTROUTING", Priority: 100}}
		for i, r := range rules {
			r.Backend, r.Family, r.Table, r.Chain, r.Number, r.Native, r.Handle = model.NFT, "inet", mask, "leaving", i+1, true, uint64(i+2)
			n.PacketRules = append(n.PacketRules, r)
		}
		return n
	}
	all4 := model.PacketRule{NFProto: 4, Src: to("172.20.1.0/24"), Target: "MASQUERADE", Text: "ip saddr 172.20.1.0/24 masquerade"}
	all6 := model.PacketRule{NFProto: 6, Target: "MASQUERADE", Text: "meta nfproto ipv6 masquerade"}
	const out6 = "2001:db8:7::9"
	check(t, []fixture{
		{"a rule for IPv4 masquerades pods among themselves", func() *testNode {
			n := inet(all6, all4)
			n.translated(pod5, far, far, "10.50.0.4", true)
			return n
		}, []string{"UnexpectedMasquerade proven 172.20.1.5 172.20.2.9"}},
		{"no rule for IPv4", func() *testNode {
			n := inet(all6)
			n.silent(pod5, out)
			return n
		}, []string{"MissingMasquerade likely 172.20.1.5 203.0.113.9"}},
		{"no rule for IPv6", func() *testNode {
			n := inet(all4)
			n.silent("fd20:0:0:1::5", out6)
			return n
		}, []string{"MissingMasquerade likely fd20:0:0:1::5 " + out6 + "/128"}},
		{"all of the ports are held", func() *testNode {
			few := all4
			few.ToPorts = model.PortRange{First: 40000, Last: 40007}
			n := inet(few)
			for range 8 {
				n.translated(pod5, out, out, "10.50.0.4", true)
			}
			n.Conntrack.InsertFailed = 9
			return n
		}, []string{"SNATPortExhaustion proven 172.20.1.5 203.0.113.9"}},
	})
	excluded := inet(model.PacketRule{NFProto: 4, Dst: to("203.0.113.0/24"), Target: "RETURN", Text: "ip daddr 203.0.113.0/24 return"}, all4)
	excluded.silent(pod5, out)
	excluded.silent(pod5, "203.0.113.10")
	found := Diagnose(&excluded.Snapshot)
	if len(found) != 1 || found[0].Code != "MissingMasquerade" || !slices.Equal(found[0].Fix, []string{
		"# find out who wrote the exclusion: no known program writes such a rule", "# if the exclusion is not intended:", "nft delete rule inet site_nat leaving handle 2",
	}) {
		t.Errorf("an exclusion in a table of the family inet: %+v", found)
	}
}

// TestNodeNameServer: a name server of the node that is gone takes names from all pods
// that ask it, while other ports may be closed by intention.
func TestNodeNameServer(t *testing.T) {
	for port, want := range map[uint16]model.Severity{dnsPort: model.Warning, 9100: model.Info} {
		n := kubenet()
		for _, pod := range []string{pod5, pod6} {
			d := n.drop("NO_SOCKET", "__udp4_lib_rcv", pod, "10.50.0.4", 9)
			d.Proto = udp
			n.sampled(d, head(udp, port, 0))
		}
		found := agreed(t, n)
		title := fmt.Sprintf("nothing listens at the node's address 10.50.0.4 udp/%d", port)
		if len(found) != 1 || found[0].Severity != want || found[0].Title != title || len(found[0].Pods) != 2 {
			t.Errorf("port %d: %+v", port, found)
		}
	}
}

// TestDeadProxy: a rule leads what pods send elsewhere to a port of the node's, where
// nobody listens any more.
func TestDeadProxy(t *testing.T) {
	for port, want := range map[uint16]string{
		3129: "warning NoListener nothing listens at the node's address 10.50.0.4 tcp/3129",
		9100: "info NoListener nothing listens at the node's address 10.50.0.4 tcp/9100",
	} {
		n := kubenet()
		d := n.drop("NO_SOCKET", "tcp_v4_rcv", pod5, "10.50.0.4", 9)
		d.Proto = tcp
		n.sampled(d, head(tcp, port, 2))
		n.natRules(model.PacketRule{Chain: "PREROUTING", Target: "REDIRECT", ToPorts: model.PortRange{First: 3129, Last: 3129}, Counter: model.Counter{Delta: 9}})
		if got := judged(n); !slices.Equal(got, []string{want}) {
			t.Errorf("port %d: got %q, want %q", port, got, want)
		}
	}
}

// TestDeadProxyInPod: rules in a pod lead what it sends to its own loopback address. What
// the node's own programs lose there is no pod's.
func TestDeadProxyInPod(t *testing.T) {
	for netns, want := range map[uint32][]string{
		77: {"warning NoListener nothing listens at 127.0.0.1 tcp/15001 in the pod behind tap10"},
		0:  {"info UnexplainedDrop NO_SOCKET drops at tcp_v4_rcv"},
	} {
		n := kubenet()
		n.Pods[0].Netns = 77
		d := n.drop("NO_SOCKET", "tcp_v4_rcv", pod5, "127.0.0.1", 9)
		d.Netns, d.Proto = netns, tcp
		n.sampled(d, head(tcp, 15001, 2))
		if got := judged(n); !slices.Equal(got, want) {
			t.Errorf("namespace %d: got %q, want %q", netns, got, want)
		}
	}
}

// inside is a node whose pod 172.20.1.5 lost packets in its own namespace, which has rules in
// chains of the filter table, and sockets at its loopback address.
func inside(rules []model.PacketRule, sockets ...string) *testNode {
	n := filtered()
	p := n.inner(0, pod5+"/24", "default via 172.20.1.1")
	held := filtered()
	held.PacketRules = nil
	held.chain(model.NFT, "ip", "filter", "INPUT", "INPUT", "ACCEPT", 0)
	held.chain(model.NFT, "ip", "filter", "OUTPUT", "OUTPUT", "ACCEPT", 0)
	for _, r := range rules {
		counted := r.Counter
		held.filter(model.NFT, r.Chain, 0, r).Counter = counted
	}
	p.Inside = &model.Inside{PacketRules: held.PacketRules, Chains: held.Chains}
	for _, s := range sockets {
		p.Inside.Loopback = append(p.Inside.Loopback, model.Socket{Proto: tcp, Addr: netip.MustParseAddrPort(s)})
	}
	return n
}

// TestRulesInPod: a rule in the pod's own namespace is found by what it matches, since its
// counter tells nothing of the window; one that never counted dropped nothing.
func TestRulesInPod(t *testing.T) {
	counted := model.Counter{Packets: 700, Restarted: true}
	deny := model.PacketRule{Chain: "INPUT", In: model.IfMatch{Name: "lo", Not: true}, Target: "DROP", Counter: counted}
	tests := []struct {
		name     string
		rules    []model.PacketRule
		src, dst string
		want     string
	}{
		{"what comes from outside", []model.PacketRule{deny}, far, pod5,
			"proven filter INPUT in the pod behind tap10 drops its packets: nsenter --net=/run/netns/cni-0 iptables-nft -t filter -D INPUT -j DROP # unless this is intended"},
		{"what the pod sends", []model.PacketRule{deny, {Chain: "OUTPUT", Dst: to(far + "/32"), Target: "DROP", Counter: counted}}, pod5, far,
			"proven filter OUTPUT in the pod behind tap10 drops its packets: nsenter --net=/run/netns/cni-0 iptables-nft -t filter -D OUTPUT -j DROP # unless this is intended"},
		{"a program keeps it", []model.PacketRule{{Chain: "INPUT", Target: "DROP", Counter: counted, Comment: "cali:x"}}, far, pod5,
			"proven filter INPUT in the pod behind tap10 drops its packets: kubectl get networkpolicies -A; kubectl get globalnetworkpolicies.crd.projectcalico.org # Calico makes its rules from them"},
		{"another counted nothing", []model.PacketRule{{Chain: "INPUT", Target: "DROP"}, deny}, far, pod5,
			"proven filter INPUT in the pod behind tap10 drops its packets: nsenter --net=/run/netns/cni-0 iptables-nft -t filter -D INPUT -j DROP # unless this is intended"},
		{"no rule matches", []model.PacketRule{{Chain: "INPUT", Src: to("192.0.2.1/32"), Target: "DROP", Counter: counted}}, far, pod5,
			"likely a firewall rule inside the pod behind tap10 drops packets: nsenter --net=/run/netns/cni-0 nft list ruleset"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := inside(tt.rules)
			d := n.refuse("nft_do_chain", tt.src, tt.dst, 9)
			d.Netns, d.Link = 100, ""
			found := agreed(t, n)
			if len(found) != 1 || !slices.Equal(found[0].Pods, []netip.Addr{addr(pod5)}) {
				t.Fatalf("found %+v", found)
			}
			if got := string(found[0].Confidence) + " " + found[0].Title + ": " + append(found[0].Fix, found[0].Next...)[0]; got != tt.want {
				t.Errorf("got\n%s, want\n%s", got, tt.want)
			}
		})
	}
	// Rules that dropped nothing in the window are no fault.
	verdicts(t, inside([]model.PacketRule{deny}), nil)
}

// TestListenersInPod: what listens on the pod's loopback address alone is told where somebody
// outside asks for that port, and the pod's own rule where one leads to a port.
func TestListenersInPod(t *testing.T) {
	redirect := model.PacketRule{Chain: "OUTPUT", Target: "REDIRECT", ToPorts: model.PortRange{First: 15001, Last: 15001},
		Counter: model.Counter{Packets: 40, Restarted: true}}
	for name, tt := range map[string]struct {
		dst   string
		port  uint16
		title string
		seen  string
	}{
		"on loopback": {pod5, 8080, "the pod behind tap10 listens only on its loopback address for tcp/8080", "127.0.0.1 tcp/8080"},
		"nowhere":     {pod5, 9999, "nothing listens at 172.20.1.5 tcp/9999", ""},
		"redirected":  {"127.0.0.1", 15001, "nothing listens at 127.0.0.1 tcp/15001 in the pod behind tap10", "filter OUTPUT rule"},
	} {
		t.Run(name, func(t *testing.T) {
			n := inside([]model.PacketRule{redirect}, "127.0.0.1:8080", "[::1]:53")
			src := far
			if tt.dst != pod5 {
				src = pod5
			}
			d := n.drop("NO_SOCKET", "tcp_v4_rcv", src, tt.dst, 9)
			d.Netns, d.Proto = 100, tcp
			n.sampled(d, head(tcp, tt.port, 2))
			found := agreed(t, n)
			if len(found) != 1 || found[0].Code != "NoListener" || found[0].Title != tt.title {
				t.Fatalf("found %+v", found)
			}
			if seen := fmt.Sprint(found[0].Evidence); !strings.Contains(seen, tt.seen) {
				t.Errorf("evidence %s lacks %q", seen, tt.seen)
			}
		})
	}
}

// TestBridgedDrop: the kernel says of a packet that a bridge forwards the link that it was
// to leave by. It was seen last where it came in.
func TestBridgedDrop(t *testing.T) {
	for name, tt := range map[string]struct {
		node           func() *testNode
		link, src, dst string
		want           string
	}{
		"from pod to pod":                     {kubenet, "tap11", "172.20.1.5", "172.20.1.6", "tap10"},
		"from the uplink on the bridge":       {bridged, "tap11", "10.60.0.9", "10.60.0.21", "nic0"},
		"from the node, past its bridge":      {kubenet, "tap11", "10.50.0.4", "172.20.1.6", "br-pods"},
		"routed, by the link that it came by": {kubenet, "ens5", "10.50.0.9", "172.20.1.6", "ens5"},
	} {
		t.Run(name, func(t *testing.T) {
			n := tt.node()
			n.lose(model.SourceNAT, model.Missing)
			n.dropOn(tt.link, "NETFILTER_DROP", "nf_hook_slow", tt.src, tt.dst, 9)
			found := agreed(t, n)
			if len(found) != 1 || found[0].Code != "PolicyDrop" || found[0].LastHopAlive.Link != tt.want || found[0].LastHopAlive.Direction != model.Ingress {
				t.Errorf("%+v, want %s", found, tt.want)
			}
		})
	}
}
