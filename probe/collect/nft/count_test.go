package nft

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// counting counts the rules that are read.
type counting struct {
	*dump.Conn
	rules int
}

func (c *counting) Each(request uint16, body []byte, reply uint16, f func(m []byte) error) error {
	return c.Conn.Each(request, body, reply, func(m []byte) error {
		c.rules++
		return f(m)
	})
}

// TestCountersByChain reads the counters of services like kube-proxy's again and again.
// They are always those that are read whole, but chains are left alone that no packet can
// have come to.
func TestCountersByChain(t *testing.T) {
	const services = 100
	var rules strings.Builder
	rules.WriteString("table ip t {\n")
	for i := range services {
		fmt.Fprintf(&rules, "chain s%d { counter; counter; counter; }\n", i)
	}
	rules.WriteString("chain unseen { ip daddr 127.1.0.1 counter; jump further; }\nchain further { counter; }\n" +
		"chain late { tcp dport 80 jump s1; }\n" +
		"chain out { type filter hook output priority 0; counter jump services; jump unseen; }\nchain services {\n")
	for i := range services {
		fmt.Fprintf(&rules, "ip daddr 127.0.1.%d counter jump s%d\n", i, i)
	}
	rules.WriteString("}\n}\ntable ip mapped {\n chain a { counter; }\n chain out { type filter hook output priority 1; ip daddr vmap { 127.0.1.7 : jump a }; }\n}\n")
	ns := nstest.New(t)
	ns.Run("ip link set lo up")
	ns.Feed(rules.String(), "nft", "-f", "-")
	conn, err := dump.Open(ns.NS, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	whole := func() *Counters {
		t.Helper()
		set, err := read(t.Context(), conn, nftables.TableFamilyIPv4, nil, Parts{})
		if err != nil {
			t.Fatal(err)
		}
		return set.Counters
	}
	n := whole()
	for _, step := range []struct {
		send    string
		rules   int
		changed bool
	}{
		{"", len(n.Rules), false},
		{"", 2 + 2 + 1 + 1, false},                        // out, unseen, further, and a
		{"127.0.1.7", 2 + 2 + 1 + 1 + services + 3, true}, // and services, s7
		{"", 2 + 2 + 1 + 1 + services + 3, false},         // a packet may have been on its way
		{"", 2 + 2 + 1 + 1, false},
		{"127.1.0.1", 2 + 2 + 1 + 1 + services, true}, // by a jump that does not count
		{"127.0.1.8", 2 + 2 + 1 + 1 + services + 3, true},
	} {
		if step.send != "" {
			ns.Run("ping -c 1 " + step.send)
		}
		c := &counting{Conn: conn}
		if err := n.read(c, nftables.TableFamilyIPv4); err != nil {
			t.Fatal(err)
		}
		if c.rules != step.rules || n.Changed != step.changed {
			t.Errorf("to %q: %d rules of %d read, want %d, changed: %v", step.send, c.rules, len(n.Rules), step.rules, n.Changed)
		}
		if now := whole(); !slices.Equal(n.Rules, now.Rules) || !slices.Equal(n.Chains, now.Chains) {
			t.Errorf("to %q: %v %v, read whole %v %v", step.send, n.Rules, n.Chains, now.Rules, now.Chains)
		}
	}
}
