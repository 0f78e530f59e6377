package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/netns"
)

// heldQueue is the netfilter queue of the packets that are held.
const heldQueue = 53

// holdTime is how long a packet is held. Its socket sends the next one within
// microseconds.
const holdTime = 20 * time.Millisecond

// holdPackets starts the daemon of every node that has a ConntrackRace. A packet
// that it holds has an entry of connection tracking that is not confirmed, so
// that another of the same socket does not see it and is given the same answer
// tuple. A race of two CPUs is so made certain.
func (t *traffic) holdPackets(ctx context.Context, l *Lab) error {
	held := map[string]bool{}
	for _, f := range l.s.Faults {
		if f.Type != scenario.ConntrackRace || held[f.Node] {
			continue
		}
		held[f.Node] = true
		ns, err := netns.Named(l.netns(f.Node))
		if err != nil {
			return err
		}
		q, err := openQueue(ns.FD())
		ns.Close()
		if err != nil {
			return fmt.Errorf("hold packets of %s: %w", f.Node, err)
		}
		t.all.Go(func() {
			defer expire(ctx, q)()
			if err := errors.Join(q.hold(ctx), q.Close()); err != nil {
				t.fail(fmt.Errorf("hold packets of %s: %w", f.Node, err))
			}
		})
	}
	return nil
}

// queue is a netfilter queue, bound to its socket
// (linux/netfilter/nfnetlink_queue.h).
type queue struct{ *netlink.Conn }

// The messages and attributes of queues.
const (
	queuePacket  = unix.NFNL_SUBSYS_QUEUE << 8
	queueVerdict = unix.NFNL_SUBSYS_QUEUE<<8 | 1
	queueConfig  = unix.NFNL_SUBSYS_QUEUE<<8 | 2

	attrConfigCommand = 1 // NFQA_CFG_CMD: u8 command, u8 pad, be16 family
	attrConfigParams  = 2 // NFQA_CFG_PARAMS: be32 range, u8 mode
	attrPacketHeader  = 1 // NFQA_PACKET_HDR: be32 id, …
	attrVerdict       = 2 // NFQA_VERDICT_HDR: be32 verdict, be32 id

	commandBind = 1
	copyMeta    = 1
	accept      = 1

	nfgenmsg = 4 // the header's length
)

// openQueue binds the queue of a network namespace. It is unbound when closed.
func openQueue(ns int) (*queue, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns})
	if err != nil {
		return nil, fmt.Errorf("open netfilter queue: %w", err)
	}
	q := &queue{c}
	m, err := queueMessage(queueConfig, netlink.Request|netlink.Acknowledge,
		netlink.Attribute{Type: attrConfigCommand, Data: []byte{commandBind, 0, 0, unix.AF_INET}},
		netlink.Attribute{Type: attrConfigParams, Data: []byte{0, 0, 0, 0, copyMeta}})
	if err == nil {
		_, err = q.Execute(m)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bind netfilter queue: %w", err), c.Close())
	}
	return q, nil
}

func queueMessage(typ netlink.HeaderType, flags netlink.HeaderFlags, attrs ...netlink.Attribute) (netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attrs)
	header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, heldQueue)
	return netlink.Message{Header: netlink.Header{Type: typ, Flags: flags}, Data: append(header, data...)}, err
}

// hold lets the packets wait and go on, in their order, until ctx ends.
func (q *queue) hold(ctx context.Context) error {
	for {
		messages, err := q.Receive()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.Header.Type != queuePacket {
				continue
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(holdTime):
			}
			if err := q.release(m.Data); err != nil {
				return err
			}
		}
	}
}

// release accepts the packet of a message.
func (q *queue) release(message []byte) error {
	id, err := packetID(message)
	if err != nil {
		return fmt.Errorf("read message of netfilter queue: %w", err)
	}
	verdict := append(binary.BigEndian.AppendUint32(nil, accept), id[:]...)
	m, err := queueMessage(queueVerdict, netlink.Request, netlink.Attribute{Type: attrVerdict, Data: verdict})
	if err == nil {
		_, err = q.Send(m)
	}
	return wrap(err, "accept held packet")
}

// packetID is what the kernel knows a held packet by.
func packetID(message []byte) (id [4]byte, err error) {
	if len(message) < nfgenmsg {
		return id, errors.New("its header is cut off")
	}
	attrs, err := netlink.UnmarshalAttributes(message[nfgenmsg:])
	if err != nil {
		return id, err
	}
	for _, a := range attrs {
		if a.Type == attrPacketHeader && copy(id[:], a.Data) == len(id) {
			return id, nil
		}
	}
	return id, errors.New("it names no packet")
}
