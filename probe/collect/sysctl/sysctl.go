// Package sysctl reads the kernel settings that affect whether pod traffic is forwarded, answered and tracked:
// files below /proc/sys/net in the node's namespace, and each link's settings from its RTM_NEWLINK message. They
// are readable without rights; entering another namespace takes CAP_SYS_ADMIN. A file that this kernel lacks is
// no gap, one that cannot be read is an error beside the other settings.
package sysctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// setting is one of a link's IPv4 settings with its number, which counts from 1
// (include/uapi/linux/ip.h, IPV4_DEVCONF_*).
type setting struct {
	name  string
	index int
}

var perLink = []setting{
	{"forwarding", 1}, {"proxy_arp", 3}, {"send_redirects", 6}, {"rp_filter", 8}, {"arp_ignore", 19},
	{"accept_local", 23}, {"src_valid_mark", 24}, {"proxy_arp_pvlan", 25}, {"route_localnet", 26},
}

// global are the files below /proc/sys that do not belong to one link.
var global = func() []string {
	files := []string{
		"net/ipv4/ip_forward",
		"net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/forwarding", "net/ipv6/conf/all/proxy_ndp",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables", "net/bridge/bridge-nf-call-arptables",
		"net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_count",
		"net/netfilter/nf_conntrack_udp_timeout", "net/netfilter/nf_conntrack_udp_timeout_stream",
		"net/netfilter/nf_conntrack_tcp_timeout_established", "net/netfilter/nf_conntrack_tcp_timeout_unacknowledged", "net/netfilter/nf_conntrack_tcp_loose",
		// These the machine's own namespace alone has, like gc_thresh1 to 3.
		"net/core/netdev_max_backlog", "net/core/netdev_budget", "net/core/netdev_budget_usecs",
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		for i := 1; i <= 3; i++ {
			files = append(files, fmt.Sprintf("net/%s/neigh/default/gc_thresh%d", family, i))
		}
	}
	for _, conf := range []string{"all", "default"} {
		files = append(files, model.Map(perLink, func(s setting) string { return "net/ipv4/conf/" + conf + "/" + s.name })...)
	}
	return files
}()

// Read reads the namespace's settings that do not belong to one link. With an
// error, what could be read is returned too.
func Read(ns *netns.NS) ([]model.Sysctl, error) {
	var out []model.Sysctl
	err := ns.Do(func() error {
		var errs []error
		for _, file := range global {
			b, err := os.ReadFile("/proc/sys/" + file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("read setting: %w", err))
				continue
			}
			out = append(out, model.Sysctl{
				Name:  strings.ReplaceAll(file, "/", "."),
				Value: strings.TrimSpace(string(b)),
			})
		}
		return errors.Join(errs...)
	})
	return out, err
}

// Decode decodes the settings of one link from its IFLA_AF_SPEC attribute. The link
// dump contains it, which saves reading ten files per link.
func Decode(link string, afSpec []byte) ([]model.Sysctl, error) {
	// sysctl(8) separates by dots and writes a dot of the link's name as a slash.
	name := strings.ReplaceAll(link, ".", "/")
	var out []model.Sysctl
	ipv4 := func(a *dump.Attrs) {
		for _, s := range perLink {
			out = appendValue(out, "net.ipv4.conf."+name+"."+s.name, a.Data, s.index-1)
		}
	}
	ipv6 := func(a *dump.Attrs) {
		// Indexes of the array: DEVCONF_* of include/uapi/linux/ipv6.h.
		out = appendValue(out, "net.ipv6.conf."+name+".forwarding", a.Data, 0)
		out = appendValue(out, "net.ipv6.conf."+name+".proxy_ndp", a.Data, 22)
	}
	err := dump.Parse(afSpec).Decode(binary.NativeEndian, dump.Fields{
		unix.AF_INET: dump.Fields{unix.IFLA_INET_CONF: ipv4}, unix.AF_INET6: dump.Fields{unix.IFLA_INET6_CONF: ipv6},
	})
	if err != nil {
		return out, fmt.Errorf("read settings of link %s: %w", link, err)
	}
	return out, nil
}

// appendValue appends an element of the kernel's array of settings, if the array
// has it: those of older kernels are shorter.
func appendValue(out []model.Sysctl, name string, array []byte, index int) []model.Sysctl {
	if len(array) < 4*(index+1) {
		return out
	}
	return append(out, model.Sysctl{Name: name, Value: strconv.Itoa(int(int32(binary.NativeEndian.Uint32(array[4*index:]))))})
}
