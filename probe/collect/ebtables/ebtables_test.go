package ebtables

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/internal/nstest"
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
	"-t nat -A PREROUTING -p 0x1234 -s ! 00:11:22:33:44:55/ff:ff:ff:00:00:00 -j RETURN",
	"-t nat -A PREROUTING -d Broadcast -j RETURN",
	"-t nat -A PREROUTING -p IPv6 --ip6-dst fd00::/64 --ip6-proto tcp --ip6-dport 80 -j ACCEPT",
	"-t nat -A PREROUTING -p IPv6 --ip6-proto ipv6-icmp --ip6-icmp-type echo-request -j ACCEPT",
	"-t nat -A PREROUTING -d BGA --stp-type config --stp-root-prio 1:2 --stp-hello-time 3 --stp-root-cost 7:9 -j ACCEPT",
	"-t nat -A PREROUTING --mark 0x1/0xff -j ACCEPT",
	"-t nat -A PREROUTING --mark ! 5 -j redirect --redirect-target DROP",
	"-t nat -A PREROUTING --pkttype-type broadcast -j ACCEPT",
	"-t nat -A PREROUTING --limit 3/sec --limit-burst 7 --log-prefix hello --log-ip -j ACCEPT",
	"-t nat -A PREROUTING -p ARP --arp-htype 1 --arp-ptype 0x0800 --arp-mac-src 00:11:22:33:44:55 --arp-gratuitous -j DROP",
	"-t nat -A PREROUTING -p ARP --arp-op ! Request --arp-ip-src ! 10.1.0.0/16 -j DROP",
	"-t nat -A PREROUTING -p LENGTH --802_3-sap 0x42 -j DROP",
	"-t nat -A PREROUTING",
	"-t nat -N USERC -P RETURN",
	"-t nat -A PREROUTING -j USERC",
	"-t filter -N KUBE-DEDUP",
	"-t filter -A OUTPUT -j KUBE-DEDUP",
	"-t filter -A KUBE-DEDUP -p IPv4 -s 0a:58:0a:f4:00:01 -o veth+ --ip-src 10.244.0.1 -j ACCEPT",
	"-t filter -A KUBE-DEDUP -p IPv4 -s 0a:58:0a:f4:00:01 -o veth+ --ip-src 10.244.0.0/24 -j DROP",
	"-t filter -P FORWARD DROP",
}

func read(t *testing.T, ns *nstest.NS) Tables {
	t.Helper()
	c, err := dump.Open(ns.NS, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, _, err := Read(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestAsPrinted loads rules with the real tool and wants them back word for
// word, and gone when each is deleted by its text.
func TestAsPrinted(t *testing.T) {
	ns := nstest.New(t)
	for _, r := range rules {
		ns.Run("ebtables-nft " + r)
	}
	got := read(t, ns)
	for _, table := range []string{"nat", "filter"} {
		want := printed(ns.Output("ebtables-nft -t " + table + " -L --Lmac2"))
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
		ns.Run("ebtables-nft -t " + r.Table + " -D " + r.Chain + " " + r.Text)
	}
	if left := read(t, ns).Rules; len(left) != 0 {
		t.Errorf("left after deletion: %+v", left)
	}
}

func byChain(a, b string) int {
	x, _, _ := strings.Cut(a, " ")
	y, _, _ := strings.Cut(b, " ")
	return strings.Compare(x, y)
}

var chainLine = regexp.MustCompile(`^Bridge chain: (\S+),`)

// numbers replaces the names that ebtables has and the kernel has not.
var numbers = strings.NewReplacer("--ip-icmp-type echo-request", "--ip-icmp-type 8", "--ip6-icmp-type echo-request", "--ip6-icmp-type 128")

// printed are the rules in the output of ebtables -L, as "CHAIN TEXT".
func printed(out string) []string {
	var list []string
	chain := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := chainLine.FindStringSubmatch(line); m != nil {
			chain = m[1]
		} else if strings.HasPrefix(line, "-") {
			list = append(list, chain+" "+numbers.Replace(line))
		}
	}
	slices.SortStableFunc(list, byChain)
	return list
}
