package flags

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// protocols are those that a destination may name.
var protocols = map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132}

// Target is a destination as the command line names it: an address or a pod, with port and protocol if they are given.
type Target struct {
	Addr  netip.Addr
	Pod   string
	Port  uint16
	Proto uint8
}

// ParseTarget parses IP[:PORT][/PROTO], or the same with a pod's name.
func ParseTarget(text string) (Target, error) {
	var t Target
	if text == "" {
		return t, nil
	}
	t.Pod = text
	// What is before the slash may also be a pod's namespace.
	if place, proto, found := cutLast(text, "/"); found && (bare(place).IsValid() || strings.Contains(place, ":")) {
		if t.Pod, t.Proto = place, protocols[strings.ToLower(proto)]; t.Proto == 0 {
			return t, fmt.Errorf("--to %q: no protocol %q; want tcp, udp, icmp, icmpv6 or sctp", text, proto)
		}
	}
	if host, port, found := cutLast(t.Pod, ":"); found && !bare(t.Pod).IsValid() {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return t, fmt.Errorf("--to %q: %q is not a port; want 1 to 65535, and brackets around an IPv6 address", text, port)
		}
		t.Pod, t.Port = host, uint16(n)
	}
	if t.Addr = bare(t.Pod); t.Addr.IsValid() {
		t.Pod = ""
	}
	switch {
	case t.Addr.IsUnspecified() || t.Addr.IsMulticast() || t.Addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return t, fmt.Errorf("--to %q: not a unicast address", text)
	case t.Port != 0 && (t.Proto == 1 || t.Proto == 58):
		return t, fmt.Errorf("--to %q: ICMP has no ports", text)
	case !t.Addr.IsValid() && t.Pod == "":
		return t, fmt.Errorf("--to %q: want IP[:PORT][/PROTO], [IPv6]:PORT, or a pod", text)
	}
	return t, nil
}

// bare parses an address, in brackets or not; the result is not valid for any other text.
func bare(text string) netip.Addr {
	a, _ := netip.ParseAddr(strings.Trim(text, "[]"))
	return a.Unmap().WithZone("")
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
