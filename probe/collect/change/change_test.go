package change

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// message is a netlink message by a port: a fixed header, and attributes, each with its type and data.
func message(typ uint16, port uint32, header []byte, attrs ...any) []byte {
	body := append([]byte(nil), header...)
	for i := 0; i < len(attrs); i += 2 {
		body = dump.Append(body, uint16(attrs[i].(int)), attrs[i+1].([]byte))
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, port)
	return append(b, body...)
}

// generation is a change of nftables of so many rules.
func generation(rules int) []byte {
	const nft = unix.NFNL_SUBSYS_NFTABLES << 8
	var b []byte
	for i := range rules {
		b = append(b, message(nft|unix.NFT_MSG_NEWRULE, 9, []byte{unix.NFPROTO_IPV4, 0, 0, 0}, unix.NFTA_RULE_TABLE, []byte("filter\x00"),
			unix.NFTA_RULE_CHAIN, []byte("FORWARD\x00"), unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, uint64(i+1)))...)
	}
	return append(b, message(nft|unix.NFT_MSG_NEWGEN, 9, make([]byte, 4), unix.NFTA_GEN_PROC_PID, []byte{0, 0, 2, 100},
		unix.NFTA_GEN_PROC_NAME, []byte("nft\x00"))...)
}

// linkMessage is a message about a link with flags, of which some changed.
func linkMessage(index, flags, changed uint32) []byte {
	b := binary.NativeEndian.AppendUint32(make([]byte, 4), index)
	return message(unix.RTM_NEWLINK, 0, binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(b, flags), changed))
}

// netconf is a message about the settings of a link, each with its number and value.
func netconf(family byte, link int32, settings ...int) []byte {
	number := func(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }
	attrs := []any{1, number(int(link))}
	for i := 0; i < len(settings); i += 2 {
		attrs = append(attrs, settings[i], number(settings[i+1]))
	}
	return message(unix.RTM_NEWNETCONF, 0, []byte{family, 0, 0, 0}, attrs...)
}

func TestDecode(t *testing.T) {
	route := func(family, bits, kind byte) []byte { return []byte{family, bits, 0, 0, 254, 0, 0, kind, 0, 0, 0, 0} }
	for name, tt := range map[string]struct {
		message []byte
		want    string
	}{
		"a route": {message(unix.RTM_DELROUTE, 7, route(2, 24, unix.RTN_UNICAST), unix.RTA_DST, []byte{10, 9, 8, 0}),
			"7 deleted the route to 10.9.8.0/24"},
		"a default route": {message(unix.RTM_NEWROUTE, 7, route(10, 0, unix.RTN_UNICAST)), "7 set the route to ::/0"},
		"an own address":  {message(unix.RTM_NEWROUTE, 7, route(2, 32, unix.RTN_LOCAL), unix.RTA_DST, []byte{10, 9, 8, 1}), ""},
		"a bridge's":      {message(unix.RTM_NEWROUTE, 7, route(7, 0, unix.RTN_UNICAST)), ""},
		"half a message":  {message(unix.RTM_NEWROUTE, 7, []byte{2, 24}), ""},
		"a short address": {message(unix.RTM_NEWROUTE, 7, route(2, 24, unix.RTN_UNICAST), unix.RTA_DST, []byte{10}), ""},
		"a rule": {message(unix.RTM_NEWRULE, 7, []byte{2, 0, 32, 0, 9, 0, 0, 1, 0, 0, 0, 0}, unix.FRA_SRC, []byte{10, 9, 8, 1}),
			"7 set a routing rule from 10.9.8.1/32 to all"},
		"a rule that prohibits": {message(unix.RTM_NEWRULE, 7, []byte{2, 0, 32, 0, 0, 0, 0, unix.RTN_PROHIBIT, 0, 0, 0, 0},
			unix.FRA_SRC, []byte{10, 9, 8, 1}), "7 set a prohibit rule from 10.9.8.1/32 to all"},
		"one for a mark": {message(unix.RTM_NEWRULE, 7, []byte{2, 0, 32, 0, 0, 0, 0, unix.RTN_PROHIBIT, 0, 0, 0, 0},
			unix.FRA_SRC, []byte{10, 9, 8, 1}, unix.FRA_FWMARK, []byte{1, 0, 0, 0}), "7 set a routing rule from 10.9.8.1/32 to all"},
		"one of nftables":                   {generation(1), "nft 612 set a rule in ip filter FORWARD"},
		"many":                              {generation(40), strings.Repeat("nft 612 set a rule in ip filter FORWARD; ", most) + "nft 612 changed nftables"},
		"a set's element":                   {generation(0), "nft 612 changed nftables"},
		"a link down":                       {linkMessage(7, 0, unix.IFF_UP), "0 set the link  down"},
		"a new link":                        {linkMessage(7, unix.IFF_UP, 1<<32-1), ""},
		"its carrier":                       {linkMessage(7, unix.IFF_UP, 0), ""},
		"a link up, that was not seen down": {linkMessage(7, unix.IFF_UP, unix.IFF_UP), ""},
		"forwarding, and so that of the links": {slices.Concat(netconf(2, -1, 2, 0), netconf(2, -2, 2, 0), netconf(2, 7, 2, 0), netconf(2, 8, 2, 1)),
			"0 set net.ipv4.ip_forward to 0; 0 set net.ipv4.conf.*.forwarding to 1"},
		"IPv6's, which comes after that of the links": {slices.Concat(netconf(10, 7, 2, 0), netconf(10, 8, 2, 0), netconf(10, -1, 2, 0)),
			"0 set net.ipv6.conf.all.forwarding to 0"},
		"a link's reverse path filter": {netconf(2, 7, 3, 1), "0 set net.ipv4.conf.*.rp_filter to 1"},
		"all links'":                   {netconf(2, -1, 3, 1), "0 set net.ipv4.conf.all.rp_filter to 1"},
		"those of a new link":          {netconf(2, 7, 2, 1, 3, 0), ""},
	} {
		d := decoder{forwarding: map[string]string{}, down: map[int]bool{}}
		d.decode(tt.message, time.Unix(1, 0))
		said := model.Map(d.found, func(c Change) string {
			return model.Either(c.PID == 0, fmt.Sprint(c.Port, " "), fmt.Sprint(c.Name, " ", c.PID, " ")) + c.What()
		})
		if got := strings.Join(said, "; "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if want := name == "half a message" || name == "a short address"; d.lost != want {
			t.Errorf("%s: lost %v", name, d.lost)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(generation(2))
	f.Add(message(unix.RTM_NEWNEIGH, 7, make([]byte, 12), unix.NDA_DST, []byte{10, 9, 8, 1}, unix.NDA_LLADDR, []byte{2, 0, 0, 0, 0, 1}))
	f.Add(linkMessage(7, 0, unix.IFF_UP))
	f.Add(netconf(2, -1, 2, 0))
	f.Add(message(unix.RTM_NEWADDR, 7, []byte{2, 24, 0, 0, 3, 0, 0, 0}, unix.IFA_LOCAL, []byte{10, 9, 8, 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decoder{forwarding: map[string]string{}, down: map[int]bool{}}
		for range 2 {
			d.decode(b, time.Unix(1, 0))
		}
		for i := range d.found {
			_ = d.found[i].String()
		}
	})
}
