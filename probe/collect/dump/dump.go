// Package dump sends netlink requests in a given network namespace and iterates over the attributes of the
// replies, for what the netlink libraries do not decode whole: the link flags of a bridge port, nft expressions
// that they do not know, conntrack tables too large for one value per entry.
//
// Opening a socket in another namespace takes CAP_SYS_ADMIN there; nfnetlink dumps take CAP_NET_ADMIN, most of
// rtnetlink's take nothing. A dump that is interrupted by changes returns ErrInterrupted along with what it delivered.
package dump

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// ErrInterrupted says that the table changed while it was dumped, so that
// entries may be missing or doubled (NLM_F_DUMP_INTR).
var ErrInterrupted = netlink.ErrDumpInterrupted

// attempts limits how often an interrupted dump is repeated. A table that
// changes all the time is better reported as partial than never.
const attempts = 4

// Retry calls f until it returns something else than ErrInterrupted, but a few times at most, and returns its last
// error, behind what f does. f starts over each time; what its last run collected may be used as a partial result.
//
// A panic in f becomes an error: the libraries index into messages without checking their length (netlink v1.3.1,
// on an error reply with extended acknowledgement), and no message may crash the program.
func Retry(ctx context.Context, does string, f func() error) error {
	var err error = ErrInterrupted
	for n := 0; n < attempts && errors.Is(err, ErrInterrupted); n++ {
		if err = ctx.Err(); err == nil {
			err = guard(f)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", does, err)
	}
	return nil
}

// timeout limits the wait for the kernel's next message. The kernel answers at once or never.
const timeout = 10 * time.Second

func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decode netlink message: %v", p)
		}
	}()
	return f()
}

// Conn is a netlink socket in one namespace. It is safe for concurrent use; its requests are sent one after the other.
type Conn struct {
	sock *nl.NetlinkSocket
	// seq is the last request's, and changes while sock is locked.
	seq uint32
}

var buffers = sync.Pool{New: func() any { return new([nl.RECEIVE_BUFFER_SIZE]byte) }}

// Open opens a socket of the netlink protocol in the namespace.
func Open(ns *netns.NS, proto int) (c *Conn, err error) {
	err = ns.Do(func() error {
		c, err = here(proto)
		return err
	})
	return c, err
}

// Route enters the namespace once and opens two rtnetlink sockets there: c, and
// h for what the netlink library decodes (routes).
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

// here opens a socket in the namespace of the calling thread.
func here(proto int) (*Conn, error) {
	sock, err := nl.GetNetlinkSocketAt(-1, -1, proto)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if proto == unix.NETLINK_ROUTE {
		// Without strict checking (Linux 4.20) the kernel ignores
		// IFA_TARGET_NETNSID and dumps the addresses of this namespace.
		err = unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	if err != nil {
		sock.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &Conn{sock: sock}, nil
}

// Close closes the socket.
func (c *Conn) Close() { c.sock.Close() }

// Dumper sends dump requests. A Conn is one.
type Dumper interface {
	Each(request uint16, body []byte, reply uint16, f func(m []byte) error) error
}

// List dumps the objects of one kind and returns those for which decode reports ok. An interrupted dump is repeated as
// Retry does. With an error, what the last run decoded is returned too. Other arguments are those of Retry and Each.
func List[T any](ctx context.Context, does string, c Dumper, request uint16, body []byte, reply uint16,
	decode func(m []byte) (x T, ok bool, err error)) (out []T, err error) {
	err = Retry(ctx, does, func() error {
		out = out[:0]
		return c.Each(request, body, reply, func(m []byte) error {
			x, ok, err := decode(m)
			if err == nil && ok {
				out = append(out, x)
			}
			return err
		})
	})
	return out, err
}

// Each sends a dump request of the given type and body, and calls f with each message of type reply, or of any
// type if reply is 0, without its netlink header. f may keep the bytes. An error of f ends the dump.
func (c *Conn) Each(request uint16, body []byte, reply uint16, f func(m []byte) error) error {
	return c.execute(request, unix.NLM_F_DUMP, body, reply, bytes.Clone, f)
}

// Scan is Each for large tables of which little is kept: the bytes are f's until it returns.
func (c *Conn) Scan(request uint16, body []byte, reply uint16, f func(m []byte) error) error {
	return c.execute(request, unix.NLM_F_DUMP, body, reply, func(b []byte) []byte { return b }, f)
}

// Get requests one object, which is passed to f as in Each. It asks for an acknowledgement to know where the
// reply ends: conntrack sets NLM_F_MULTI on its only message.
func (c *Conn) Get(request uint16, body []byte, reply uint16, f func(m []byte) error) error {
	return c.execute(request, unix.NLM_F_ACK, body, reply, bytes.Clone, f)
}

// execute sends a request and passes the replies to f, as own returns them.
func (c *Conn) execute(
	request, flags uint16, body []byte, reply uint16, own func([]byte) []byte, f func(m []byte) error,
) error {
	c.sock.Lock()
	defer c.sock.Unlock()
	pid, err := c.sock.GetPid()
	if err != nil {
		return err
	}
	c.seq++
	if err := c.sock.Send(&nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{Len: unix.SizeofNlMsghdr, Type: request, Flags: unix.NLM_F_REQUEST | flags, Seq: c.seq},
		RawData:  body,
	}); err != nil {
		return err
	}
	buf := buffers.Get().(*[nl.RECEIVE_BUFFER_SIZE]byte)
	defer buffers.Put(buf)
	r := replies{seq: c.seq, pid: pid, reply: reply, f: f}
	for !r.done {
		n, err := c.receive(buf[:])
		if err != nil {
			return err
		}
		if err := r.take(own(buf[:n])); err != nil {
			return err
		}
	}
	switch {
	case r.failed != nil:
		return r.failed
	case r.interrupted:
		return ErrInterrupted
	}
	return nil
}

// receive fills buf with the kernel's next messages. Those of a dump are made when they
// are received, so there is nothing to wait for.
func (c *Conn) receive(buf []byte) (int, error) {
	fd := c.sock.GetFd()
	for {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(timeout.Milliseconds()))
			if err == nil && ready == 0 {
				return 0, unix.EAGAIN
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return 0, err
			}
		case err != nil:
			return 0, err
		default:
			if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != nl.PidKernel {
				return 0, fmt.Errorf("netlink message from %v, not from the kernel", from)
			}
			return n, nil
		}
	}
}

// replies are those to one request.
type replies struct {
	seq, pid uint32
	reply    uint16
	f        func(m []byte) error
	// failed is f's error: what is left is received and not passed to it.
	failed            error
	interrupted, done bool
}

// take passes the messages on.
func (r *replies) take(b []byte) error {
	for len(b) >= unix.SizeofNlMsghdr && !r.done {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return fmt.Errorf("netlink message: length %d of %d bytes left", size, len(b))
		}
		h, m := b[:unix.SizeofNlMsghdr], b[unix.SizeofNlMsghdr:size:size]
		b = b[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
		if binary.NativeEndian.Uint32(h[8:]) != r.seq || binary.NativeEndian.Uint32(h[12:]) != r.pid {
			continue
		}
		typ, flags := binary.NativeEndian.Uint16(h[4:]), binary.NativeEndian.Uint16(h[6:])
		r.interrupted = r.interrupted || flags&unix.NLM_F_DUMP_INTR != 0
		if typ == unix.NLMSG_DONE || typ == unix.NLMSG_ERROR {
			r.done = true
			if len(m) >= 4 && binary.NativeEndian.Uint32(m) != 0 {
				return unix.Errno(-int32(binary.NativeEndian.Uint32(m)))
			}
			return nil
		}
		if r.reply != 0 && typ != r.reply {
			continue
		}
		if r.failed == nil {
			r.failed = r.f(m)
		}
		r.done = flags&unix.NLM_F_MULTI == 0
	}
	return nil
}
