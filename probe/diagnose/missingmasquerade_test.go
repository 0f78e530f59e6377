package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// exclude puts an exclusion in front of the agent's rules.
func (n *testNode) exclude(cidr string) {
	n.PacketRules = slices.Insert(n.PacketRules, 1, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "nat",
		Chain: "IP-MASQ-AGENT", Dst: to(cidr), Target: "RETURN", Text: "-d " + cidr + " -j RETURN"})
}

const out2 = "198.51.100.7"

// TestExclusions: what does not answer behind an exclusion may be down. That the
// exclusion is wrong shows where several public addresses are silent, or where it
// excludes everything.
func TestExclusions(t *testing.T) {
	excluded := func(cidr string, silent ...string) *testNode {
		n := kubenet()
		n.answered("10.50.0.4", "10.50.0.5")
		n.exclude(cidr)
		for _, a := range silent {
			n.silent(pod5, a)
		}
		return n
	}
	direct := func(plugin string, silent ...string) *testNode {
		n := kubenet()
		n.Node.Plugin, n.PacketRules = plugin, nil
		n.answered("10.50.0.4", "10.50.0.5")
		for _, a := range silent {
			n.silent(pod5, a)
		}
		return n
	}
	check(t, []fixture{
		{"a private range, one target down", func() *testNode { return excluded("10.0.0.0/8", "10.9.0.1") }, []string{"NoReply likely 172.20.1.5 10.9.0.1"}},
		{"a peered network, two targets down", func() *testNode { return excluded("192.168.0.0/16", "192.168.7.1", "192.168.7.2") },
			[]string{"NoReply likely 172.20.1.5 192.168.7.1 192.168.7.2"}},
		{"carriers' addresses", func() *testNode { return excluded("100.64.0.0/10", "100.64.7.1", "100.64.7.2") },
			[]string{"NoReply likely 172.20.1.5 100.64.7.1 100.64.7.2"}},
		{"a range, and one target of it answers", func() *testNode {
			n := excluded("10.0.0.0/8", "10.9.0.1")
			n.answered(pod6, "10.9.0.2")
			return n
		}, []string{"NoReply likely 172.20.1.5 10.9.0.1"}},
		{"one public address that does not answer", func() *testNode { return excluded("203.0.113.0/24", out) }, []string{"NoReply likely 172.20.1.5 203.0.113.9"}},
		{"several public addresses", func() *testNode { return excluded("203.0.113.0/24", out, "203.0.113.10") },
			[]string{"MissingMasquerade likely 172.20.1.5 203.0.113.9 203.0.113.10"}},
		{"everything", func() *testNode { return excluded("0.0.0.0/0", out) }, []string{"MissingMasquerade likely 172.20.1.5 203.0.113.9"}},
		{"everything, and a private target is down", func() *testNode { return excluded("0.0.0.0/0", "192.168.7.1") }, []string{"NoReply likely 172.20.1.5 192.168.7.1"}},
		{"everything, for a pod that the network knows", func() *testNode {
			n := excluded("0.0.0.0/0", out)
			n.Node.Plugin = "azure-podsubnet"
			return n
		}, []string{"NoReply likely 172.20.1.5 203.0.113.9"}},
		{"a private network that is excluded, and knows no pods of an overlay", func() *testNode {
			n := excluded("192.168.0.0/16", "192.168.7.1")
			n.Node.Plugin = "azure-overlay"
			return n
		}, []string{"MissingMasquerade likely 172.20.1.5 192.168.7.1"}},
		{"a private network that is excluded, and may know them", func() *testNode { return excluded("192.168.0.0/16", "192.168.7.1") },
			[]string{"NoReply likely 172.20.1.5 192.168.7.1"}},
		{"a machine of an overlay node's own subnet", func() *testNode {
			n := excluded("192.168.0.0/16", "10.50.0.9")
			n.Node.Plugin = "azure-overlay"
			return n
		}, []string{"MissingMasquerade likely 172.20.1.5 10.50.0.9"}},
		{"one of the overlay's pods", func() *testNode {
			n := excluded("192.168.0.0/16", far)
			n.Node.Plugin = "azure-overlay"
			return n
		}, []string{"NoReply likely 172.20.1.5 " + far}},
		{"the rule does not count, since Cilium's programs translate", func() *testNode {
			n := excluded("192.168.0.0/16", "192.168.7.1")
			n.Node.Plugin = "azure-cilium"
			return n
		}, []string{"NoReply likely 172.20.1.5 192.168.7.1"}},
		{"a rule excludes them from connection tracking", func() *testNode {
			n := kubenet()
			n.answered("10.50.0.4", "10.50.0.5")
			n.filter(model.NFT, "PREROUTING", 20, model.PacketRule{Src: to("172.20.1.0/24"), Target: "CT", Text: "-s 172.20.1.0/24 -j CT --notrack"}).Table = "raw"
			n.peer(pod5, out, model.PeerCount{Packets: 9, Requests: 9}, none)
			return n
		}, []string{"MissingMasquerade likely 172.20.1.5 203.0.113.9"}},
		{"no rule where the plugin makes one", func() *testNode { return direct("kindnet", out) }, []string{"MissingMasquerade likely 172.20.1.5 203.0.113.9"}},
		{"no rule where programs translate", func() *testNode { return direct("cilium", out, out2) }, []string{"NoReply likely 172.20.1.5 198.51.100.7 203.0.113.9"}},
		{"no rule where programs would translate, and are told not to", func() *testNode {
			n := direct("cilium", out, out2)
			n.Cilium.Untranslated = []int{4}
			return n
		}, []string{"MissingMasquerade likely 172.20.1.5 198.51.100.7 203.0.113.9"}},
		{"no rule where programs are told not to, for pods that the network knows", func() *testNode {
			n := direct("cilium", out, out2)
			n.Cilium.Untranslated = []int{4}
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("172.20.0.0/16"), IfIndex: n.Links[0].Index, Type: "unicast"})
			return n
		}, []string{"NoReply likely 172.20.1.5 198.51.100.7 203.0.113.9"}},
		{"no rule where a pool may have none, one target", func() *testNode { return direct("calico", out) }, []string{"NoReply likely 172.20.1.5 203.0.113.9"}},
		{"no rule where a pool may have none, several targets", func() *testNode { return direct("calico", out, out2) },
			[]string{"MissingMasquerade likely 172.20.1.5 198.51.100.7 203.0.113.9"}},
		{"no rule, and a private target is down", func() *testNode { return direct("kubenet", "192.168.7.1") }, []string{"NoReply likely 172.20.1.5 192.168.7.1"}},
		{"routers refuse all of it", func() *testNode {
			n := direct("kindnet")
			refused := model.PeerCount{Packets: 4, ICMPErrors: 4}
			n.peer(pod5, out, syn, refused)
			n.peer(pod5, out2, syn, refused)
			return n
		}, []string{"MissingMasquerade proven 172.20.1.5 198.51.100.7 203.0.113.9"}},
		{"the cloud's route leads straight to the internet", func() *testNode {
			n := direct("azure-overlay", out)
			n.cloud().Effective = []model.EffectiveRoutes{{File: "e", Routes: []model.UDR{
				{Prefixes: []netip.Prefix{prefix("10.50.0.0/16")}, Type: "VnetLocal", Active: true},
				{Prefixes: []netip.Prefix{prefix("0.0.0.0/0")}, Type: "Internet", Active: true}}}}
			return n
		}, []string{"MissingMasquerade proven 172.20.1.5 203.0.113.9"}},
		{"the cloud's route leads to a firewall", func() *testNode {
			n := direct("azure-overlay", out)
			n.cloud().Effective = []model.EffectiveRoutes{{File: "e", Routes: []model.UDR{udr("0.0.0.0/0", "10.50.9.9")}}}
			return n
		}, []string{"MissingMasquerade likely 172.20.1.5 203.0.113.9"}},
	})
}

// TestExclusionFix: what may be meant is not deleted before that was found out.
func TestExclusionFix(t *testing.T) {
	n := kubenet()
	n.exclude("0.0.0.0/0")
	n.silent(pod5, out)
	if fix := Diagnose(&n.Snapshot)[0].Fix; len(fix) != 1 || !strings.HasPrefix(fix[0], "# ip-masq-agent manages the rule: ") {
		t.Errorf("fix %q of a rule that an agent keeps", fix)
	}
	for r := range model.Each(n.PacketRules) {
		if r.Chain == "IP-MASQ-AGENT" {
			r.Chain = "POSTROUTING"
		}
	}
	n.PacketRules = slices.DeleteFunc(n.PacketRules, func(r model.PacketRule) bool { return r.Target == "IP-MASQ-AGENT" })
	if fix := Diagnose(&n.Snapshot)[0].Fix; len(fix) != 3 || fix[1] != "# if the exclusion is not intended:" ||
		fix[2] != "iptables-nft -t nat -D POSTROUTING -d 0.0.0.0/0 -j RETURN" {
		t.Errorf("fix %q of a rule by hand", fix)
	}
}

// TestMasqueradeGap: flows that began while an agent wrote its rules anew keep the pod's
// address, and get no reply; those behind them are translated again.
func TestMasqueradeGap(t *testing.T) {
	gap := func(last time.Time, packets uint64) *testNode {
		n := kubenet()
		n.silent(pod5, out)
		n.Traffic.Peers[0].LastOut, n.Traffic.Peers[0].Out.Packets = last, packets
		n.translated(pod5, out, out, "10.50.0.4", true)
		n.answered("10.50.0.4", out)
		n.answered(pod5, far)
		return n
	}
	check(t, []fixture{
		{"it is over", func() *testNode { return gap(end.Add(-4*time.Second), 40) }, nil},
		{"a SYN of the gap is sent again", func() *testNode { return gap(end, 2) }, nil},
		{"it lasts", func() *testNode { return gap(end, 40) }, []string{"MissingMasquerade possible 172.20.1.5 203.0.113.9"}},
	})
}

// TestRuleForAbsentLink: the rule that would masquerade names a link that was renamed. One that is for other packets is not told.
func TestRuleForAbsentLink(t *testing.T) {
	for _, tt := range []struct {
		link string
		dst  model.AddrMatch
		told bool
	}{
		{"ens6", model.AddrMatch{}, true},
		{"ens5", model.AddrMatch{}, false}, // the uplink: then the packets are masqueraded
		{"ens+", to("192.168.0.0/16"), false},
		{"ens6", to("192.168.0.0/16"), false},
	} {
		n := kubenet()
		n.PacketRules = []model.PacketRule{{Backend: model.NFT, Family: "ip", Table: "nat", Chain: "POSTROUTING", Number: 1,
			Out: model.IfMatch{Name: tt.link}, Dst: tt.dst, Target: "MASQUERADE", Text: "-o " + tt.link + " -j MASQUERADE"}}
		n.answered("10.50.0.4", "10.50.0.5")
		n.silent(pod5, out)
		told := slices.ContainsFunc(Diagnose(&n.Snapshot), func(f model.Finding) bool {
			return f.Code == "MissingMasquerade" && strings.Contains(f.Why, "for the link "+tt.link)
		})
		if told != tt.told {
			t.Errorf("a rule for %s and %v: told %v", tt.link, tt.dst, told)
		}
	}
}
