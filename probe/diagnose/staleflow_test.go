package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// kept adds a UDP flow of one socket that is older than the window: from a pod to an
// address, translated to back by home. left is the time until its entry expires.
func (n *testNode) kept(pod, asked, back, home string, port uint16, replied bool, left time.Duration) {
	n.Sysctls = append(n.Sysctls,
		model.Sysctl{Name: "net.netfilter.nf_conntrack_udp_timeout", Value: "30"},
		model.Sysctl{Name: "net.netfilter.nf_conntrack_udp_timeout_stream", Value: "120"})
	n.Flows = append(n.Flows, model.Flow{Proto: 17, Replied: replied, Assured: replied, Timeout: left,
		Original: model.Tuple{Src: addr(pod), Dst: addr(asked), SrcPort: 40000, DstPort: port},
		Reply:    model.Tuple{Src: addr(back), Dst: addr(home), SrcPort: port, DstPort: 40000}})
}

// questions adds datagrams from a local address over most of the window.
func (n *testNode) questions(local, remote string, in model.PeerCount) {
	n.peer(local, remote, model.PeerCount{Packets: 9, Other: 9}, in)
	n.Traffic.Peers[len(n.Traffic.Peers)-1].LastOut = end.Add(-time.Second)
}

// serving is a node with a service that its rules lead to these endpoints.
func serving(endpoints ...string) *testNode {
	n := kubenet()
	n.PacketRules[1].Dst = to("10.0.0.0/8")
	n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "nat", Name: "PREROUTING", Hook: "PREROUTING", Priority: -100})
	n.natRules(model.PacketRule{Chain: "PREROUTING", Dst: to("10.0.0.10/32"), Proto: 17, DstPorts: onPort(53), Target: "KUBE-SVC-A"})
	for i, a := range endpoints {
		r := model.PacketRule{Chain: "KUBE-SVC-A", Proto: 17, Target: "DNAT", To: netip.AddrPortFrom(addr(a), 53)}
		if i < len(endpoints)-1 {
			r.Unknown = []string{"statistic"}
		}
		n.natRules(r)
	}
	n.answered("10.50.0.4", "10.50.0.5")
	return n
}

const (
	virtualIP = "10.0.0.10"
	moved     = "10.50.77.77"
)

func TestStaleFlow(t *testing.T) {
	check(t, []fixture{
		{"older than the rules of its service", func() *testNode {
			n := serving(pod6)
			n.kept(pod5, virtualIP, virtualIP, pod5, 53, false, 29*time.Second)
			n.questions(pod5, virtualIP, none)
			return n
		}, []string{"StaleFlow proven 172.20.1.5 10.0.0.10"}},
		{"older, and without a packet in the window", func() *testNode {
			n := serving(pod6)
			n.kept(pod5, virtualIP, virtualIP, pod5, 53, false, 12*time.Second)
			return n
		}, nil},
		{"the rules are for another port", func() *testNode {
			n := serving(pod6)
			n.kept(pod5, virtualIP, virtualIP, pod5, 514, false, 29*time.Second)
			return n
		}, nil},
		{"an endpoint elsewhere that the rules lead to no more, and a router's errors", func() *testNode {
			n := serving("172.20.2.8")
			n.kept(pod5, virtualIP, far, pod5, 53, true, 119*time.Second)
			n.questions(pod5, far, model.PeerCount{ICMPErrors: 5})
			n.answered(pod6, "172.20.2.8")
			return n
		}, []string{"StaleFlow likely 172.20.1.5 10.0.0.10 172.20.2.9"}},
		{"such an endpoint that still answers", func() *testNode {
			n := serving("172.20.2.8")
			n.kept(pod5, virtualIP, far, pod5, 53, true, 119*time.Second)
			n.questions(pod5, far, datagram)
			return n
		}, nil},
		{"one of two endpoints, which is asked still", func() *testNode {
			n := serving(far, "172.20.2.8")
			n.kept(pod5, virtualIP, far, pod5, 53, true, 119*time.Second)
			n.questions(pod5, far, datagram)
			return n
		}, nil},
		{"a source address that the node has no more", func() *testNode {
			n := serving(pod6)
			n.kept(pod5, out, out, moved, 53, false, 29*time.Second)
			return n
		}, []string{"StaleFlow likely 172.20.1.5 203.0.113.9"}},
		{"such an address, once it had replies, and the pod hears nothing", func() *testNode {
			n := serving(pod6)
			n.kept(pod5, out, out, moved, 53, true, 119*time.Second)
			n.Traffic.Hops = append(n.Traffic.Hops, model.HopCount{Addr: addr(pod5), IfIndex: 10, Side: model.AsSource, Direction: model.Ingress, Packets: 9})
			return n
		}, []string{"StaleFlow likely 172.20.1.5 203.0.113.9"}},
		{"such an address that replies come to", func() *testNode {
			n := serving(pod6)
			n.kept(pod5, out, out, moved, 53, true, 119*time.Second)
			n.Traffic.Hops = append(n.Traffic.Hops,
				model.HopCount{Addr: addr(pod5), IfIndex: 10, Side: model.AsSource, Direction: model.Ingress, Packets: 9},
				model.HopCount{Addr: addr(pod5), IfIndex: 10, Side: model.AsDestination, Direction: model.Egress, Packets: 9})
			return n
		}, nil},
		{"a rule still gives it: one client is enough", func() *testNode {
			n := serving(pod6)
			n.PacketRules = slices.Insert(n.PacketRules, 0, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "nat", Chain: "POSTROUTING",
				Src: to("172.20.1.0/24"), Target: "SNAT", To: netip.AddrPortFrom(addr(moved), 0), Text: "-s 172.20.1.0/24 -j SNAT --to-source " + moved})
			n.kept(pod5, out, out, moved, 53, false, 29*time.Second)
			return n
		}, []string{"ForeignSNAT likely 172.20.1.5 203.0.113.9"}},
		{"older than the masquerading", func() *testNode {
			n := serving(pod6)
			n.kept(pod5, out, out, pod5, 53, false, 29*time.Second)
			n.questions(pod5, out, none)
			return n
		}, []string{"StaleFlow likely 172.20.1.5 203.0.113.9"}},
		{"telemetry that wants no reply", func() *testNode {
			n := serving(pod6)
			n.kept(pod5, out, out, "10.50.0.4", 514, false, 29*time.Second)
			n.questions("10.50.0.4", out, none)
			return n
		}, nil},
	})
}

// TestOldFlowsAsk: a client that keeps its socket asks as others do, and a router's error
// is no answer to it.
func TestOldFlowsAsk(t *testing.T) {
	asking := func(port uint16, replied bool, left time.Duration, in model.PeerCount) func() *testNode {
		return func() *testNode {
			n := serving(pod6)
			n.kept(pod5, out, out, "10.50.0.4", port, replied, left)
			n.questions("10.50.0.4", out, in)
			return n
		}
	}
	dead := []string{"NoReply likely 172.20.1.5 203.0.113.9"}
	errors := model.PeerCount{ICMPErrors: 5}
	check(t, []fixture{
		{"never replied to", asking(53, false, 29*time.Second, none), dead},
		{"replied to before", asking(53, true, 119*time.Second, none), dead},
		{"refused by a router", asking(53, true, 119*time.Second, errors), dead},
		{"another port, replied to before", asking(8125, true, 119*time.Second, none), dead},
		{"replied to", asking(53, true, 119*time.Second, datagram), nil},
		{"wants no reply", asking(514, false, 29*time.Second, none), nil},
		{"wants no reply, and a router refuses", asking(514, false, 29*time.Second, errors), nil},
		{"idle", asking(53, true, 60*time.Second, none), nil},
	})
	unread := asking(53, true, 119*time.Second, none)()
	if unread.Sysctls = nil; len(Diagnose(&unread.Snapshot)) > 0 {
		t.Error("with the timeouts unread there is a finding")
	}
}

// TestTranslationByProtocol: what a rule does with TCP tells nothing of UDP.
func TestTranslationByProtocol(t *testing.T) {
	n := serving(pod6)
	n.PacketRules[3].Proto = 6
	n.datagrams(pod5, out, 53, 5, false)
	n.datagrams(pod5, out2, 53, 5, false)
	got := Diagnose(&n.Snapshot)
	if len(got) != 1 || got[0].Code != "MissingMasquerade" || !strings.Contains(got[0].Why, "No MASQUERADE rule matches") {
		t.Errorf("a rule for TCP alone: %+v", got)
	}
	n = serving(pod6)
	n.datagrams(pod5, virtualIP, 5353, 5, false)
	n.flow(pod6, far, true)
	n.Flows[len(n.Flows)-1].Original.DstPort = 5353
	got = Diagnose(&n.Snapshot)
	if len(got) != 1 || got[0].Title != "no rule translates 10.0.0.10 for udp/5353: the packets leave the node untranslated" {
		t.Errorf("a service with another port: %+v", got)
	}
}

// TestPortTakenAgain: a new connection has the entry of one from before the rules, and
// kube-proxy refuses what is not translated. To another port it refuses as it should.
func TestPortTakenAgain(t *testing.T) {
	for port, want := range map[uint16]string{
		80: "StaleFlow proven 172.20.1.5 10.0.0.10",
		81: "PolicyDrop proven 172.20.1.5 10.0.0.10",
	} {
		n := serving()
		n.natRules(model.PacketRule{Chain: "PREROUTING", Dst: to(virtualIP + "/32"), Proto: 6, DstPorts: onPort(80), Target: "DNAT", To: netip.MustParseAddrPort("10.50.7.7:80")})
		n.chain(model.NFT, "ip", "kube-proxy", "filter-forward", "FORWARD", "ACCEPT", 0)
		r := n.filter(model.NFT, "filter-forward", 0, model.PacketRule{Dst: to(virtualIP + "/32"), Target: "REJECT", Comment: noSuchPort})
		r.Table, r.Native = "kube-proxy", true
		n.kept(pod5, virtualIP, virtualIP, pod5, 80, false, time.Minute)
		n.Flows[len(n.Flows)-1].Proto = 6
		h := head(6, port, 2)
		h[20], h[21] = 40000>>8, 40000&0xff
		n.sampled(n.refuse("nft_do_chain", pod5, virtualIP, 9), h)
		if got := Diagnose(&n.Snapshot); len(got) != 1 || brief(got[0]) != want {
			t.Errorf("port %d: %+v", port, got)
		}
	}
}

// TestForget: the fix deletes the entry of the flow and no other, of flows alike all at once, and of many the first ones.
func TestForget(t *testing.T) {
	n := serving()
	n.kept(pod5, virtualIP, far, pod5, 53, true, 0)
	n.Flows[0].Zone = 7
	want := "conntrack -D -p udp --orig-src 172.20.1.5 --orig-dst 10.0.0.10 --sport 40000 --dport 53 --zone 7"
	one := &n.Flows[0]
	if got := words.Forget([]*model.Flow{one}); len(got) != 1 || string(got[0]) != want {
		t.Errorf("%q", got)
	}
	alike := *one
	alike.Original.SrcPort, alike.Reply.DstPort = 40001, 40001
	want = "conntrack -D -p udp --orig-src 172.20.1.5 --orig-dst 10.0.0.10 --dport 53 --reply-src 172.20.2.9 --reply-dst 172.20.1.5 --zone 7"
	if got := words.Forget([]*model.Flow{one, &alike}); len(got) != 1 || string(got[0]) != want {
		t.Errorf("%q", got)
	}
	for more, want := range map[int]string{1: "and 1 more entry like these", 2: "and 2 more entries like these"} {
		var flows []*model.Flow
		for i := range words.MostForgotten + more {
			f := *one
			f.Original.DstPort += uint16(i)
			flows = append(flows, &f)
		}
		if got := words.Forget(flows); len(got) != words.MostForgotten+1 || string(got[words.MostForgotten]) != want {
			t.Errorf("%d more: %q", more, got)
		}
	}
}
