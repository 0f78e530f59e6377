package route

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Sizes and numbers of include/uapi/linux/fib_rules.h.
const (
	ruleHeaderLen = 12
	ruleInvert    = 1 << 1

	fraDst, fraSrc, fraIn    = 1, 2, 3
	fraGoto                  = 4
	fraPriority, fraMark     = 6, 10
	fraTable, fraMask        = 15, 16
	fraOut                   = 17
	fraTunID, fraL3MDev      = 12, 19
	fraNoGroup, fraNoPrefix  = 13, 14
	fraUID, fraProto         = 20, 22
	fraSrcPorts, fraDstPorts = 23, 24
)

var actionNames = map[int]string{
	1: "lookup", 2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit",
}

// moreConditions are attributes that restrict a rule and have no field in the
// model.
var moreConditions = map[uint16]string{
	fraTunID: "tun_id", fraL3MDev: "l3mdev", fraUID: "uidrange", fraProto: "ipproto", fraSrcPorts: "sport", fraDstPorts: "dport",
}

// Rules lists the routing rules of IPv4, then of IPv6, each in the order in which
// the kernel evaluates them. A kernel without IPv6 (ipv6.disable=1) has no rules
// of it. With an error, what could be read is returned too.
func Rules(ctx context.Context, c dump.Dumper) ([]model.RoutingRule, error) {
	var out []model.RoutingRule
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, ruleHeaderLen)
		request[0] = family
		rules, err := dump.List(ctx, c, unix.RTM_GETRULE, request, unix.RTM_NEWRULE, func(m []byte) (model.RoutingRule, bool, error) {
			r, err := decodeRule(m)
			return r, true, err
		})
		out = append(out, rules...)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return out, fmt.Errorf("list routing rules: %w", err)
		}
	}
	return out, nil
}

// decodeRule decodes an RTM_NEWRULE message: struct fib_rule_hdr and attributes.
// The netlink library leaves out the action.
func decodeRule(m []byte) (model.RoutingRule, error) {
	a := dump.ParseAfter(m, ruleHeaderLen)
	if err := a.Err(); err != nil {
		return model.RoutingRule{}, err
	}
	r := model.RoutingRule{
		Family: 4,
		Table:  int(m[4]),
		Action: name(actionNames, int(m[7])),
		Not:    binary.NativeEndian.Uint32(m[8:])&ruleInvert != 0,
	}
	if m[0] == unix.AF_INET6 {
		r.Family = 6
	}
	if m[3] != 0 {
		r.Unknown = append(r.Unknown, "tos")
	}
	for a.Next() {
		switch a.Type {
		case fraDst:
			r.To = rulePrefix(&a, m[1])
		case fraSrc:
			r.From = rulePrefix(&a, m[2])
		case fraIn:
			r.In = a.String()
		case fraOut:
			r.Out = a.String()
		case fraGoto:
			r.Goto = int(a.Uint32())
		case fraNoGroup, fraNoPrefix:
			// All ones mean that nothing is suppressed.
			if a.Uint32() != math.MaxUint32 {
				r.Unknown = append(r.Unknown, "suppress")
			}
		case fraPriority:
			r.Priority = int(a.Uint32())
		case fraMark:
			r.Mark = a.Uint32()
		case fraMask:
			r.Mask = a.Uint32()
		case fraTable:
			r.Table = int(a.Uint32())
		default:
			if condition, ok := moreConditions[a.Type]; ok {
				r.Unknown = append(r.Unknown, condition)
			}
		}
	}
	// The order of the attributes depends on the kernel.
	slices.Sort(r.Unknown)
	return r, a.Err()
}

// rulePrefix decodes an address whose prefix length is in the rule's header.
func rulePrefix(a *dump.Attrs, bits byte) netip.Prefix {
	ip, ok := netip.AddrFromSlice(a.Data)
	if !ok || int(bits) > ip.BitLen() {
		a.Fail(fmt.Errorf("address of %d bytes with prefix length %d", len(a.Data), bits))
		return netip.Prefix{}
	}
	return netip.PrefixFrom(ip, int(bits)).Masked()
}
