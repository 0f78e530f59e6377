package iptables

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// rules4 are rules of the kinds that plugins, kube-proxy and people write.
var rules4 = []string{
	"-t nat -N IP-MASQ-AGENT",
	`-t nat -A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL traffic" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT`,
	`-t nat -A IP-MASQ-AGENT -d 10.0.0.0/8 -m comment --comment "local traffic is not subject to MASQUERADE" -j RETURN`,
	"-t nat -A IP-MASQ-AGENT -m comment --comment plain -j MASQUERADE",
	"-t nat -A IP-MASQ-AGENT",
	`-t nat -A POSTROUTING ! -d 10.0.0.0/8 -o eth0 -m comment --comment 'SNAT for "outbound" traffic' -m addrtype ! --dst-type LOCAL -j MASQUERADE`,
	"-t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE --random-fully",
	"-t nat -A POSTROUTING -s 10.244.0.7/32 -p tcp -m tcp --dport 53 -j SNAT --to-source 10.0.0.4",
	"-t nat -A POSTROUTING -p udp -m udp --sport 1000:2000 ! --dport 53 -j SNAT --to-source 10.0.0.4-10.0.0.9:1024-2048 --random",
	"-t nat -A POSTROUTING -s 192.168.129.0/25 ! -o docker+ -j MASQUERADE",
	"-t nat -A PREROUTING ! -i cbr+ -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.0.5:8080",
	"-t nat -A PREROUTING -p tcp -m multiport --dports 80,443,8000:8100 -j DNAT --to-destination 10.244.0.5",
	"-t nat -A PREROUTING -p tcp -m multiport ! --sports 80 -j REDIRECT --to-ports 8080",
	"-t nat -A PREROUTING -m mark --mark 0x4000/0x4000 -j MARK --set-xmark 0x4000/0x4000",
	"-t nat -A PREROUTING -m mark ! --mark 0x1 -j RETURN",
	"-t nat -A PREROUTING -m statistic --mode random --probability 0.33333333349 -j RETURN",
	"-t nat -A PREROUTING -m statistic --mode nth --every 3 --packet 0 -j RETURN",
	"-t filter -N AGENT",
	"-t filter -A AGENT -j RETURN",
	"-t filter -A FORWARD -m addrtype --dst-type LOCAL --limit-iface-in -g AGENT",
	"-t nat -A PREROUTING -p icmp -m icmp --icmp-type 8 -j ACCEPT",
	"-t nat -A PREROUTING ! -p tcp",
	"-t filter -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	"-t filter -A FORWARD -m conntrack ! --ctstate INVALID -j ACCEPT",
	"-t filter -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT",
	"-t filter -A FORWARD -m state --state NEW -j ACCEPT",
	"-t filter -A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 80 -j DROP",
	"-t filter -A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j ACCEPT",
	"-t filter -A FORWARD -j REJECT --reject-with icmp-port-unreachable",
	"-t filter -A FORWARD -p tcp -j REJECT --reject-with tcp-reset",
	"-t filter -A FORWARD -s 10.0.0.0/255.0.255.0 -f -j ACCEPT",
	`-t filter -A FORWARD -m limit --limit 5/min -j LOG --log-prefix "a b: "`,
	"-t filter -A FORWARD -m limit --limit 3/sec --limit-burst 7 -j ACCEPT",
	"-t filter -A FORWARD -m iprange --src-range 10.0.0.1-10.0.0.9 -j ACCEPT",
	"-t filter -A FORWARD -m mac --mac-source 00:11:22:aa:bb:cc -j ACCEPT",
	"-t filter -A FORWARD -m physdev --physdev-in cali+ -j ACCEPT",
	"-t mangle -A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
	"-t mangle -A FORWARD -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff",
	"-t raw -A PREROUTING -p udp -m udp --dport 53 -j NOTRACK",
	// Session affinity, and the counts that kube-proxy keeps.
	"-t nat -A PREROUTING -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-ABC --mask 255.255.255.255 --rsource -j RETURN",
	"-t nat -A PREROUTING -p tcp -m recent ! --update --seconds 60 --hitcount 4 --rttl --name KUBE-SEP-ABC --mask 255.255.255.0 --rdest -j RETURN",
	"-t nat -A PREROUTING -p sctp -m recent --set --name KUBE-SEP-ABC --mask 255.255.255.255 --rsource -m sctp --dport 80:90 -j DNAT --to-destination 10.244.0.5:80",
	"-t filter -A FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP",
	// What Calico, Cilium and Azure's agents write.
	"-t nat -A POSTROUTING -m set --match-set cali40all-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE",
	"-t filter -A FORWARD -m set --match-set azure-npm-806075013 dst -j DROP",
	"-t raw -A PREROUTING -m rpfilter --validmark --invert -j DROP",
	"-t raw -A PREROUTING -m rpfilter --loose --accept-local -j ACCEPT",
	"-t filter -A FORWARD -p tcp -m conntrack --ctstate DNAT --ctproto 6 ! --ctorigdst 10.0.0.0/8 --ctorigdstport 80:90 --ctstatus SEEN_REPLY --ctdir ORIGINAL -j ACCEPT",
	"-t filter -A FORWARD -m conntrack --ctreplsrc 10.244.0.5 ! --ctorigsrcport 53 --ctexpire 5:10 --ctdir REPLY -j ACCEPT",
	"-t filter -A FORWARD -p tcp -m connlimit --connlimit-above 5 --connlimit-mask 0 --connlimit-saddr -j REJECT --reject-with tcp-reset",
	"-t filter -A FORWARD -p tcp -m connlimit --connlimit-upto 5 --connlimit-mask 24 --connlimit-daddr -j ACCEPT",
	"-t mangle -A PREROUTING -m socket --transparent --nowildcard -j MARK --set-xmark 0x200/0xffffffff",
	"-t mangle -A PREROUTING -p tcp -m mark --mark 0x3920200 -j TPROXY --on-port 37379 --on-ip 127.0.0.1 --tproxy-mark 0x200/0xffffffff",
	"-t filter -A OUTPUT -d 168.63.129.16/32 -p tcp -m owner --uid-owner 0 -j ACCEPT",
	"-t filter -A OUTPUT -m owner --socket-exists ! --gid-owner 5-9 --suppl-groups -j ACCEPT",
	"-t filter -A FORWARD -m pkttype ! --pkt-type broadcast -j ACCEPT",
	`-t filter -A FORWARD -j NFLOG --nflog-prefix "DRPf|a b" --nflog-group 1 --nflog-size 80`,
	"-t filter -A FORWARD -j NFLOG --nflog-group 2 --nflog-threshold 3",
	"-t filter -A FORWARD -j NFQUEUE --queue-num 3 --queue-bypass",
	"-t filter -A FORWARD -j NFQUEUE --queue-balance 3:5 --queue-cpu-fanout",
	"-t mangle -A POSTROUTING -p udp -j CHECKSUM --checksum-fill",
	"-t raw -A OUTPUT -j TRACE",
	"-t filter -P FORWARD DROP",
}

var rules6 = []string{
	"-t nat -A POSTROUTING -s fd00:1::/64 ! -d fd00::/16 -o eth0 -j MASQUERADE",
	"-t nat -A PREROUTING -d fd00::1/128 -p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00:1::5]:8080",
	"-t nat -A POSTROUTING -s fd00:1::7/128 -j SNAT --to-source fd00::4",
	"-t filter -A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT",
	"-t filter -A FORWARD ! -s fe80::/10 -j REJECT --reject-with icmp6-port-unreachable",
	"-t filter -A FORWARD -m recent --set --name K --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource",
	"-t filter -A FORWARD -m conntrack --ctorigdst fd00::/16 -j ACCEPT",
	"-t filter -A FORWARD -p tcp -m connlimit --connlimit-above 5 --connlimit-mask 64 --connlimit-saddr -j DROP",
	"-t filter -A FORWARD -m set --match-set cali60all-ipam-pools src -j DROP",
	"-t mangle -A PREROUTING -p tcp -j TPROXY --on-port 37379 --on-ip ::1 --tproxy-mark 0x200/0xffffffff",
}

func read(t testing.TB, ns *nstest.NS) Tables {
	t.Helper()
	kernel := kmod.New("/")
	c := dump.NewNetfilter(ns.NS, kernel, kmod.NFTables)
	defer c.Close()
	got, _, err := new(Reader).Read(context.Background(), ns.NS, kernel, c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// account makes the object by which kube-proxy counts. Its tool, nfacct, is not needed
// for anything else.
func account(t *testing.T, ns *nstest.NS) {
	t.Helper()
	const subsystem, create, name = 7, 0, 1 // NFNL_SUBSYS_ACCT, NFNL_MSG_ACCT_NEW, NFACCT_NAME
	err := ns.Do(func() error {
		request := nl.NewNetlinkRequest(subsystem<<8|create, unix.NLM_F_CREATE|unix.NLM_F_ACK)
		request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: unix.NFNETLINK_V0})
		request.AddData(nl.NewRtAttr(name, nl.ZeroTerminated("ct_state_invalid_dropped_pkts")))
		_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
		return err
	})
	if err != nil {
		t.Fatalf("make an accounting object: %v", err)
	}
}

// makeSets makes the sets that the rules name.
func makeSets(t *testing.T, ns *nstest.NS) {
	t.Helper()
	err := ns.Do(func() error {
		for name, family := range map[string]uint8{
			"azure-npm-806075013": netlink.FAMILY_V4, "cali40all-ipam-pools": netlink.FAMILY_V4, "cali60all-ipam-pools": netlink.FAMILY_V6,
		} {
			if err := netlink.IpsetCreate(name, "hash:net", netlink.IpsetCreateOptions{Family: family}); err != nil {
				return fmt.Errorf("make the set %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var tables = []string{"raw", "mangle", "nat", "filter"}

// TestAsPrinted loads rules with the real tool and wants them back word for
// word, and gone when each is deleted by its text.
func TestAsPrinted(t *testing.T) {
	for _, tt := range []struct {
		name, tool string
		backend    model.Backend
		family     string
		rules      []string
	}{
		{"nft 4", "iptables-nft", model.NFT, "ip", rules4},
		{"nft 6", "ip6tables-nft", model.NFT, "ip6", rules6},
		{"legacy 4", "iptables-legacy", model.Legacy, "ip", rules4},
		{"legacy 6", "ip6tables-legacy", model.Legacy, "ip6", rules6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			account(t, ns)
			makeSets(t, ns)
			for _, r := range tt.rules {
				ns.Run(tt.tool + " -w " + r)
			}
			got := read(t, ns)
			for _, table := range tables {
				want := printed(ns.Output(tt.tool + " -w -S -t " + table))
				if have := texts(got, table); !slices.Equal(have, want) {
					t.Errorf("table %s:\n got %s\nwant %s", table, strings.Join(have, "\n     "), strings.Join(want, "\n     "))
				}
			}
			for _, r := range got.Rules {
				if r.Backend != tt.backend || r.Family != tt.family || r.Native {
					t.Fatalf("%s: backend %s, family %s, native %v", r.Text, r.Backend, r.Family, r.Native)
				}
				ns.Run(tt.tool + " -w -t " + r.Table + " -D " + r.Chain + " " + r.Text)
			}
			if left := read(t, ns).Rules; len(left) != 0 {
				t.Errorf("left after deletion: %+v", left)
			}
		})
	}
}

// printed are the rules in the output of iptables -S, as "CHAIN TEXT", sorted
// by chain and otherwise in order.
func printed(out string) []string {
	var list []string
	for line := range strings.Lines(out) {
		if r, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "); ok {
			// iptables has two spaces there.
			list = append(list, strings.Replace(r, "--nfacct-name  ", "--nfacct-name ", 1))
		}
	}
	return byChain(list)
}

func texts(t Tables, table string) []string {
	var list []string
	for _, r := range t.Rules {
		if r.Table == table {
			list = append(list, strings.TrimSpace(r.Chain+" "+r.Text))
		}
	}
	return byChain(list)
}

func byChain(list []string) []string {
	slices.SortStableFunc(list, func(a, b string) int {
		x, _, _ := strings.Cut(a, " ")
		y, _, _ := strings.Cut(b, " ")
		return strings.Compare(x, y)
	})
	return list
}

func FuzzLegacy(f *testing.F) {
	f.Fuzz(func(t *testing.T, six bool, info, blob []byte) {
		if len(info) < infoLen {
			return
		}
		l := layout4
		if six {
			l = layout6
		}
		tb := table{layout: l, name: "nat", blob: blob}
		if _, err := binary.Decode(info, binary.NativeEndian, &tb.getinfo); err != nil {
			t.Fatal(err)
		}
		got, err := tb.decode()
		if len(tb.rules) != len(got.Rules) || len(tb.chains) != len(got.Chains) {
			t.Errorf("counters of %d rules and %d chains: %+v", len(tb.rules), len(tb.chains), got)
		}
		again := tb
		again.blob = slices.Clone(blob)
		before := make([]model.Counter, len(tb.rules))
		again.count(before, tb.rules)
		for _, at := range tb.rules {
			binary.NativeEndian.PutUint64(again.blob[at+l.counters:], 0)
		}
		counted := slices.ContainsFunc(before, func(c model.Counter) bool { return c.Packets != 0 })
		if same := again.is(&tb); err == nil && !same || again.count(before, tb.rules) == counted {
			t.Errorf("the same table with other counters: %v", same)
		}
	})
}

func FuzzRule(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		r, err := nft.DecodeRule(m)
		if err != nil {
			return
		}
		chain := nft.Chain{Table: r.Table, Name: r.Chain}
		for _, fam := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet} {
			fromSet(nft.Ruleset{Chains: []nft.Chain{chain}, Rules: []nft.Rule{r}}, fam, nil)
		}
	})
}

// TestFields compares what judges read with the rules as written; both
// backends must tell the same.
func TestFields(t *testing.T) {
	prefix := netip.MustParsePrefix
	local := model.AddrMatch{Prefix: prefix("10.0.0.0/8"), Not: true}
	wanted := []model.PacketRule{
		{
			Table: "nat", Chain: "POSTROUTING", Number: 2, Comment: `SNAT for "outbound" traffic`,
			Dst: local, Out: model.IfMatch{Name: "eth0"}, DstLocal: -1, Target: "MASQUERADE",
		},
		{
			Table: "nat", Chain: "POSTROUTING", Number: 4, Src: model.AddrMatch{Prefix: prefix("10.244.0.7/32")},
			Proto: 6, DstPorts: []model.PortRange{{First: 53, Last: 53}}, Target: "SNAT", To: netip.MustParseAddrPort("10.0.0.4:0"),
		},
		{
			Table: "nat", Chain: "POSTROUTING", Number: 5, Proto: 17, SrcPorts: []model.PortRange{{First: 1000, Last: 2000}},
			Unknown: []string{"! --dport 53"}, Target: "SNAT", ToPorts: model.PortRange{First: 1024, Last: 2048},
		},
		{
			Table: "nat", Chain: "PREROUTING", Number: 1, In: model.IfMatch{Name: "cbr+", Not: true}, Proto: 6,
			DstPorts: []model.PortRange{{First: 80, Last: 80}}, Target: "DNAT", To: netip.MustParseAddrPort("10.244.0.5:8080"),
		},
		{
			Table: "nat", Chain: "PREROUTING", Number: 2, Proto: 6, Target: "DNAT", To: netip.MustParseAddrPort("10.244.0.5:0"),
			DstPorts: []model.PortRange{{First: 80, Last: 80}, {First: 443, Last: 443}, {First: 8000, Last: 8100}},
		},
		{
			Table: "nat", Chain: "PREROUTING", Number: 4, Mark: model.MarkMatch{Value: 0x4000, Mask: 0x4000, Set: true}, Target: "MARK",
			SetMark: model.MarkWrite{Value: 0x4000, Mask: 0x4000},
		},
		{
			Table: "nat", Chain: "PREROUTING", Number: 6, Unknown: []string{"statistic --mode random --probability 0.33333333349"}, Target: "RETURN",
		},
		{
			Table: "filter", Chain: "FORWARD", Number: 1, DstLocal: 1, Unknown: []string{"addrtype --limit-iface-in"}, Target: "AGENT", Goto: true,
		},
		{
			Table: "filter", Chain: "FORWARD", Number: 2, Unknown: []string{"conntrack --ctstate RELATED,ESTABLISHED"}, Target: "ACCEPT",
		},
		{Table: "nat", Chain: "IP-MASQ-AGENT", Number: 3},
		{Table: "nat", Chain: "PREROUTING", Number: 9, Proto: 6, ProtoNot: true},
	}
	for tool, backend := range map[string]model.Backend{"iptables-nft": model.NFT, "iptables-legacy": model.Legacy} {
		t.Run(tool, func(t *testing.T) {
			ns := nstest.New(t)
			account(t, ns)
			makeSets(t, ns)
			for _, r := range rules4 {
				ns.Run(tool + " -w " + r)
			}
			got := read(t, ns)
			for _, want := range wanted {
				i := slices.IndexFunc(got.Rules, func(r model.PacketRule) bool {
					return r.Table == want.Table && r.Chain == want.Chain && r.Number == want.Number
				})
				if i < 0 {
					t.Fatalf("no rule %s %s %d", want.Table, want.Chain, want.Number)
				}
				have := got.Rules[i]
				want.Backend, want.Family, want.Text, want.Handle = backend, "ip", have.Text, have.Handle
				// A native match names an option, an extension itself too.
				for j := range have.Unknown {
					have.Unknown[j] = strings.TrimPrefix(have.Unknown[j], "udp ")
				}
				if !reflect.DeepEqual(have, want) {
					t.Errorf("%s\n got %+v\nwant %+v", have.Text, have, want)
				}
			}
			i := slices.IndexFunc(got.Chains, func(c model.Chain) bool { return c.Table == "filter" && c.Name == "FORWARD" })
			if i < 0 || got.Chains[i].Policy != "DROP" || got.Chains[i].Hook != "FORWARD" || got.Chains[i].Priority != 0 {
				t.Errorf("chain FORWARD: %+v", got.Chains)
			}
			i = slices.IndexFunc(got.Chains, func(c model.Chain) bool { return c.Table == "nat" && c.Name == "IP-MASQ-AGENT" })
			if i < 0 || got.Chains[i].Hook != "" {
				t.Errorf("chain IP-MASQ-AGENT: %+v", got.Chains)
			}
		})
	}
}

// TestCounters sends packets through rules and a policy.
func TestCounters(t *testing.T) {
	for _, tool := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(tool, func(t *testing.T) {
			ns := nstest.New(t)
			ns.Run("ip link set lo up", tool+" -w -A OUTPUT -d 127.0.0.9/32", "ping -c 3 -i 0.01 127.0.0.9")
			got := read(t, ns)
			if len(got.Rules) != 1 || got.Rules[0].Counter != (model.Counter{Packets: 3, Bytes: 3 * 84}) {
				t.Errorf("rules: %+v", got.Rules)
			}
		})
	}
}

// TestNothingIsMade reads a namespace without tables, and wants it to have
// none after that.
func TestNothingIsMade(t *testing.T) {
	ns := nstest.New(t)
	if got := read(t, ns); len(got.Rules)+len(got.Chains) != 0 {
		t.Errorf("an empty namespace holds %+v", got)
	}
	if left := ns.Output("cat /proc/self/net/ip_tables_names /proc/self/net/ip6_tables_names") + ns.Output("nft list tables"); left != "" {
		t.Errorf("reading made tables: %s", left)
	}
}

// TestNative reads rules that nft wrote itself.
func TestNative(t *testing.T) {
	ns := nstest.New(t)
	ns.Feed(`table inet masq {
	chain post {
		type nat hook postrouting priority 100; policy accept;
		ip saddr 10.1.0.0/16 ip daddr != 10.0.0.0/8 oifname != "br*" fib daddr type != local counter packets 4 bytes 40 masquerade
		ip6 saddr fd00::/64 masquerade
		meta nfproto ipv4 meta mark 0x10 return
		ip saddr @pods jump more
	}
	chain more { meta l4proto udp goto less; }
	chain less { drop; }
	set pods { type ipv4_addr; elements = { 10.1.0.1 } }
}
`, "nft", "-f", "-")
	got := read(t, ns).Rules
	if len(got) != 6 {
		t.Fatalf("%d rules: %+v", len(got), got)
	}
	prefix := netip.MustParsePrefix
	rule := func(chain string, n int) model.PacketRule {
		i := slices.IndexFunc(got, func(r model.PacketRule) bool { return r.Chain == chain && r.Number == n })
		if i < 0 {
			t.Fatalf("no rule %s %d", chain, n)
		}
		if r := got[i]; !r.Native || r.Handle == 0 || r.Backend != model.NFT {
			t.Errorf("rule is no native one: %+v", r)
		}
		return got[i]
	}
	first := rule("post", 1)
	if first.Src.Prefix != prefix("10.1.0.0/16") || first.Dst != (model.AddrMatch{Prefix: prefix("10.0.0.0/8"), Not: true}) ||
		first.Out != (model.IfMatch{Name: "br+", Not: true}) || first.DstLocal != -1 || first.Target != "MASQUERADE" ||
		first.Counter != (model.Counter{Packets: 4, Bytes: 40, Kept: true}) || len(first.Unknown) > 0 || first.Family != "inet" || first.NFProto != 4 {
		t.Errorf("first: %+v", first)
	}
	if r := rule("post", 2); r.Src.Prefix != prefix("fd00::/64") || r.NFProto != 6 || r.Target != "MASQUERADE" || len(r.Unknown) > 0 {
		t.Errorf("IPv6: %+v", r)
	}
	if r := rule("post", 3); r.NFProto != 4 || r.Mark != (model.MarkMatch{Value: 0x10, Mask: 0xffffffff, Set: true}) || r.Target != "RETURN" {
		t.Errorf("mark: %+v", r)
	}
	if r := rule("post", 4); len(r.Unknown) != 0 || !reflect.DeepEqual(r.Lookups, []model.Lookup{{Set: "pods", Key: []string{"ip saddr"}}}) || r.Target != "more" {
		t.Errorf("set: %+v", r)
	}
	if r := rule("more", 1); r.Target != "less" || !r.Goto || r.Proto != 17 {
		t.Errorf("goto: %+v", r)
	}
	if r := rule("less", 1); r.Target != "DROP" {
		t.Errorf("drop: %+v", r)
	}
}

// TestLinkHooks reads chains that see what links receive and send.
func TestLinkHooks(t *testing.T) {
	ns := nstest.New(t)
	ns.Feed(`table netdev t {
	chain in {
		type filter hook ingress device lo priority 0; policy accept;
		ip saddr 10.1.0.5 tcp dport 80 counter packets 4 bytes 40 drop
		ip6 daddr fd00::5 drop
		ip6 daddr fd00::6 dup to lo
		ip6 daddr fd00::7 fwd to lo
	}
	chain out { type filter hook egress device lo priority 5; policy drop; }
}
table inet i {
	chain in { type filter hook ingress device lo priority -10; policy accept; }
}
`, "nft", "-f", "-")
	got := read(t, ns)
	chain := func(family, name, hook, policy string, priority int) model.Chain {
		return model.Chain{Backend: model.NFT, Family: family, Table: family[:1], Name: name, Hook: hook, Devices: "lo", Policy: policy, Priority: priority}
	}
	want := []model.Chain{
		chain("inet", "in", "INGRESS", "ACCEPT", -10), chain("netdev", "in", "INGRESS", "ACCEPT", 0), chain("netdev", "out", "EGRESS", "DROP", 5),
	}
	want[1].Table, want[2].Table = "t", "t"
	if !reflect.DeepEqual(got.Chains, want) {
		t.Errorf("chains %+v\nwant %+v", got.Chains, want)
	}
	if len(got.Rules) != 4 {
		t.Fatalf("rules %+v", got.Rules)
	}
	if copies, sends := got.Rules[2], got.Rules[3]; copies.Target != "" || sends.Target != model.TargetForward || len(sends.Unknown) > 0 {
		t.Errorf("dup %+v\nfwd %+v", copies, sends)
	}
	if r := got.Rules[0]; !r.Native || r.NFProto != 4 || r.Src.Prefix != netip.MustParsePrefix("10.1.0.5/32") || r.Target != "DROP" || len(r.Unknown) > 0 {
		t.Errorf("IPv4: %+v", r)
	}
	if r := got.Rules[1]; r.NFProto != 6 || r.Dst.Prefix != netip.MustParsePrefix("fd00::5/128") || len(r.Unknown) > 0 {
		t.Errorf("IPv6: %+v", r)
	}
}

// TestSets reads what rules look up in sets and maps.
func TestSets(t *testing.T) {
	for _, tt := range []struct {
		name, set, rule string
		want            model.Lookup
		elements        []model.Element
		text            string
	}{
		{
			"kube-proxy's services", `map m { type ipv4_addr . inet_proto . inet_service : verdict; elements = {
				10.96.0.1 . tcp . 443 comment "default/kubernetes:https" : goto more, 10.96.0.10 . udp . 53 : drop } }`,
			"ip daddr . meta l4proto . th dport vmap @m",
			model.Lookup{Set: "m", Key: []string{"ip daddr", "meta l4proto", "th dport"}, Map: true},
			[]model.Element{{Key: "10.96.0.1 . tcp . 443", Value: "goto more", Comment: "default/kubernetes:https"}, {Key: "10.96.0.10 . udp . 53", Value: "drop"}},
			"ip daddr . meta l4proto . th dport vmap @m",
		},
		{
			"one of several", "", "numgen random mod 2 vmap { 0 : goto more, 1 : accept }",
			model.Lookup{Set: "__map0", Key: []string{"numgen random mod 2"}, Map: true},
			[]model.Element{{Key: "0", Value: "goto more"}, {Key: "1", Value: "accept"}},
			"numgen random mod 2 vmap { 0 : goto more, 1 : accept }",
		},
		{
			"links", "map m { type ifname : verdict; flags interval; elements = { eth0 : accept, \"veth*\" : jump more } }", "iifname vmap @m",
			model.Lookup{Set: "m", Key: []string{"iifname"}, Map: true},
			[]model.Element{{Key: "eth0", Value: "accept"}, {Key: "veth*", Value: "jump more"}},
			"iifname vmap @m",
		},
		{
			"intervals", "set s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 172.16.0.1-172.16.0.9, 192.168.0.1, 255.255.255.0/24 } }", "ip saddr != @s drop",
			model.Lookup{Set: "s", Key: []string{"ip saddr"}, Not: true},
			[]model.Element{{Key: "10.0.0.0/8"}, {Key: "172.16.0.1-172.16.0.9"}, {Key: "192.168.0.1"}, {Key: "255.255.255.0/24"}},
			"ip saddr != @s drop",
		},
		{
			"ranges of concatenations", "set s { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 80-90, 10.1.0.1 . 443 } }", "ip daddr . tcp dport @s drop",
			model.Lookup{Set: "s", Key: []string{"ip daddr", "th dport"}},
			[]model.Element{{Key: "10.0.0.0/8 . 80-90"}, {Key: "10.1.0.1 . 443"}},
			"meta l4proto tcp ip daddr . th dport @s drop",
		},
		{
			"IPv6", "set s { typeof ip6 daddr; elements = { fd00::7 } }", "ip6 daddr @s drop",
			model.Lookup{Set: "s", Key: []string{"ip6 daddr"}}, []model.Element{{Key: "fd00::7"}}, "ip6 daddr @s drop",
		},
		{
			"translations", "map m { type inet_service : ipv4_addr . inet_service; elements = { 80 : 10.244.0.7 . 8080 } }", "dnat ip to tcp dport map @m",
			model.Lookup{Set: "m", Key: []string{"th dport"}, Map: true}, []model.Element{{Key: "80", Value: "10.244.0.7 . 8080"}},
			"meta l4proto tcp th dport @m dnat to map @m",
		},
		{
			"all others", "map m { type inet_service : verdict; elements = { 80 : accept, * : drop } }", "tcp dport vmap @m",
			model.Lookup{Set: "m", Key: []string{"th dport"}, Map: true}, []model.Element{{Key: "80", Value: "accept"}, {Key: "*", Value: "drop"}},
			"meta l4proto tcp th dport vmap @m",
		},
		{
			"what packets add", "set s { type ipv4_addr; flags dynamic; timeout 1h; elements = { 10.0.0.1 } }", "ip saddr @s drop",
			model.Lookup{}, nil, "[@nh,96,32 @s] drop",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			ns.Feed("table inet t {\n"+tt.set+"\nchain more { }\nchain base { type nat hook prerouting priority -100; "+tt.rule+"; }\n}\n", "nft", "-f", "-")
			got := read(t, ns)
			if got.Rules[0].Text != tt.text {
				t.Errorf("text %q, want %q", got.Rules[0].Text, tt.text)
			}
			if tt.elements == nil {
				if r := got.Rules[0]; len(got.Sets)+len(r.Lookups) > 0 || len(r.Unknown) != 1 {
					t.Errorf("sets %+v of %+v", got.Sets, r)
				}
				return
			}
			if len(got.Sets) != 1 || len(got.Rules[0].Lookups) != 1 || len(got.Rules[0].Unknown) > 0 || got.Rules[0].Map != "" {
				t.Fatalf("sets %+v of %+v", got.Sets, got.Rules)
			}
			s := got.Sets[0]
			slices.SortFunc(s.Elements, func(a, b model.Element) int { return strings.Compare(b.Value+b.Key, a.Value+a.Key) })
			slices.SortFunc(tt.elements, func(a, b model.Element) int { return strings.Compare(b.Value+b.Key, a.Value+a.Key) })
			if !reflect.DeepEqual(got.Rules[0].Lookups[0], tt.want) || s.Family != "inet" || s.Table != "t" || s.Name != tt.want.Set ||
				s.Anonymous != strings.HasPrefix(s.Name, "__") || !reflect.DeepEqual(s.Elements, tt.elements) {
				t.Errorf("lookup %+v in %+v, want %+v in %+v", got.Rules[0].Lookups[0], s, tt.want, tt.elements)
			}
		})
	}
}

// TestItems builds rules of expressions that not every kernel has.
func TestItems(t *testing.T) {
	state := nft.Load{Source: nft.FromCT, Key: unix.NFT_CT_STATE}
	proto := nft.Match{Load: nft.Load{Source: nft.FromMeta, Key: unix.NFT_META_L4PROTO}, Value: []byte{6}}
	bits := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	for _, tt := range []struct {
		name  string
		items []nft.Item
		want  model.PacketRule
	}{
		{
			"ct state",
			[]nft.Item{nft.Match{Load: state, Op: expr.CmpOpNeq, Mask: bits(6), Value: bits(0)}, nft.Verdict{Code: nft.Accept}},
			model.PacketRule{Text: "ct state established,related accept", Unknown: []string{"ct state established,related"}, Target: "ACCEPT"},
		},
		{
			"dnat",
			[]nft.Item{proto, nft.NAT{Kind: "dnat", Addr: []byte{10, 1, 0, 5}, Port: []byte{0x1f, 0x90}}},
			model.PacketRule{Text: "meta l4proto tcp dnat to 10.1.0.5:8080", Proto: 6, Target: "DNAT", To: netip.MustParseAddrPort("10.1.0.5:8080")},
		},
		{
			"snat to a range",
			[]nft.Item{nft.NAT{Kind: "snat", Addr: []byte{10, 1, 0, 5}, AddrMax: []byte{10, 1, 0, 9}}},
			model.PacketRule{Text: "snat", Target: "SNAT"},
		},
		{
			"masquerade to a range of ports",
			[]nft.Item{nft.NAT{Kind: "masquerade", Port: []byte{0xee, 0x48}, PortMax: []byte{0xee, 0x4f}}},
			model.PacketRule{Text: "masquerade to :61000-61007", Target: "MASQUERADE", ToPorts: model.PortRange{First: 61000, Last: 61007}},
		},
		{"reject", []nft.Item{nft.Reject{}}, model.PacketRule{Text: "reject", Target: "REJECT"}},
		{
			"verdict map",
			[]nft.Item{nft.Match{Load: state, Set: "map0", Map: true}},
			model.PacketRule{Text: "[ct key 0 vmap @map0]", Map: "map0", Unknown: []string{"ct key 0 vmap @map0"}},
		},
		{
			"not decoded",
			[]nft.Item{nft.Other{Name: "numgen"}, nft.Verdict{Code: nft.Drop}},
			model.PacketRule{Text: "[numgen] drop", Unknown: []string{"numgen"}, Target: "DROP"},
		},
		{
			"the same field twice",
			[]nft.Item{proto, nft.Match{Load: proto.Load, Op: expr.CmpOpNeq, Value: []byte{17}}, nft.Verdict{Code: nft.Drop}},
			model.PacketRule{Text: "meta l4proto tcp meta l4proto != udp drop", Proto: 6, Unknown: []string{"! -p udp"}, Target: "DROP"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := nft.Ruleset{Rules: []nft.Rule{{Table: "t", Chain: "c", Items: tt.items}}, Chains: []nft.Chain{{Table: "t", Name: "c"}}}
			got := fromSet(set, nftables.TableFamilyINet, nil).Rules[0]
			tt.want.Backend, tt.want.Table, tt.want.Chain, tt.want.Number, tt.want.Native, tt.want.Family = model.NFT, "t", "c", 1, true, "inet"
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("\n got %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestMarks reads what writes the marks of packets and of connections, and what matches those.
func TestMarks(t *testing.T) {
	const all = 0xffffffff
	ns := nstest.New(t)
	for _, r := range []string{
		"-A PREROUTING -j CONNMARK --restore-mark --nfmask 0xff --ctmask 0xf0", "-A PREROUTING -j CONNMARK --save-mark --nfmask 0xf --ctmask 0xff",
		"-A PREROUTING -m connmark --mark 0x2/0xf -j CONNMARK --set-xmark 0x80/0x80",
	} {
		ns.Run("iptables-nft -w -t mangle " + r)
	}
	ns.Feed(`table inet wan {
	chain pre {
		type filter hook prerouting priority -150;
		ct mark != 0 meta mark set ct mark
		ct mark set meta mark and 0xf
		ct mark set 0x2
		meta mark set meta mark and 0xffffff0f or 0x30
		ct mark and 0xf == 0x2 meta mark set ip saddr map { 10.0.0.1 : 1 }
	}
}
`, "nft", "-f", "-")
	got := read(t, ns).Rules
	for i, want := range []model.PacketRule{
		{Target: "CONNMARK", SetMark: model.MarkWrite{Mask: 0xff, Copied: 0xf0}},
		{Target: "CONNMARK", SetMark: model.MarkWrite{Mask: 0xff, Copied: 0xf, OfFlow: true}},
		{Target: "CONNMARK", SetMark: model.MarkWrite{Value: 0x80, Mask: 0x80, OfFlow: true}, FlowMark: model.MarkMatch{Value: 2, Mask: 0xf, Set: true}},
		{Target: "MARK", SetMark: model.MarkWrite{Mask: all, Copied: all}, FlowMark: model.MarkMatch{Mask: all, Set: true, Not: true}},
		{Target: "CONNMARK", SetMark: model.MarkWrite{Mask: all, Copied: 0xf, OfFlow: true}},
		{Target: "CONNMARK", SetMark: model.MarkWrite{Value: 2, Mask: all, OfFlow: true}},
		{Target: "MARK", SetMark: model.MarkWrite{Value: 0x30, Mask: 0xf0}},
		{Target: "MARK", FlowMark: model.MarkMatch{Value: 2, Mask: 0xf, Set: true}},
	} {
		if r := got[i]; r.Target != want.Target || r.SetMark != want.SetMark || r.FlowMark != want.FlowMark {
			t.Errorf("%s\n got %s %+v %+v\nwant %s %+v %+v", r.Text, r.Target, r.SetMark, r.FlowMark, want.Target, want.SetMark, want.FlowMark)
		}
	}
}

// TestReadAgain reads the same rules again with what they counted meanwhile, and then
// changed ones, as who reads them for the first time.
func TestReadAgain(t *testing.T) {
	ns := nstest.New(t)
	ns.Run("ip link set lo up")
	ns.Run("iptables-nft -A OUTPUT -d 127.0.0.1 -p icmp -j ACCEPT")
	ns.Run("iptables-legacy -A INPUT -d 127.0.0.1 -p icmp", "iptables-legacy -N MORE")
	ns.Feed("add table inet own; add chain inet own out { type filter hook output priority 0; }; add rule inet own out ip daddr 127.0.0.1 counter; add rule inet own out accept", "nft", "-f", "-")
	kernel := kmod.New("/")
	c := dump.NewNetfilter(ns.NS, kernel, kmod.NFTables)
	defer c.Close()
	var r Reader
	again := func() Tables {
		got, _, err := r.Read(context.Background(), ns.NS, kernel, c)
		if err != nil {
			t.Fatal(err)
		}
		if want := read(t, ns); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		return got
	}
	first := again()
	ns.Run("ping -c 3 -i 0.01 127.0.0.1")
	counters := r.last[2].counters
	second := again()
	if r.last[2].counters != counters || counters.Generation == 0 {
		t.Errorf("generation %d, then %+v", counters.Generation, r.last)
	}
	legacy := r.last[3].bytes
	if third := again(); &third.Rules[0] != &second.Rules[0] || &third.Chains[0] != &second.Chains[0] {
		t.Error("while nothing counts the lists are not the same")
	}
	if r.last[3].bytes != legacy || second.Rules[3].Counter.Packets < 3 || second.Rules[3].Backend != model.Legacy {
		t.Errorf("legacy: %+v", second.Rules[3])
	}
	if len(first.Rules) != 4 || first.Rules[0].Counter.Packets != 0 || first.Rules[1].Counter.Packets != 0 ||
		second.Rules[0].Counter.Packets < 3 || second.Rules[1].Counter.Packets < 3 || !second.Rules[1].Counter.Kept || second.Rules[2].Counter.Packets != 0 {
		t.Errorf("%+v, then %+v", first.Rules, second.Rules)
	}
	ns.Run("iptables-nft -I OUTPUT -d 127.0.0.2 -j DROP")
	if third := again(); len(third.Rules) != 5 || third.Rules[0].Target != "DROP" {
		t.Errorf("%+v", third.Rules)
	}
	// In as many bytes another rule.
	ns.Run("iptables-legacy -R INPUT 1 -d 127.0.0.3 -p icmp")
	if fourth := again(); len(fourth.Rules) != 5 || fourth.Rules[4].Dst.Prefix.String() != "127.0.0.3/32" {
		t.Errorf("%+v", fourth.Rules)
	}

	// A set of one rule is read once, and one of a table of the same name anew: its names
	// and handles are those of the table before.
	sets := func() (all []*nft.Element) {
		for _, list := range r.parts[nftables.TableFamilyIPv4] {
			all = append(all, &list[0])
		}
		return all
	}
	ns.Feed(manyServices(2), "nft", "-f", "-")
	if again(); len(sets()) != 2 {
		t.Errorf("%d sets of one rule", len(sets()))
	}
	kept := sets()
	ns.Run("nft add chain ip kube-proxy more")
	again()
	if after := sets(); !slices.Contains(after, kept[0]) || !slices.Contains(after, kept[1]) {
		t.Error("after a change elsewhere the sets of rules are read again")
	}
	ns.Feed("delete table ip kube-proxy\n"+strings.ReplaceAll(manyServices(2), "http", "dns"), "nft", "-f", "-")
	again()
	if after := sets(); len(after) != 2 || slices.Contains(after, kept[0]) || slices.Contains(after, kept[1]) {
		t.Error("the sets of a new table are those of one before")
	}
}

// TestSetRenamed has a rule whose set has another name the next time, and the same number:
// what a legacy table holds is the same.
func TestSetRenamed(t *testing.T) {
	ns := nstest.New(t)
	kernel := kmod.New("/")
	c := dump.NewNetfilter(ns.NS, kernel, kmod.NFTables)
	defer c.Close()
	var r Reader
	set := func(name string) *model.PacketRule {
		got, _, err := r.Read(context.Background(), ns.NS, kernel, c)
		if err != nil || len(got.Rules) != 1 || !strings.Contains(got.Rules[0].Text, name) {
			t.Fatalf("rules with the set %s: %+v, %v", name, got.Rules, err)
		}
		return &got.Rules[0]
	}
	for _, name := range []string{"cali40first", "cali40other"} {
		create := func() error {
			return netlink.IpsetCreate(name, "hash:net", netlink.IpsetCreateOptions{Family: netlink.FAMILY_V4})
		}
		destroy := func() error { return netlink.IpsetDestroy(name) }
		if err := ns.Do(create); err != nil {
			t.Fatal(err)
		}
		ns.Run("iptables-legacy -w -A OUTPUT -m set --match-set " + name + " dst -j DROP")
		if first := set(name); set(name) != first {
			t.Error("a rule is decoded again while its set has its name")
		}
		ns.Run("iptables-legacy -w -F")
		if err := ns.Do(destroy); err != nil {
			t.Fatal(err)
		}
	}
}
