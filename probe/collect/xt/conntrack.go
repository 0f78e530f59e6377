package xt

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Bits of struct xt_conntrack_mtinfo3. The addresses and the ports of a flow's two
// tuples have four bits each, in the order of ctTuple.
const (
	ctState     = 1 << 0
	ctProto     = 1 << 1
	ctAddress   = 1 << 2
	ctStatus    = 1 << 6
	ctExpires   = 1 << 7
	ctPort      = 1 << 8
	ctDirection = 1 << 12
	ctAlias     = 1 << 13
)

// ctTuple are the ends of a flow's two tuples.
var ctTuple = []string{"origsrc", "origdst", "replsrc", "repldst"}

// ctStates in the order in which iptables prints them.
var ctStates = []struct {
	bit  uint16
	name string
}{
	{1 << 0, "INVALID"}, {1 << 3, "NEW"}, {1 << 2, "RELATED"}, {1 << 1, "ESTABLISHED"}, {1 << 8, "UNTRACKED"},
	{1 << 6, "SNAT"}, {1 << 7, "DNAT"},
}

var ctStatuses = []string{"EXPECTED", "SEEN_REPLY", "ASSURED", "CONFIRMED"}

func connTrack(r *model.PacketRule, _ uint32, i *Bytes) string {
	o := options{set: uint32(i.U16(146)), invert: uint32(i.U16(148))}
	states, statuses := i.U16(150), i.U16(152)
	o.add(ctState, model.Either(o.set&ctAlias != 0, "--state ", "--ctstate ")+stateNames(states))
	o.add(ctProto, fmt.Sprintf("--ctproto %d", i.U16(136)))
	for n, end := range ctTuple {
		o.add(ctAddress<<n, "--ct"+end+" "+i.network(32*n, r.Family))
	}
	for n, end := range ctTuple {
		o.add(ctPort<<n, "--ct"+end+"port "+Ports(model.PortRange{First: i.U16(138 + 2*n), Last: i.U16(154 + 2*n)}))
	}
	o.add(ctStatus, "--ctstatus "+cmp.Or(BitNames(ctStatuses, statuses, ","), "NONE"))
	from, to := i.U32(128), i.U32(132)
	o.add(ctExpires, fmt.Sprintf("--ctexpire %d", from)+when(from != to, fmt.Sprintf(":%d", to)))
	return Join(o.String(), when(o.set&ctDirection != 0, "--ctdir "+model.Either(o.invert&ctDirection != 0, "REPLY", "ORIGINAL")))
}

// network is an address with its mask, 16 bytes behind it, as the extensions print it:
// without the mask for a single address, with a length where the mask is one.
func (i *Bytes) network(at int, family string) string {
	mask, text := i.Slice(at+16, model.Either(family == "ip6", 16, 4)), i.ip(at, family).String()
	switch ones, all := net.IPMask(mask).Size(); {
	case all == 0:
		m, _ := netip.AddrFromSlice(mask)
		return text + "/" + m.String()
	case ones < all:
		return fmt.Sprintf("%s/%d", text, ones)
	}
	return text
}

func stateNames(states uint16) string {
	text := ""
	for _, s := range ctStates {
		text += model.Either(states&s.bit != 0, ","+s.name, "")
	}
	return strings.TrimPrefix(text, ",")
}
