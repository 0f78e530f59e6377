// Package dump asks the kernel for netlink dumps in an explicit network
// namespace and reads their messages, for what the netlink libraries decode
// in part only: link flags of a bridge port, nft expressions that they do not
// know, conntrack tables too large for a value per entry.
package dump

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// ErrInterrupted says that the table changed while it was dumped, so that
// entries may be missing or double (NLM_F_DUMP_INTR).
var ErrInterrupted = netlink.ErrDumpInterrupted

// attempts bounds how often an interrupted dump is tried: a table that changes
// all the time is better reported as partial than never.
const attempts = 4

// Retry runs f until it is not interrupted, a few times; the last error stands.
// f starts its result anew on each run, and what the last interrupted run
// found may be kept as partial.
//
// A panic in f becomes an error: the libraries index into messages without
// looking at their length (netlink v1.3.1, on an error answer with extended
// acknowledgement), and no message may end the program.
func Retry(ctx context.Context, f func() error) error {
	var err error
	for range attempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err = guard(f); !errors.Is(err, ErrInterrupted) {
			return err
		}
	}
	return err
}

// timeout bounds the wait for the kernel's next message. It answers at once;
// what takes longer never comes.
const timeout = 10 * time.Second

func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decode netlink message: %v", p)
		}
	}()
	return f()
}

// Conn is a netlink socket in one namespace. It may be used by several
// goroutines, one dump after the other.
type Conn struct {
	proto   int
	sockets map[int]*nl.SocketHandle
}

// Open opens a socket of the netlink protocol in the namespace.
func Open(ns *netns.NS, proto int) (c *Conn, err error) {
	err = ns.Do(func() error {
		c, err = here(proto)
		return err
	})
	return c, err
}

// Route opens what reads a namespace's links, and what reads its routes and
// neighbours, entering it once.
func Route(ns *netns.NS) (c *Conn, h *netlink.Handle, err error) {
	err = ns.Do(func() error {
		if c, err = here(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		if h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
			if err = h.SetSocketTimeout(timeout); err == nil {
				return nil
			}
			h.Close()
		}
		c.Close()
		return fmt.Errorf("open netlink socket: %w", err)
	})
	return c, h, err
}

// here opens a socket in the thread's namespace.
func here(proto int) (*Conn, error) {
	sock, err := nl.GetNetlinkSocketAt(-1, -1, proto)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := sock.SetReceiveTimeout(&limit); err != nil {
		sock.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if proto == unix.NETLINK_ROUTE {
		// Else the kernel overlooks what a request asks of an address dump
		// (IFA_TARGET_NETNSID), and answers another question. Linux 4.20.
		if err := unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
			sock.Close()
			return nil, fmt.Errorf("open netlink socket: %w", err)
		}
	}
	return &Conn{proto: proto, sockets: map[int]*nl.SocketHandle{proto: {Socket: sock}}}, nil
}

// Close closes the socket.
func (c *Conn) Close() {
	for _, s := range c.sockets {
		s.Close()
	}
}

// Each dumps with a request of the type and body, and calls f with each reply
// of the wanted type, without its netlink header. The bytes are f's to keep.
// An error of f ends the dump.
func (c *Conn) Each(request uint16, body []byte, reply uint16, f func(m []byte) error) error {
	return c.execute(request, unix.NLM_F_DUMP, body, reply, f)
}

// Get asks for one object. An acknowledgement ends the answer: conntrack marks
// its only message as one of several.
func (c *Conn) Get(request uint16, body []byte, reply uint16, f func(m []byte) error) error {
	return c.execute(request, unix.NLM_F_ACK, body, reply, f)
}

func (c *Conn) execute(request, flags uint16, body []byte, reply uint16, f func(m []byte) error) error {
	req := nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{
			Len:   unix.SizeofNlMsghdr,
			Type:  request,
			Flags: unix.NLM_F_REQUEST | flags,
		},
		RawData: body,
		Sockets: c.sockets,
	}
	var failed error
	err := req.ExecuteIter(c.proto, reply, func(m []byte) bool {
		failed = f(m)
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	return err
}
