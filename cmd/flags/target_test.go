package flags

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	a := netip.MustParseAddr
	for text, want := range map[string]Target{
		"":                       {},
		"10.1.2.3":               {Addr: a("10.1.2.3")},
		"10.1.2.3:443":           {Addr: a("10.1.2.3"), Port: 443},
		"10.1.2.3:53/udp":        {Addr: a("10.1.2.3"), Port: 53, Proto: 17},
		"10.1.2.3/ICMP":          {Addr: a("10.1.2.3"), Proto: 1},
		"::ffff:10.1.2.3":        {Addr: a("10.1.2.3")},
		"fd00::7":                {Addr: a("fd00::7")},
		"[fd00::7]":              {Addr: a("fd00::7")},
		"[fd00::7]:443/tcp":      {Addr: a("fd00::7"), Port: 443, Proto: 6},
		"fd00::7/icmpv6":         {Addr: a("fd00::7"), Proto: 58},
		"cart-7d9f":              {Pod: "cart-7d9f"},
		"shop/cart-7d9f":         {Pod: "shop/cart-7d9f"},
		"shop/cart-7d9f:8443":    {Pod: "shop/cart-7d9f", Port: 8443},
		"shop/cart-7d9f:53/sctp": {Pod: "shop/cart-7d9f", Port: 53, Proto: 132},
	} {
		if got, err := ParseTarget(text); err != nil || got != want {
			t.Errorf("--to %q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, hint := range map[string]string{
		"10.1.2.3:0": "not a port", "10.1.2.3:65536": "not a port", "10.1.2.3:x": "not a port", "10.1.2.3/frob": "no protocol",
		"10.1.2.3:53/": "no protocol", "0.0.0.0": "not a unicast address", "224.0.0.1": "not a unicast address", "255.255.255.255": "not a unicast address", "10.1.2.3:5/icmp": "no ports",
		"[fd00::7]:": "not a port", ":80": "want IP",
	} {
		if _, err := ParseTarget(text); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("--to %q: %v, want an error with %q", text, err, hint)
		}
	}
}
