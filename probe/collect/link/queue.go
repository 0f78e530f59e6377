package link

import (
	"context"
	"fmt"
	"math/bits"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// tick is a tick of the packet scheduler in ns, in which a tbf's burst is told.
const tick = 64

// Queues lists the queueing disciplines at the roots of links (RTM_GETQDISC), without
// link names, sorted by link. Their counts include those of the disciplines below them.
func Queues(ctx context.Context, h *netlink.Handle) ([]model.Queue, error) {
	var list []netlink.Qdisc
	err := dump.Retry(ctx, "list queueing disciplines", func() (err error) {
		list, err = h.QdiscList(nil)
		return err
	})
	var out []model.Queue
	for _, q := range list {
		if q.Attrs().Parent == netlink.HANDLE_ROOT && q.Type() != "noqueue" {
			out = append(out, queue(q))
		}
	}
	slices.SortStableFunc(out, func(a, b model.Queue) int { return a.IfIndex - b.IfIndex })
	return out, err
}

func queue(q netlink.Qdisc) model.Queue {
	a := q.Attrs()
	out := model.Queue{IfIndex: a.LinkIndex, Kind: q.Type(), Handle: fmt.Sprintf("%x:", a.Handle>>16)}
	if s := a.Statistics; s != nil {
		if s.Basic != nil {
			out.Sent = uint64(s.Basic.Packets)
		}
		if s.Queue != nil {
			out.Drops, out.Backlog = uint64(s.Queue.Drops), uint64(s.Queue.Qlen)
		}
	}
	switch q := q.(type) {
	case *netlink.Tbf:
		if hi, lo := bits.Mul64(q.Rate, uint64(q.Buffer)*tick); hi < nanoseconds {
			out.Burst, _ = bits.Div64(hi, lo, nanoseconds)
		}
		out.Rate, out.Limit = q.Rate, uint64(q.Limit)
	case *netlink.FqCodel:
		out.Limit = uint64(q.Limit)
	case *netlink.Fq:
		out.Limit = uint64(q.PacketLimit)
	case *netlink.Netem:
		out.Limit = uint64(q.Limit)
	case *netlink.Sfq:
		out.Limit = uint64(q.Limit)
	}
	return out
}

const nanoseconds = 1_000_000_000
