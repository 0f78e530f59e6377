package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/netns"
)

// maxMessage is above every payload.
const maxMessage = 2048

// errAnswer says that something else came back than was sent.
var errAnswer = errors.New("answer differs from what was sent")

// request sends the payload from a new socket of the flow's namespace, with
// the source port from unless that is 0, and waits for it to come back. sent is
// called when the request was sent, or cannot be.
func request(ctx context.Context, f *flow, from uint16, timeout time.Duration, payload []byte, sent func()) error {
	c, err := converse(ctx, f, from, timeout, payload, sent)
	if err != nil {
		return err
	}
	return release(c, from)
}

// release closes a socket. One with a source port of its own is disconnected first,
// which resets a TCP connection: the next socket may have the port at once, although
// a process that is being started holds a copy of each descriptor until it runs.
func release(c *os.File, from uint16) error {
	var err error
	if from != 0 {
		err = disconnect(c)
	}
	return errors.Join(err, c.Close())
}

// disconnect takes a socket's peer away (connect(2), AF_UNSPEC).
func disconnect(c *os.File) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
		_, _, errno = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	})
	if errno != 0 {
		err = errors.Join(err, errno)
	}
	return wrap(err, "disconnect")
}

// converse is request that leaves the socket open, without a deadline.
func converse(ctx context.Context, f *flow, from uint16, timeout time.Duration, payload []byte, sent func()) (c *os.File, err error) {
	defer sent()
	c, err = connect(f.from, f.Proto, from, netip.AddrPortFrom(f.To.Addr, f.Port))
	if err != nil {
		return nil, err
	}
	if err := exchange(ctx, c, f, timeout, payload, sent); err != nil {
		return nil, errors.Join(err, release(c, from))
	}
	return c, wrap(c.SetDeadline(time.Time{}), "set deadline")
}

// exchange sends the payload by a socket and waits for it to come back.
func exchange(ctx context.Context, c *os.File, f *flow, timeout time.Duration, payload []byte, sent func()) error {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	defer expire(ctx, c)()
	if f.Proto == scenario.TCP {
		sent()
		if err := connected(c); err != nil {
			return err
		}
	}
	msg := payload
	if f.Proto == scenario.ICMP {
		kind := byte(echoRequest)
		if f.To.Addr.Is6() {
			kind = echoRequest6
		}
		msg = append([]byte{kind, 0, 0, 0, 0, 0, 0, 1}, payload...)
	}
	if _, err := c.Write(msg); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := askAlso(c, f, msg); err != nil {
		return err
	}
	sent()
	if f.OneWay {
		return nil
	}
	return receive(c, f.Proto, payload)
}

// askAlso sends a datagram to the flow's further addresses, from the socket
// that is connected to the first.
func askAlso(c *os.File, f *flow, msg []byte) error {
	if len(f.also) == 0 {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	for _, a := range f.also {
		var failed error
		err := raw.Write(func(fd uintptr) bool {
			failed = unix.Sendto(int(fd), msg, 0, &unix.SockaddrInet4{Port: int(f.Port), Addr: a.As4()})
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("send to %s: %w", a, err)
		}
	}
	return nil
}

// The types of ICMP messages, and the length of their header, whose checksum
// and identifier the kernel fills in.
const (
	echoReply    = 0
	echoRequest  = 8
	echoReply6   = 129
	echoRequest6 = 128
	echoHeader   = 8
)

// receive waits for the payload to come back.
func receive(c *os.File, proto scenario.Proto, payload []byte) error {
	buf := make([]byte, maxMessage)
	if proto == scenario.TCP {
		buf = buf[:len(payload)]
		if _, err := io.ReadFull(c, buf); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	} else {
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		buf = buf[:n]
	}
	if proto == scenario.ICMP {
		if len(buf) < echoHeader || buf[0] != echoReply && buf[0] != echoReply6 {
			return errAnswer
		}
		buf = buf[echoHeader:]
	}
	if !bytes.Equal(buf, payload) {
		return errAnswer
	}
	return nil
}

// connect makes a socket in the namespace and connects it, which for TCP has only begun
// on return. A given source port is free again after release. Only making it needs the
// namespace; waiting inside would hold a thread.
func connect(ns *netns.NS, proto scenario.Proto, from uint16, to netip.AddrPort) (*os.File, error) {
	family, typ, num := unix.AF_INET, unix.SOCK_DGRAM, 0
	var peer unix.Sockaddr
	if to.Addr().Is6() {
		family, peer = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		peer = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	switch proto {
	case scenario.TCP:
		typ = unix.SOCK_STREAM
	case scenario.ICMP:
		num = unix.IPPROTO_ICMP
		if family == unix.AF_INET6 {
			num = unix.IPPROTO_ICMPV6
		}
	}
	fd := -1
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(family, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, num)
		return err
	})
	var c *os.File
	if fd >= 0 {
		c = os.NewFile(uintptr(fd), string(proto))
	}
	if err == nil && from != 0 {
		err = usePort(fd, family, from)
	}
	if err == nil {
		err = unix.Connect(fd, peer)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		c.Close() // harmless without a file
		return nil, fmt.Errorf("connect: %w", err)
	}
	return c, nil
}

// usePort gives a socket its source port.
func usePort(fd, family int, port uint16) error {
	var own unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
	if family == unix.AF_INET6 {
		own = &unix.SockaddrInet6{Port: int(port)}
	}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, own))
}

// keepAlive has the kernel send keep-alives by a connection, one each second.
func keepAlive(c *os.File) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("keep connection alive: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for _, o := range []struct{ level, name int }{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		} {
			failed = errors.Join(failed, unix.SetsockoptInt(int(fd), o.level, o.name, 1))
		}
	})
	return wrap(errors.Join(err, failed), "keep connection alive")
}

// connected waits until a TCP connection stands.
func connected(c *os.File) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			result = err
			return true
		case code != 0:
			result = unix.Errno(code)
			return true
		}
		_, err = unix.Getpeername(int(fd))
		if errors.Is(err, unix.ENOTCONN) {
			return false // not yet
		}
		result = err
		return true
	})
	return wrap(errors.Join(err, result), "connect")
}

// expire ends all waits on c when ctx ends. It leaves closing c to its users, so
// that none of them uses a closed one.
func expire(ctx context.Context, c interface{ SetDeadline(time.Time) error }) (stop func() bool) {
	// The one error is that c is closed already.
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}

// serveTCP sends back what each connection sends, until ctx ends. One that is
// not to accept has the shortest backlog, which the first connections fill.
func (t *traffic) serveTCP(ctx context.Context, ns *netns.NS, addr netip.AddrPort, accept bool) error {
	var l *net.TCPListener
	err := ns.Do(func() error {
		any, err := listening.Listen(ctx, "tcp", addr.String())
		if err == nil {
			l = any.(*net.TCPListener)
		}
		return err
	})
	if err != nil {
		return err
	}
	raw, err := l.SyscallConn()
	if err == nil && !accept {
		var failed error
		err = raw.Control(func(fd uintptr) { failed = unix.Listen(int(fd), 0) })
		err = errors.Join(err, failed)
	}
	if err != nil {
		l.Close()
		return err
	}
	t.all.Go(func() {
		defer l.Close()
		// A process that is just being forked holds the socket a little
		// longer; the port must be free now. Nothing is wrong with one
		// that does not listen any more.
		defer func() { _ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) }()
		defer expire(ctx, l)()
		if !accept {
			<-ctx.Done()
			return
		}
		for {
			c, err := l.Accept()
			if err != nil {
				if ctx.Err() == nil {
					t.fail(fmt.Errorf("accept at %s: %w", addr, err))
				}
				return
			}
			t.all.Go(func() { t.echo(ctx, c) })
		}
	})
	return nil
}

// echo serves one connection.
func (t *traffic) echo(ctx context.Context, c net.Conn) {
	defer c.Close()
	kept := slices.ContainsFunc(t.flows, func(f *flow) bool { return f.Keep })
	if !kept && c.SetDeadline(time.Now().Add(t.timeout)) != nil {
		return
	}
	defer expire(ctx, c)()
	buf := make([]byte, maxMessage)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			dawdle(ctx, buf[:n])
			_, err = c.Write(buf[:n])
		}
		if err != nil {
			return // An error is the client's to count.
		}
	}
}

// dawdle waits before a request that wants a late answer is answered.
func dawdle(ctx context.Context, msg []byte) {
	if !bytes.HasPrefix(msg, []byte("lasthop "+slow)) {
		return
	}
	late := time.NewTimer(lateness)
	defer late.Stop()
	select {
	case <-ctx.Done():
	case <-late.C:
	}
}

// listening lets a server have an address that its machine does not have, and
// for UDP the port of a server that was just closed, which a process that is
// being forked may still hold. The latest gets what arrives. TCP has the latter
// from Go, and does not take a port from a server that listens.
var listening = net.ListenConfig{Control: func(network, _ string, raw syscall.RawConn) error {
	var set error
	err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		if strings.HasPrefix(network, "udp") {
			set = errors.Join(set, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		}
	})
	return errors.Join(err, set)
}}

// serveUDP sends back each datagram, until ctx ends. One that is not
// to read lets its buffer fill.
func (t *traffic) serveUDP(ctx context.Context, ns *netns.NS, addr netip.AddrPort, read bool) error {
	var c *net.UDPConn
	err := ns.Do(func() error {
		any, err := listening.ListenPacket(ctx, "udp", addr.String())
		if err == nil {
			c = any.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		return err
	}
	if !read {
		if err := c.SetReadBuffer(1); err != nil {
			c.Close()
			return err
		}
	}
	t.all.Go(func() {
		defer c.Close()
		defer expire(ctx, c)()
		if !read {
			<-ctx.Done()
			return
		}
		buf := make([]byte, maxMessage)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				if ctx.Err() == nil {
					t.fail(fmt.Errorf("receive at %s: %w", addr, err))
				}
				return
			}
			if bytes.HasPrefix(buf[:n], []byte("lasthop "+oneWay)) {
				continue
			}
			msg := slices.Clone(buf[:n])
			t.all.Go(func() {
				dawdle(ctx, msg)
				// A lost answer is the client's to count.
				_, _ = c.WriteToUDPAddrPort(msg, from)
			})
		}
	})
	return nil
}
