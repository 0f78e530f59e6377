// Package conntrack reads the connection-tracking table, its size and its
// statistics.
package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Numbers of include/uapi/linux/netfilter/nfnetlink_conntrack.h.
const (
	msgNew      = unix.NFNL_SUBSYS_CTNETLINK << 8
	msgGet      = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	msgStatsCPU = unix.NFNL_SUBSYS_CTNETLINK<<8 | 4
	msgStats    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5

	ctaOriginal  = 1
	ctaReply     = 2
	ctaStatus    = 3
	ctaProtoInfo = 4
	ctaTimeout   = 7
	ctaMark      = 8
	ctaZone      = 18

	tupleIP    = 1
	tupleProto = 2
	tupleZone  = 3

	ipV4Src = 1
	ipV4Dst = 2
	ipV6Src = 3
	ipV6Dst = 4

	protoNum     = 1
	protoSrcPort = 2
	protoDstPort = 3

	protoInfoTCP = 1
	tcpState     = 1

	statusSeenReply = 1 << 1
	statusAssured   = 1 << 2
)

// nfgenmsg is the fixed header behind netlink's: family, version, resource.
const nfgenmsg = 4

// request is an nfgenmsg that asks for every family.
var request = make([]byte, nfgenmsg)

// Read lists the entries that keep accepts. The addresses of an entry are
// decoded first, so that those which do not matter cost little.
func Read(ctx context.Context, c *dump.Conn, keep func(*model.Flow) bool) ([]model.Flow, error) {
	var out []model.Flow
	err := dump.Retry(ctx, func() error {
		out = out[:0]
		return c.Each(msgGet, request, msgNew, func(m []byte) error {
			f, err := decode(m)
			if err != nil {
				return err
			}
			if keep(&f) {
				out = append(out, f)
			}
			return nil
		})
	})
	if err != nil {
		return out, fmt.Errorf("list connections: %w", err)
	}
	return out, nil
}

func decode(m []byte) (f model.Flow, err error) {
	a := dump.ParseAfter(m, nfgenmsg)
	for a.Next() {
		switch a.Type {
		case ctaOriginal:
			var zone uint16
			f.Original, f.Proto, zone, err = tuple(a.Nested())
			a.Fail(err)
			f.Zone = max(f.Zone, zone)
		case ctaReply:
			var zone uint16
			f.Reply, _, zone, err = tuple(a.Nested())
			a.Fail(err)
			f.Zone = max(f.Zone, zone)
		case ctaStatus:
			s := a.BE32()
			f.Replied = s&statusSeenReply != 0
			f.Assured = s&statusAssured != 0
		case ctaProtoInfo:
			f.State, err = state(a.Nested())
			a.Fail(err)
		case ctaTimeout:
			f.Timeout = time.Duration(a.BE32()) * time.Second
		case ctaMark:
			f.Mark = a.BE32()
		case ctaZone:
			f.Zone = a.BE16()
		}
	}
	if err := a.Err(); err != nil {
		return f, fmt.Errorf("connection: %w", err)
	}
	return f, nil
}

// tuple reads one direction. A zone that belongs to one direction only stands
// within it.
func tuple(a dump.Attrs) (t model.Tuple, proto uint8, zone uint16, err error) {
	for a.Next() {
		inner := a.Nested()
		switch a.Type {
		case tupleIP:
			for inner.Next() {
				ip, ok := netip.AddrFromSlice(inner.Data)
				if !ok {
					inner.Fail(fmt.Errorf("address of %d bytes", len(inner.Data)))
					continue
				}
				switch inner.Type {
				case ipV4Src, ipV6Src:
					t.Src = ip
				case ipV4Dst, ipV6Dst:
					t.Dst = ip
				}
			}
			a.Fail(inner.Err())
		case tupleProto:
			for inner.Next() {
				switch inner.Type {
				case protoNum:
					proto = inner.Uint8()
				case protoSrcPort:
					t.SrcPort = inner.BE16()
				case protoDstPort:
					t.DstPort = inner.BE16()
				}
			}
			a.Fail(inner.Err())
		case tupleZone:
			zone = a.BE16()
		}
	}
	return t, proto, zone, a.Err()
}

// tcpStates are the kernel's names, by number (enum tcp_conntrack).
var tcpStates = [...]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT",
	"CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

func state(a dump.Attrs) (string, error) {
	name := ""
	for a.Next() {
		if a.Type != protoInfoTCP {
			continue
		}
		tcp := a.Nested()
		for tcp.Next() {
			if tcp.Type != tcpState {
				continue
			}
			if n := int(tcp.Uint8()); n < len(tcpStates) {
				name = tcpStates[n]
			}
		}
		a.Fail(tcp.Err())
	}
	return name, a.Err()
}

// Statistics reads the table's size and its counters since it exists, summed
// over the CPUs.
func Statistics(ctx context.Context, c *dump.Conn) (model.Conntrack, error) {
	var out model.Conntrack
	err := dump.Retry(ctx, func() error {
		out = model.Conntrack{}
		err := c.Get(msgStats, request, 0, func(m []byte) error {
			return decodeSize(m, &out)
		})
		if err != nil {
			return err
		}
		return c.Each(msgStatsCPU, request, 0, func(m []byte) error {
			return addCPU(m, &out)
		})
	})
	if err != nil {
		return out, fmt.Errorf("read connection statistics: %w", err)
	}
	return out, nil
}

func decodeSize(m []byte, out *model.Conntrack) error {
	a := dump.ParseAfter(m, nfgenmsg)
	for a.Next() {
		switch a.Type {
		case 1: // CTA_STATS_GLOBAL_ENTRIES
			out.Count = uint64(a.BE32())
		case 2: // CTA_STATS_GLOBAL_MAX_ENTRIES, Linux 4.18
			out.Max = uint64(a.BE32())
		}
	}
	return a.Err()
}

// addCPU adds one CPU's counters (enum ctattr_stats_cpu).
func addCPU(m []byte, out *model.Conntrack) error {
	counters := map[uint16]*uint64{
		2: &out.Found, 4: &out.Invalid, 8: &out.Insert, 9: &out.InsertFailed,
		10: &out.Drop, 11: &out.EarlyDrop, 12: &out.ErrorPacket, 13: &out.SearchRestart,
	}
	a := dump.ParseAfter(m, nfgenmsg)
	for a.Next() {
		if c := counters[a.Type]; c != nil {
			*c += uint64(a.BE32())
		}
	}
	return a.Err()
}

// Since is the statistics with the counters of an earlier reading taken off.
// The kernel's counters have 32 bits and wrap.
func Since(now, before model.Conntrack) model.Conntrack {
	sub := func(a, b uint64) uint64 { return uint64(uint32(a) - uint32(b)) }
	return model.Conntrack{
		Count:         now.Count,
		Max:           now.Max,
		InsertFailed:  sub(now.InsertFailed, before.InsertFailed),
		Drop:          sub(now.Drop, before.Drop),
		EarlyDrop:     sub(now.EarlyDrop, before.EarlyDrop),
		Invalid:       sub(now.Invalid, before.Invalid),
		SearchRestart: sub(now.SearchRestart, before.SearchRestart),
		Found:         sub(now.Found, before.Found),
		Insert:        sub(now.Insert, before.Insert),
		ErrorPacket:   sub(now.ErrorPacket, before.ErrorPacket),
	}
}

// Involves returns a filter for Read: entries with one of the addresses at
// any of their four places.
func Involves(local map[netip.Addr]bool) func(*model.Flow) bool {
	return func(f *model.Flow) bool {
		return local[f.Original.Src] || local[f.Original.Dst] || local[f.Reply.Src] || local[f.Reply.Dst]
	}
}
