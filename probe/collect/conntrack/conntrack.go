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

// Read lists the flows that have a local address as source or destination of either tuple, about as many as are
// expected; all flows where local is nil. With an error, what could be read is returned too.
func Read(ctx context.Context, c *dump.Conn, expected int, local map[netip.Addr]bool) ([]model.Flow, error) {
	// A list that grows leaves several times its size behind.
	out, d := make([]model.Flow, 0, expected+expected/8), newDecoder()
	err := dump.Retry(ctx, "list flows", func() error {
		out = out[:0]
		return c.Each(msgGet, request, msgNew, func(m []byte) error {
			f, err := d.decode(m)
			o, r := &f.Original, &f.Reply
			if err == nil && (local == nil || local[o.Src] || local[o.Dst] || local[r.Src] || local[r.Dst]) {
				out = append(out, f)
			}
			return err
		})
	})
	return out, err
}

// tcpStates are the names of the states, by number (enum tcp_conntrack). Others have none.
var tcpStates = [256]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT",
	"CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

// decoder decodes one flow after the other, in one place: there may be very many.
type decoder struct {
	flow   model.Flow
	fields dump.Fields
}

func newDecoder() *decoder {
	d := &decoder{}
	f := &d.flow
	d.fields = dump.Fields{
		nl.CTA_TUPLE_ORIG: d.tuple(&f.Original), nl.CTA_TUPLE_REPLY: d.tuple(&f.Reply), nl.CTA_MARK: &f.Mark, nl.CTA_ZONE: &f.Zone,
		nl.CTA_STATUS: func(a *dump.Attrs) {
			s := a.BE32()
			f.Replied, f.Assured = s&statusSeenReply != 0, s&statusAssured != 0
		},
		nl.CTA_TIMEOUT: func(a *dump.Attrs) { f.Timeout = time.Duration(a.BE32()) * time.Second },
		nl.CTA_PROTOINFO: dump.Fields{nl.CTA_PROTOINFO_TCP: dump.Fields{
			nl.CTA_PROTOINFO_TCP_STATE: func(a *dump.Attrs) { f.State = tcpStates[a.Uint8()] },
		}},
	}
	return d
}

// tuple takes the tuple of one direction, with the protocol, which is the same in both,
// and a zone that applies to this direction alone.
func (d *decoder) tuple(t *model.Tuple) dump.Fields {
	ip := func(to *netip.Addr) func(*dump.Attrs) {
		return func(a *dump.Attrs) {
			var ok bool
			if *to, ok = netip.AddrFromSlice(a.Data); !ok {
				a.Fail(fmt.Errorf("address of %d bytes", len(a.Data)))
			}
		}
	}
	src, dst := ip(&t.Src), ip(&t.Dst)
	return dump.Fields{
		nl.CTA_TUPLE_IP:    dump.Fields{nl.CTA_IP_V4_SRC: src, nl.CTA_IP_V6_SRC: src, nl.CTA_IP_V4_DST: dst, nl.CTA_IP_V6_DST: dst},
		nl.CTA_TUPLE_PROTO: dump.Fields{nl.CTA_PROTO_NUM: &d.flow.Proto, nl.CTA_PROTO_SRC_PORT: &t.SrcPort, nl.CTA_PROTO_DST_PORT: &t.DstPort},
		tupleZone:          func(a *dump.Attrs) { d.flow.Zone = max(d.flow.Zone, a.BE16()) },
	}
}

func (d *decoder) decode(m []byte) (model.Flow, error) {
	d.flow = model.Flow{}
	err := dump.ParseAfter(m, nl.SizeofNfgenmsg).Decode(binary.BigEndian, d.fields)
	if err != nil {
		err = fmt.Errorf("flow: %w", err)
	}
	return d.flow, err
}

// Statistics reads the table's size and its counters, which count from the namespace's creation, summed over the CPUs.
func Statistics(ctx context.Context, c *dump.Conn) (model.Conntrack, error) {
	var out model.Conntrack
	err := dump.Retry(ctx, "read conntrack statistics", func() error {
		out = model.Conntrack{}
		if err := c.Get(msgStats, request, 0, func(m []byte) error { return decodeSize(m, &out) }); err != nil {
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

func addCPU(m []byte, out *model.Conntrack) error {
	fields := dump.Fields{}
	for i, c := range counters(out) {
		fields[i] = func(a *dump.Attrs) { *c += uint64(a.BE32()) }
	}
	return dump.ParseAfter(m, nl.SizeofNfgenmsg).Decode(binary.BigEndian, fields)
}

// Since returns now with the counters of an earlier reading subtracted. The kernel's counters have 32 bits and wrap.
func Since(now, before model.Conntrack) model.Conntrack {
	old := counters(&before)
	for i, c := range counters(&now) {
		*c = uint64(uint32(*c) - uint32(*old[i]))
	}
	return now
}
