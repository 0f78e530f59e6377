// Package dump sends netlink requests in a given network namespace and iterates over the attributes of the
// replies, for what the netlink libraries do not decode whole: the link flags of a bridge port, nft expressions
// that they do not know, conntrack tables too large for one value per entry.
//
// Opening a socket in another namespace takes CAP_SYS_ADMIN there; nfnetlink dumps take CAP_NET_ADMIN, most of
// rtnetlink's take nothing. A dump that is interrupted by changes returns ErrInterrupted along with what it delivered.
package dump

import (
	"cmp"
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
	protocol int
	nl.SocketHandle
}

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
func here(protocol int) (*Conn, error) {
	sock, err := nl.GetNetlinkSocketAt(-1, -1, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = sock.SetReceiveTimeout(new(unix.NsecToTimeval(timeout.Nanoseconds())))
	if err == nil && protocol == unix.NETLINK_ROUTE {
		// Without strict checking (Linux 4.20) the kernel ignores
		// IFA_TARGET_NETNSID and dumps the addresses of this namespace.
		err = unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	if err != nil {
		sock.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &Conn{protocol, nl.SocketHandle{Socket: sock}}, nil
}

// Dumper sends dump requests. A Conn is one.
type Dumper interface {
	Each(request uint16, body []byte, reply uint16, f func(m []byte) error) error
}

// ErrSkip is what decode returns to List for an object that is to be left out.
var ErrSkip = errors.New("left out")

// List dumps the objects of one kind and returns them. An interrupted dump is repeated as Retry does. With an error,
// what the last run decoded is returned too. Other arguments are those of Retry and Each.
func List[T any](ctx context.Context, does string, c Dumper, request uint16, body []byte, reply uint16,
	decode func(m []byte) (T, error)) (out []T, err error) {
	err = Retry(ctx, does, func() error {
		out = out[:0]
		return c.Each(request, body, reply, func(m []byte) error {
			x, err := decode(m)
			switch {
			case err == nil:
				out = append(out, x)
			case errors.Is(err, ErrSkip):
				err = nil
			}
			return err
		})
	})
	return out, err
}

// Each sends a dump request of the given type and body, and calls f with each message of type reply, or of any
// type if reply is 0, without its netlink header. f may keep the bytes. An error of f ends the dump.
func (c *Conn) Each(request uint16, body []byte, reply uint16, f func(m []byte) error) error {
	return c.execute(request, unix.NLM_F_DUMP, body, reply, f)
}

// Get requests one object, which is passed to f as in Each. It asks for an acknowledgement to know where the
// reply ends: conntrack sets NLM_F_MULTI on its only message.
func (c *Conn) Get(request uint16, body []byte, reply uint16, f func(m []byte) error) error {
	return c.execute(request, unix.NLM_F_ACK, body, reply, f)
}

func (c *Conn) execute(request, flags uint16, body []byte, reply uint16, f func(m []byte) error) error {
	r := nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{Type: request, Flags: unix.NLM_F_REQUEST | flags}, RawData: body,
		Sockets: map[int]*nl.SocketHandle{c.protocol: &c.SocketHandle},
	}
	var failed error
	err := r.ExecuteIter(c.protocol, reply, func(m []byte) bool {
		failed = f(m)
		return failed == nil
	})
	return cmp.Or(failed, err)
}
