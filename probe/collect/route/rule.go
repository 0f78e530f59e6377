package route

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// ruleHeaderLen is the size of struct fib_rule_hdr, ruleInvert the flag
// FIB_RULE_INVERT (include/uapi/linux/fib_rules.h).
const (
	ruleHeaderLen = 12
	ruleInvert    = 1 << 1
)

// Attributes that golang.org/x/sys/unix lacks. Those between and after them are
// the masks of these conditions and of the ports.
const (
	fraDSCP      = 25 // Linux 6.12
	fraFlowLabel = 26 // Linux 6.14
	fraLastMask  = 30 // FRA_DSCP_MASK, Linux 6.15
)

var actionNames = map[int]string{
	unix.FR_ACT_TO_TBL: "lookup", unix.FR_ACT_GOTO: "goto", unix.FR_ACT_NOP: "nop",
	unix.FR_ACT_BLACKHOLE: "blackhole", unix.FR_ACT_UNREACHABLE: "unreachable", unix.FR_ACT_PROHIBIT: "prohibit",
}

// moreConditions are attributes that restrict a rule and have no field in the model.
var moreConditions = map[uint16]string{
	unix.FRA_TUN_ID: "tun_id", unix.FRA_L3MDEV: "l3mdev", unix.FRA_UID_RANGE: "uidrange",
	fraDSCP: "dscp", fraFlowLabel: "flowlabel",
}

// Rules lists the routing rules of IPv4, then of IPv6, each in the order in which the kernel evaluates them. A
// kernel without IPv6 (ipv6.disable=1) has no rules of it. With an error, what could be read is returned too.
func Rules(ctx context.Context, c dump.Dumper) ([]model.RoutingRule, error) {
	var out []model.RoutingRule
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, ruleHeaderLen)
		request[0] = family
		rules, err := dump.List(ctx, "list routing rules", c, unix.RTM_GETRULE, request, unix.RTM_NEWRULE, DecodeRule)
		out = append(out, rules...)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return out, err
		}
	}
	return out, nil
}

// DecodeRule decodes an RTM_NEWRULE or RTM_DELRULE message: struct fib_rule_hdr and attributes.
// The netlink library leaves out the action.
func DecodeRule(m []byte) (model.RoutingRule, error) {
	a := dump.ParseAfter(m, ruleHeaderLen)
	if err := a.Err(); err != nil {
		return model.RoutingRule{}, err
	}
	r := model.RoutingRule{
		Family: 4,
		Table:  int(m[4]),
		Action: cmp.Or(actionNames[int(m[7])], strconv.Itoa(int(m[7]))),
		Not:    binary.NativeEndian.Uint32(m[8:])&ruleInvert != 0,
	}
	if m[0] == unix.AF_INET6 {
		r.Family = 6
	}
	if m[3] != 0 {
		r.Unknown = append(r.Unknown, "tos")
	}
	// All ones mean that nothing is suppressed.
	suppress := func(a *dump.Attrs) {
		if a.Uint32() != math.MaxUint32 {
			r.Unknown = append(r.Unknown, "suppress_ifgroup")
		}
	}
	longer := func(a *dump.Attrs) { r.MinBits = int(int32(a.Uint32())) + 1 }
	// struct fib_rule_port_range
	ports := func(to *model.PortRange) func(*dump.Attrs) {
		return func(a *dump.Attrs) {
			b := binary.NativeEndian.AppendUint32(nil, a.Uint32())
			to.First, to.Last = binary.NativeEndian.Uint16(b), binary.NativeEndian.Uint16(b[2:])
		}
	}
	err := a.Decode(binary.NativeEndian, dump.Fields{
		unix.FRA_DST: prefix(&r.To, m[1]), unix.FRA_SRC: prefix(&r.From, m[2]), unix.FRA_IIFNAME: &r.In, unix.FRA_OIFNAME: &r.Out,
		unix.FRA_GOTO: dump.Unsigned(&r.Goto), unix.FRA_PRIORITY: dump.Unsigned(&r.Priority), unix.FRA_TABLE: dump.Unsigned(&r.Table),
		unix.FRA_FWMARK: &r.Mark, unix.FRA_FWMASK: &r.Mask,
		unix.FRA_SUPPRESS_IFGROUP: suppress, unix.FRA_SUPPRESS_PREFIXLEN: longer,
		unix.FRA_IP_PROTO: &r.Proto, unix.FRA_SPORT_RANGE: ports(&r.SrcPorts), unix.FRA_DPORT_RANGE: ports(&r.DstPorts),
		dump.Others: func(a *dump.Attrs) {
			if condition, ok := moreConditions[a.Type]; ok {
				r.Unknown = append(r.Unknown, condition)
			} else if a.Type > fraLastMask {
				// An attribute of a later kernel may be a condition.
				r.Unknown = append(r.Unknown, fmt.Sprintf("attribute %d", a.Type))
			}
		},
	})
	// The order of the attributes depends on the kernel.
	slices.Sort(r.Unknown)
	return r, err
}

// prefix takes an address whose prefix length is in the message's header.
func prefix(to *netip.Prefix, bits byte) func(*dump.Attrs) {
	return func(a *dump.Attrs) {
		ip, ok := netip.AddrFromSlice(a.Data)
		if !ok || int(bits) > ip.BitLen() {
			a.Fail(fmt.Errorf("address of %d bytes with prefix length %d", len(a.Data), bits))
			return
		}
		*to = netip.PrefixFrom(ip, int(bits)).Masked()
	}
}
