package path

import (
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Settings are the kernel's settings that were read, by their names as of sysctl(8).
type Settings map[string]string

// NewSettings indexes a snapshot's.
func NewSettings(s *model.Snapshot) Settings {
	out := make(Settings, len(s.Sysctls))
	for _, c := range s.Sysctls {
		out[c.Name] = c.Value
	}
	return out
}

// The settings that turn forwarding on and off for all links.
const (
	Forward4 = "net.ipv4.ip_forward"
	Forward6 = "net.ipv6.conf.all.forwarding"
)

// LinkSetting names an IPv4 setting of a link's own.
func LinkSetting(link, name string) string { return linkSetting("ipv4", link, name) }

// LinkSetting6 names an IPv6 setting of a link's own.
func LinkSetting6(link, name string) string { return linkSetting("ipv6", link, name) }

func linkSetting(family, link, name string) string {
	return "net." + family + ".conf." + strings.ReplaceAll(link, ".", "/") + "." + name
}

// NotForwarding is the setting because of which the node does not forward what comes in by
// a link; empty where there is none. For IPv6 one counts for all links.
func (s Settings) NotForwarding(link string, isIPv6 bool) string {
	name := LinkSetting(link, "forwarding")
	if isIPv6 {
		name = Forward6
	}
	if s[name] != "0" {
		return ""
	}
	return name
}

// BridgeCalls names the setting by which bridged packets pass the IP layer's chains.
func BridgeCalls(isIPv6 bool) string {
	if isIPv6 {
		return "net.bridge.bridge-nf-call-ip6tables"
	}
	return "net.bridge.bridge-nf-call-iptables"
}

// ReverseFilter is the mode of a link's reverse path filter, the higher of its own and that
// of all: 0 off, 1 strict, 2 loose, and empty where neither was read.
func (s Settings) ReverseFilter(link string) string {
	return max(s[LinkSetting("all", "rp_filter")], s[LinkSetting(link, "rp_filter")])
}
