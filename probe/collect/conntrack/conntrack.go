// Package conntrack reads the flows of connection tracking, the table's size and its statistics (IPCTNL_MSG_CT_GET,
// _GET_STATS and _GET_STATS_CPU of nfnetlink). It takes CAP_NET_ADMIN. The caller makes sure that the module
// nf_conntrack_netlink is there, which a request would load. Without either the source is a gap as a whole.
package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Numbers of include/uapi/linux/netfilter/nfnetlink_conntrack.h that the netlink library lacks.
const (
	msgNew      = unix.NFNL_SUBSYS_CTNETLINK << 8
	msgGet      = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_GET
	msgStatsCPU = unix.NFNL_SUBSYS_CTNETLINK<<8 | 4
	msgStats    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5

	tupleZone       = 3
	statusSeenReply = 1 << 1
	statusAssured   = 1 << 2
)

// request is a struct nfgenmsg for all address families.
var request = make([]byte, nl.SizeofNfgenmsg)

// Read lists the flows that keep accepts, about as many as are expected. With an error,
// what could be read is returned too.
func Read(ctx context.Context, c *dump.Conn, expected int, keep func(*model.Flow) bool) ([]model.Flow, error) {
	// A list that grows leaves several times its size behind.
	out := make([]model.Flow, 0, expected+expected/8)
	err := dump.Retry(ctx, "list flows", func() error {
		out = out[:0]
		return c.Each(msgGet, request, msgNew, func(m []byte) error {
			f, err := decode(m)
			if err == nil && keep(&f) {
				out = append(out, f)
			}
			return err
		})
	})
	return out, err
}

func decode(m []byte) (f model.Flow, err error) {
	a := dump.ParseAfter(m, nl.SizeofNfgenmsg)
	for a.Next() {
		switch a.Type {
		case nl.CTA_TUPLE_ORIG:
			f.Original, err = tuple(a.Nested(), &f)
			a.Fail(err)
		case nl.CTA_TUPLE_REPLY:
			f.Reply, err = tuple(a.Nested(), &f)
			a.Fail(err)
		case nl.CTA_STATUS:
			s := a.BE32()
			f.Replied = s&statusSeenReply != 0
			f.Assured = s&statusAssured != 0
		case nl.CTA_PROTOINFO:
			f.State, err = state(a.Nested())
			a.Fail(err)
		case nl.CTA_TIMEOUT:
			f.Timeout = time.Duration(a.BE32()) * time.Second
		case nl.CTA_MARK:
			f.Mark = a.BE32()
		case nl.CTA_ZONE:
			f.Zone = a.BE16()
		}
	}
	if err = a.Err(); err != nil {
		err = fmt.Errorf("flow: %w", err)
	}
	return f, err
}

// tuple decodes the tuple of one direction. The protocol, which is the same in
// both, and a zone that applies to this direction alone are set in f.
func tuple(a dump.Attrs, f *model.Flow) (t model.Tuple, err error) {
	for a.Next() {
		inner := a.Nested()
		switch a.Type {
		case nl.CTA_TUPLE_IP:
			for inner.Next() {
				ip, ok := netip.AddrFromSlice(inner.Data)
				if !ok {
					inner.Fail(fmt.Errorf("address of %d bytes", len(inner.Data)))
					continue
				}
				switch inner.Type {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					t.Src = ip
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					t.Dst = ip
				}
			}
			a.Fail(inner.Err())
		case nl.CTA_TUPLE_PROTO:
			for inner.Next() {
				switch inner.Type {
				case nl.CTA_PROTO_NUM:
					f.Proto = inner.Uint8()
				case nl.CTA_PROTO_SRC_PORT:
					t.SrcPort = inner.BE16()
				case nl.CTA_PROTO_DST_PORT:
					t.DstPort = inner.BE16()
				}
			}
			a.Fail(inner.Err())
		case tupleZone:
			f.Zone = max(f.Zone, a.BE16())
		}
	}
	return t, a.Err()
}

// tcpStates are the names of the states, by number (enum tcp_conntrack). Others have none.
var tcpStates = [256]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT",
	"CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

func state(a dump.Attrs) (name string, err error) {
	for a.Next() {
		if a.Type != nl.CTA_PROTOINFO_TCP {
			continue
		}
		tcp := a.Nested()
		for tcp.Next() {
			if tcp.Type == nl.CTA_PROTOINFO_TCP_STATE {
				name = tcpStates[tcp.Uint8()]
			}
		}
		a.Fail(tcp.Err())
	}
	return name, a.Err()
}

// Statistics reads the table's size and its counters, which count from the namespace's creation, summed over the CPUs.
func Statistics(ctx context.Context, c *dump.Conn) (model.Conntrack, error) {
	var out model.Conntrack
	err := dump.Retry(ctx, "read conntrack statistics", func() error {
		out = model.Conntrack{}
		size := func(m []byte) error { return decodeSize(m, &out) }
		if err := c.Get(msgStats, request, 0, size); err != nil {
			return err
		}
		return c.Each(msgStatsCPU, request, 0, func(m []byte) error { return addCPU(m, &out) })
	})
	return out, err
}

func decodeSize(m []byte, out *model.Conntrack) error {
	const entries, most = 1, 2 // CTA_STATS_GLOBAL_ENTRIES, and _MAX_ENTRIES of Linux 4.18
	return dump.ParseAfter(m, nl.SizeofNfgenmsg).Decode(binary.BigEndian, dump.Fields{
		entries: func(a *dump.Attrs) { out.Count = uint64(a.BE32()) },
		most:    func(a *dump.Attrs) { out.Max = uint64(a.BE32()) },
	})
}

// counters are the counters by attribute (enum ctattr_stats_cpu).
func counters(c *model.Conntrack) map[uint16]*uint64 {
	return map[uint16]*uint64{
		2: &c.Found, 4: &c.Invalid, 8: &c.Insert, 9: &c.InsertFailed,
		10: &c.Drop, 11: &c.EarlyDrop, 12: &c.ErrorPacket, 13: &c.SearchRestart,
	}
}

// addCPU adds the counters of one CPU.
func addCPU(m []byte, out *model.Conntrack) error {
	all := counters(out)
	a := dump.ParseAfter(m, nl.SizeofNfgenmsg)
	for a.Next() {
		if c := all[a.Type]; c != nil {
			*c += uint64(a.BE32())
		}
	}
	return a.Err()
}

// Since returns now with the counters of an earlier reading subtracted. The kernel's counters have 32 bits and wrap.
func Since(now, before model.Conntrack) model.Conntrack {
	old := counters(&before)
	for i, c := range counters(&now) {
		*c = uint64(uint32(*c) - uint32(*old[i]))
	}
	return now
}

// Involves returns a filter for Read: flows that have one of the addresses as source or destination of either tuple;
// all flows where the addresses are nil.
func Involves(local map[netip.Addr]bool) func(*model.Flow) bool {
	return func(f *model.Flow) bool {
		return local == nil || local[f.Original.Src] || local[f.Original.Dst] || local[f.Reply.Src] || local[f.Reply.Dst]
	}
}
