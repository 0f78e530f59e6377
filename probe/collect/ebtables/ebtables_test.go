package ebtables

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// rules are those of the facts about plugins, and one or more of each match
// and target of ebtables.
var rules = []string{
	"-t nat -A POSTROUTING -s unicast -o eth0 -j snat --to-src 00:0d:3a:01:02:03 --snat-arp --snat-target ACCEPT",
	"-t nat -A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.240.0.4 -j arpreply --arpreply-mac 00:0d:3a:01:02:03 --arpreply-target DROP",
	"-t nat -A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.240.0.5 -j arpreply --arpreply-mac 00:0d:3a:01:02:03 --arpreply-target ACCEPT",
	"-t nat -A PREROUTING -p ARP -i eth0 --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT",
	"-t nat -A PREROUTING -p IPv4 -i eth0 --ip-dst 10.240.0.32 -j dnat --to-dst a2:96:88:20:cb:c6 --dnat-target ACCEPT",
	"-t nat -A PREROUTING -i az+ -j dnat --to-dst 12:34:56:78:9a:bc",
	"-t nat -A PREROUTING -p IPv4 ! -i eth0 --ip-src ! 10.0.0.0/8 --ip-proto udp --ip-sport 1:100 --ip-dport ! 53 -j mark --mark-set 0x5 --mark-target CONTINUE",
	"-t nat -A PREROUTING -j mark --mark-or 0x10 --mark-target ACCEPT",
	"-t nat -A PREROUTING -p IPv4 --ip-src 10.0.0.0/255.0.255.0 --ip-tos 0x10 -j ACCEPT",
	"-t nat -A PREROUTING -p IPv4 --ip-proto icmp --ip-icmp-type echo-request -j ACCEPT",
	"-t nat -A PREROUTING -p 802_1Q --vlan-id 10 -j DROP",
	"-t nat -A PREROUTING -p 802_1Q --vlan-prio ! 3 --vlan-encap ARP -j DROP",
	"-t nat -A PREROUTING -p ! IPv4 -d Multicast -j CONTINUE",
	"-t nat -A PREROUTING -p IPv6 --ip6-dst fd00::/64 --ip6-proto tcp --ip6-dport 80 -j ACCEPT",
	"-t nat -A PREROUTING -p IPv6 --ip6-proto ipv6-icmp --ip6-icmp-type echo-request -j ACCEPT",
	"-t nat -A PREROUTING -d BGA -j ACCEPT",
	"-t nat -A PREROUTING --mark 0x1/0xff -j ACCEPT",
	"-t nat -A PREROUTING --mark ! 5 -j redirect --redirect-target DROP",
	"-t nat -A PREROUTING --pkttype-type broadcast -j ACCEPT",
	"-t nat -A PREROUTING --limit 3/sec --limit-burst 7 --log-prefix hello --log-ip -j ACCEPT",
	"-t nat -A PREROUTING -p ARP --arp-htype 1 --arp-ptype 0x0800 --arp-mac-src 00:11:22:33:44:55 --arp-gratuitous -j DROP",
	"-t nat -A PREROUTING -p ARP --arp-op ! Request --arp-ip-src ! 10.1.0.0/16 -j DROP",
	"-t nat -A PREROUTING -p LENGTH -j DROP",
	"-t nat -A PREROUTING",
	"-t nat -N USERC -P RETURN",
	"-t nat -A PREROUTING -j USERC",
	// Legacy ebtables returns from chains of users only.
	"-t nat -A USERC -p 0x1234 -s ! 00:11:22:33:44:55/ff:ff:ff:00:00:00 -j RETURN",
	"-t nat -A USERC -d Broadcast -j RETURN",
	"-t filter -N KUBE-DEDUP",
	"-t filter -A OUTPUT -j KUBE-DEDUP",
	"-t filter -A KUBE-DEDUP -p IPv4 -s 0a:58:0a:f4:00:01 -o veth+ --ip-src 10.244.0.1 -j ACCEPT",
	"-t filter -A KUBE-DEDUP -p IPv4 -s 0a:58:0a:f4:00:01 -o veth+ --ip-src 10.244.0.0/24 -j DROP",
	"-t filter -P FORWARD DROP",
}

// tool is ebtables in the variant that keeps its rules in backend: that of nft, or
// as LASTHOP_TABLES wants, for kernels that have legacy ebtables.
func tool() (name string, backend model.Backend) {
	if os.Getenv("LASTHOP_TABLES") == string(model.Legacy) {
		return "ebtables-legacy", model.Legacy
	}
	return "ebtables-nft", model.NFT
}

func read(t *testing.T, ns *nstest.NS) Tables {
	t.Helper()
	kernel := kmod.New("/")
	c := dump.NewNetfilter(ns.NS, kernel, kmod.NFTables)
	defer c.Close()
	got, _, err := Read(context.Background(), ns.NS, kernel, c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestAsPrinted loads rules with the real tool and wants them back word for
// word, and gone when each is deleted by its text.
func TestAsPrinted(t *testing.T) {
	ns := nstest.New(t)
	ebtables, _ := tool()
	for _, r := range rules {
		ns.Run(ebtables + " " + r)
	}
	got := read(t, ns)
	for _, table := range []string{"nat", "filter"} {
		want := printed(ns.Output(ebtables + " -t " + table + " -L --Lmac2"))
		var have []string
		for _, r := range got.Rules {
			if r.Table == table {
				have = append(have, r.Chain+" "+r.Text)
			}
		}
		slices.SortStableFunc(have, byChain)
		if !slices.Equal(have, want) {
			t.Errorf("table %s:\n got %s\nwant %s", table, strings.Join(have, "\n     "), strings.Join(want, "\n     "))
		}
	}
	for _, r := range got.Rules {
		ns.Run(ebtables + " -t " + r.Table + " -D " + r.Chain + " " + r.Text)
	}
	if left := read(t, ns).Rules; len(left) != 0 {
		t.Errorf("left after deletion: %+v", left)
	}
}

// TestByNumber deletes rules by their places, as those are that no text of ours
// deletes: their matches have no decoder.
func TestByNumber(t *testing.T) {
	ns := nstest.New(t)
	ebtables, _ := tool()
	ns.Run(
		ebtables+" -A FORWARD -p IPv4 -j ACCEPT",
		ebtables+" -A FORWARD --among-dst 02:00:00:00:00:01=10.0.0.1,02:00:00:00:00:02 -j DROP",
		ebtables+" -A FORWARD -p IPv6 -j ACCEPT",
	)
	got := read(t, ns).Rules
	if len(got) != 3 || len(got[1].Unknown) == 0 || got[1].Number != 2 {
		t.Fatalf("rules: %+v", got)
	}
	ns.Run(fmt.Sprintf("%s -t %s -D %s %d", ebtables, got[1].Table, got[1].Chain, got[1].Number))
	if left := read(t, ns).Rules; len(left) != 2 || left[0].Text != got[0].Text || left[1].Text != got[2].Text {
		t.Errorf("left: %+v", left)
	}
}

func byChain(a, b string) int {
	x, _, _ := strings.Cut(a, " ")
	y, _, _ := strings.Cut(b, " ")
	return strings.Compare(x, y)
}

var chainLine = regexp.MustCompile(`^Bridge chain: (\S+),`)

// numbers replaces the names that ebtables has and the kernel has not.
var numbers = strings.NewReplacer(
	"--ip-icmp-type echo-request", "--ip-icmp-type 8", "--ip6-icmp-type echo-request", "--ip6-icmp-type 128",
	// These two are from /etc/ethertypes.
	"--vlan-encap ARP", "--vlan-encap 0806", "--arp-ptype IPv4", "--arp-ptype 0x800",
)

// blanks are what legacy ebtables prints more of than one.
var blanks = regexp.MustCompile(` +`)

// plain is a rule that ebtables printed, as this package writes it.
func plain(line string) string { return numbers.Replace(blanks.ReplaceAllString(line, " ")) }

// printed are the rules in the output of ebtables -L, as "CHAIN TEXT".
func printed(out string) []string {
	var list []string
	chain := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := chainLine.FindStringSubmatch(line); m != nil {
			chain = m[1]
		} else if strings.HasPrefix(line, "-") {
			list = append(list, chain+" "+plain(line))
		}
	}
	slices.SortStableFunc(list, byChain)
	return list
}

func FuzzExtension(f *testing.F) {
	f.Fuzz(func(t *testing.T, target bool, name string, info []byte) {
		var b builder
		b.compat(nft.Extension{Target: target, Name: name, Info: info})
		if r := b.build(); r.Text == "" || r.Target == "" {
			t.Errorf("rule without text or target: %+v", r)
		}
	})
}

func FuzzRule(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte, native bool) {
		r, err := nft.DecodeRule(m)
		if err != nil {
			return
		}
		chain := nft.Chain{Table: r.Table, Name: r.Chain, Base: native}
		fromSet(nft.Ruleset{Chains: []nft.Chain{chain}, Rules: []nft.Rule{r}})
	})
}

// TestFields compares what judges read with the rules as written.
func TestFields(t *testing.T) {
	ns := nstest.New(t)
	ebtables, backend := tool()
	for _, r := range rules {
		ns.Run(ebtables + " " + r)
	}
	mac := func(s string) model.MAC {
		m, err := model.ParseMAC(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	match := func(s string) model.AddrMatch { return model.AddrMatch{Prefix: netip.MustParsePrefix(s)} }
	got := read(t, ns)
	for _, want := range []model.FrameRule{
		{
			Table: "nat", Chain: "PREROUTING", Number: 1, Text: "-p ARP --arp-op Request --arp-ip-dst 10.240.0.4 -j arpreply --arpreply-mac 00:0d:3a:01:02:03",
			EtherType: 0x0806, ARPOp: 1, ARPDst: match("10.240.0.4/32"),
			Target: model.TargetARPReply, TargetName: "arpreply", MAC: mac("00:0d:3a:01:02:03"), Verdict: model.TargetDrop,
		},
		{
			Table: "nat", Chain: "PREROUTING", Number: 4, Text: "-p IPv4 -i eth0 --ip-dst 10.240.0.32 -j dnat --to-dst a2:96:88:20:cb:c6 --dnat-target ACCEPT",
			In: model.IfMatch{Name: "eth0"}, EtherType: 0x0800, IPDst: match("10.240.0.32/32"),
			Target: model.TargetDNAT, TargetName: "dnat", MAC: mac("a2:96:88:20:cb:c6"), Verdict: model.TargetAccept,
		},
		{
			Table: "nat", Chain: "POSTROUTING", Number: 1, Text: "-s Unicast -o eth0 -j snat --to-src 00:0d:3a:01:02:03 --snat-arp --snat-target ACCEPT",
			Out: model.IfMatch{Name: "eth0"}, SrcMAC: model.MACMatch{Mask: model.MAC{1}, Set: true},
			Target: model.TargetSNAT, TargetName: "snat", MAC: mac("00:0d:3a:01:02:03"), Verdict: model.TargetAccept,
		},
		{
			Table: "filter", Chain: "KUBE-DEDUP", Number: 2, Text: "-p IPv4 -s 0a:58:0a:f4:00:01 -o veth+ --ip-src 10.244.0.0/24 -j DROP",
			Out: model.IfMatch{Name: "veth+"}, EtherType: 0x0800, IPSrc: match("10.244.0.0/24"),
			SrcMAC: model.MACMatch{Addr: mac("0a:58:0a:f4:00:01"), Mask: model.Broadcast, Set: true}, Target: model.TargetDrop,
		},
		{
			Table: "filter", Chain: "OUTPUT", Number: 1, Text: "-j KUBE-DEDUP", Target: model.TargetJump, TargetName: "KUBE-DEDUP",
		},
		{
			Table: "nat", Chain: "PREROUTING", Number: 6, Text: "-p IPv4 -i ! eth0 --ip-src ! 10.0.0.0/8 --ip-proto udp --ip-sport 1:100 --ip-dport ! 53 -j mark --mark-set 0x5 --mark-target CONTINUE",
			In: model.IfMatch{Name: "eth0", Not: true}, EtherType: 0x0800,
			IPSrc:   model.AddrMatch{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Not: true},
			Unknown: []string{"--ip-proto udp --ip-sport 1:100 --ip-dport ! 53"},
			Target:  model.TargetOther, TargetName: "mark", Verdict: model.TargetContinue,
		},
	} {
		want.Backend = backend
		i := slices.IndexFunc(got.Rules, func(r model.FrameRule) bool {
			return r.Table == want.Table && r.Chain == want.Chain && r.Number == want.Number
		})
		if i < 0 {
			t.Fatalf("no rule %s %s %d", want.Table, want.Chain, want.Number)
		}
		want.Handle = got.Rules[i].Handle
		if (want.Handle != 0) != (backend == model.NFT) || !reflect.DeepEqual(got.Rules[i], want) {
			t.Errorf("\n got %+v\nwant %+v", got.Rules[i], want)
		}
	}
	for _, c := range got.Chains {
		want := map[string]string{"FORWARD": "DROP", "KUBE-DEDUP": "ACCEPT", "USERC": ""}
		if w, ok := want[c.Name]; ok && c.Policy != w {
			t.Errorf("chain %s has policy %q, want %q", c.Name, c.Policy, w)
		}
	}
}

// TestNative reads rules that nft wrote itself.
func TestNative(t *testing.T) {
	ns := nstest.New(t)
	ns.Feed(`table bridge fix {
	chain pre {
		type filter hook prerouting priority -300; policy accept;
		iifname "up*" ether type ip ip daddr 10.1.2.3 counter packets 7 bytes 70 ether daddr set 02:00:00:00:00:09 accept
		arp operation request arp daddr ip 10.1.2.4 drop
		ip6 saddr != fd00::/64 drop
		tcp dport { 80, 443 } drop
	}
}
`, "nft", "-f", "-")
	got := read(t, ns).Rules
	if len(got) != 4 {
		t.Fatalf("%d rules: %+v", len(got), got)
	}
	want := model.FrameRule{
		Backend: model.NFT, Table: "fix", Chain: "pre", Number: 1, Handle: got[0].Handle, Native: true,
		Text: `iifname "up*" ether type IPv4 ip daddr 10.1.2.3 ether daddr set 02:00:00:00:00:09 accept`,
		In:   model.IfMatch{Name: "up+"}, EtherType: 0x0800, IPDst: model.AddrMatch{Prefix: netip.MustParsePrefix("10.1.2.3/32")},
		Target: model.TargetDNAT, MAC: model.MAC{2, 0, 0, 0, 0, 9}, Verdict: model.TargetAccept,
		Counter: model.Counter{Packets: 7, Bytes: 70, Kept: true},
	}
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("\n got %+v\nwant %+v", got[0], want)
	}
	if r := got[1]; r.EtherType != 0x0806 || r.ARPOp != 1 || r.ARPDst.Prefix != netip.MustParsePrefix("10.1.2.4/32") || r.Target != model.TargetDrop || len(r.Unknown) > 0 {
		t.Errorf("ARP rule: %+v", r)
	}
	if r := got[2]; r.EtherType != 0x86dd || !r.IPSrc.Not || r.IPSrc.Prefix != netip.MustParsePrefix("fd00::/64") || len(r.Unknown) > 0 {
		t.Errorf("IPv6 rule: %+v", r)
	}
	if r := got[3]; len(r.Unknown) == 0 || r.Target != model.TargetDrop {
		t.Errorf("a rule with a set has no unknown match: %+v", r)
	}
	for _, r := range got {
		ns.Run(fmt.Sprintf("nft delete rule bridge %s %s handle %d", r.Table, r.Chain, r.Handle))
	}
}

// TestWriteAcrossMACs has a rule that writes parts of both MACs, which is neither
// dnat nor snat.
func TestWriteAcrossMACs(t *testing.T) {
	write := nft.Write{Load: nft.Load{Source: nft.FromPayload, Base: expr.PayloadBaseLLHeader, Offset: 3, Len: 6}, Value: []byte{1, 2, 3, 4, 5, 6}}
	set := nft.Ruleset{Chains: []nft.Chain{{Table: "t", Name: "c"}}, Rules: []nft.Rule{{Table: "t", Chain: "c", Items: []nft.Item{write}}}}
	if r := fromSet(set).Rules[0]; r.Target != model.TargetOther || r.Text != write.String() || r.TargetName != r.Text {
		t.Errorf("%+v", r)
	}
}

// TestBothApply has matches of which the rule's fields can express one: the other
// is unknown, not lost.
func TestBothApply(t *testing.T) {
	meta := func(key expr.MetaKey, value, mask []byte) nft.Match {
		return nft.Match{Load: nft.Load{Source: nft.FromMeta, Key: uint32(key)}, Value: value, Mask: mask}
	}
	ether := nft.Match{Load: nft.Load{Source: nft.FromPayload, Base: expr.PayloadBaseLLHeader, Offset: etherTypeAt, Len: 2}, Value: []byte{0x81, 0}}
	for _, items := range [][]nft.Item{
		{meta(expr.MetaKeyPROTOCOL, []byte{8, 0}, nil), ether},
		{meta(expr.MetaKeyIIFNAME, []byte("eth0\x00"), []byte{0xff, 0, 0, 0, 0})},
	} {
		set := nft.Ruleset{Chains: []nft.Chain{{Table: "t", Name: "c"}}, Rules: []nft.Rule{{Table: "t", Chain: "c", Items: items}}}
		if r := fromSet(set).Rules[0]; len(r.Unknown) != 1 || r.EtherType != 0 && r.EtherType != 0x0800 {
			t.Errorf("%+v", r)
		}
	}
}

// TestCounters sends frames through rules and compares with ebtables' counts.
func TestCounters(t *testing.T) {
	ebtables, _ := tool()
	bridge, left, right := nstest.New(t), nstest.New(t), nstest.New(t)
	bridge.Run("ip link add br0 type bridge", "ip link set br0 up")
	for i, ns := range []*nstest.NS{left, right} {
		bridge.Run(
			fmt.Sprintf("ip link add port%d type veth peer name eth0 netns %s", i, ns.Path()),
			fmt.Sprintf("ip link set port%d master br0 up", i),
		)
		ns.Run("ip link set eth0 up", fmt.Sprintf("ip addr add 10.3.0.%d/24 dev eth0", i+1))
	}
	bridge.Run(
		ebtables+" -t nat -A PREROUTING -p IPv4 -i port0 --ip-dst 10.3.0.2",
		ebtables+" -t nat -A PREROUTING -p ARP",
	)
	left.Run("ping -c 3 -i 0.01 10.3.0.2")
	got := read(t, bridge).Rules
	if len(got) != 2 || got[0].Counter.Packets != 3 || got[0].Counter.Bytes != 3*84 || got[1].Counter.Packets < 2 {
		t.Errorf("counters: %+v", got)
	}
	listed := bridge.Output(ebtables + " -t nat -L PREROUTING --Lc")
	if want := fmt.Sprintf("pcnt = %d -- bcnt = %d", got[0].Counter.Packets, got[0].Counter.Bytes); !strings.Contains(listed, want) {
		t.Errorf("ebtables lists %q, want %q", listed, want)
	}
}
