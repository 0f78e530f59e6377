package iptables

import (
	"context"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/internal/nstest"
	"github.com/lasthop/lasthop/probe/model"
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
	"-t filter -P FORWARD DROP",
}

var rules6 = []string{
	"-t nat -A POSTROUTING -s fd00:1::/64 ! -d fd00::/16 -o eth0 -j MASQUERADE",
	"-t nat -A PREROUTING -d fd00::1/128 -p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00:1::5]:8080",
	"-t nat -A POSTROUTING -s fd00:1::7/128 -j SNAT --to-source fd00::4",
	"-t filter -A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT",
	"-t filter -A FORWARD ! -s fe80::/10 -j REJECT --reject-with icmp6-port-unreachable",
}

func read(t *testing.T, ns *nstest.NS) Tables {
	t.Helper()
	c, err := dump.Open(ns.NS, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, _, err := Read(context.Background(), ns.NS, c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

var tables = []string{"raw", "mangle", "nat", "filter"}

// TestAsPrinted loads rules with the real tool and wants them back word for
// word, and gone when each is deleted by its text.
func TestAsPrinted(t *testing.T) {
	for _, tt := range []struct {
		name, tool string
		backend    model.Backend
		family     int
		rules      []string
	}{
		{"nft 4", "iptables-nft", model.NFT, 4, rules4},
		{"nft 6", "ip6tables-nft", model.NFT, 6, rules6},
		{"legacy 4", "iptables-legacy", model.Legacy, 4, rules4},
		{"legacy 6", "ip6tables-legacy", model.Legacy, 6, rules6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
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
					t.Fatalf("%s: backend %s, family %d, native %v", r.Text, r.Backend, r.Family, r.Native)
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
			list = append(list, r)
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
