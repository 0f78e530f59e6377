package diagnose

import (
	"fmt"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestTwoMasters: another machine announces an address that the node holds as a further one.
func TestTwoMasters(t *testing.T) {
	holds := func(since time.Time, lost ...time.Duration) func() *testNode {
		return func() *testNode {
			n := kubenet().live()
			l := &n.Links[0]
			l.Addresses = append(l.Addresses, prefix("10.50.0.100/32"))
			l.Since = []time.Time{start.Add(-time.Minute), since}
			n.arp("10.50.0.100", 2, model.Ingress, true, deadMAC, 4)
			for _, after := range lost {
				n.Changes = append(n.Changes, model.Change{At: start.Add(after), Kind: model.ChangedAddress, Deleted: true, Dst: prefix("10.50.0.100/32")})
			}
			return n
		}
	}
	situations(t, []situation{
		{"through the window", holds(start), []string{"critical DuplicatePodIP"}, "10.50.0.100, an address of this node", "another address"},
		{"in turns", holds(start.Add(8*time.Second), 2*time.Second, 6*time.Second), []string{"critical DuplicatePodIP"},
			"10.50.0.100 moves between this node and another machine", "another address"},
		{"healthy: it came within", holds(start.Add(time.Second)), nil, "", ""},
		{"healthy: keepalived was restarted", holds(start.Add(4*time.Second), 2*time.Second), nil, "", ""},
		{"healthy: it came back before", holds(start.Add(time.Second), -9*time.Second, -5*time.Second), nil, "", ""},
	})
}

// TestNodesQuestions: the node's own questions for names are judged as pods' are, and nothing else that it sends.
func TestNodesQuestions(t *testing.T) {
	const own = "10.50.0.4"
	asks := func(server string, port uint16, answered bool) func() *testNode {
		return func() *testNode {
			n := kubenet().live()
			n.answered(own, "203.0.113.99")
			in := none
			if answered { // by UDP, or at another port
				n.datagrams(own, server, port, 6, true)
				n.Traffic.Peers = n.Traffic.Peers[:len(n.Traffic.Peers)-1]
				in = model.PeerCount{Packets: 12, Other: 12}
			}
			n.peer(own, server, model.PeerCount{Packets: 20, Requests: 20}, in)
			for i := range 8 {
				n.begins(own, server, own, port, uint16(41000+i), 0.3+float64(i)*0.5, false)
			}
			return n
		}
	}
	situations(t, []situation{
		{"a name server is silent", asks(out, dnsPort, false), []string{"warning NoReply"}, "the node's own questions for names", "pods' own"},
		{"to connections alone", asks(out, dnsPort, true), []string{"warning NoReply"}, "Of the node itself, 8 connections", ""},
		{"Azure's is", asks("168.63.129.16", dnsPort, false), []string{"warning NoReply"}, "168.63.129.16", ""},
		{"Azure's is, to connections alone", asks("168.63.129.16", dnsPort, true), []string{"warning NoReply"}, "tcp/53", ""},
		{"healthy: something else is", asks(out, 9100, false), nil, "", ""},
	})
}

// TestPassedBy: what BPF programs forward past netfilter no rule dropped or has to translate.
func TestPassedBy(t *testing.T) {
	refused := func(passed bool) func() *testNode {
		return func() *testNode {
			n := kubenet().live()
			n.Node.PassedBy = passed
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", 30, model.PacketRule{Target: "DROP", Src: to(pod5 + "/32")})
			n.refuse("nft_do_chain", pod5, out, 30)
			return n
		}
	}
	leaves := func(passed bool) func() *testNode {
		return func() *testNode {
			n := kubenet().live()
			n.Node.PassedBy, n.PacketRules, n.Chains = passed, nil, nil
			n.answered("10.50.0.4", "203.0.113.99")
			n.silent(pod5, out)
			n.silent(pod5, "198.51.100.9")
			return n
		}
	}
	situations(t, []situation{
		{"a rule drops", refused(false), []string{"warning PolicyDrop"}, "-D FORWARD", ""},
		{"which cannot act", refused(true), nil, "", "-D FORWARD"},
		{"no rule translates", leaves(false), []string{"critical MissingMasquerade"}, "MASQUERADE", ""},
		{"and none could", leaves(true), []string{"warning NoReply"}, "", "MASQUERADE"},
	})
}

// TestUnproxied: nothing translates any service's address any more.
func TestUnproxied(t *testing.T) {
	silent := func(rules bool) func() *testNode {
		return func() *testNode {
			n := asking(kubenet(), model.ResolverCluster, clusterDNS)
			n.answered("10.50.0.4", "203.0.113.99")
			n.datagrams(pod5, clusterDNS, dnsPort, 6, false)
			if rules {
				n.natRules(model.PacketRule{Chain: "KUBE-SEP-A", Target: "DNAT"})
			}
			return n
		}
	}
	situations(t, []situation{
		{"kube-proxy's rules are gone", silent(false), []string{"warning NoReply"}, "kube-proxy's rules are gone", ""},
		{"others are there", silent(true), []string{"warning NoReply"}, "", "kube-proxy's rules are gone"},
	})
}

// TestBackendsByMap: kube-proxy 1.37 translates to one endpoint by a rule, to several by the map of one.
func TestBackendsByMap(t *testing.T) {
	serves := func(endpoints ...string) func() *testNode {
		return func() *testNode {
			n := kubenet().live()
			const chain = "service-AAAAAAAA-ns1/svc1/tcp/p80"
			set := model.Set{Family: "ip", Table: "kube-proxy", Name: "__map0", Anonymous: true}
			for i, a := range endpoints {
				set.Elements = append(set.Elements, model.Element{Key: fmt.Sprint(i), Value: a + " . 80"})
			}
			n.Sets = append(n.Sets, set)
			n.PacketRules = append(n.PacketRules, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "kube-proxy", Chain: chain, Native: true,
				Proto: tcp, Target: "DNAT", Lookups: []model.Lookup{{Set: "__map0", Key: []string{"numgen random mod 2"}, Map: true}},
				Text: "meta l4proto tcp dnat ip addr . port to numgen random mod 2 map"})
			if endpoints[1] != pod6 {
				n.dropOn("br-pods", "NEIGH_FAILED", "neigh_invalidate", pod5, endpoints[1], 12)
			}
			return n
		}
	}
	situations(t, []situation{
		{"one is gone", serves(pod6, gone), []string{"warning DeadBackend"}, "translated to 172.20.1.77 by kube-proxy service-AAAAAAAA-ns1/svc1/tcp/p80", ""},
		{"healthy", serves(pod5, pod6), nil, "", ""},
	})
}
