package socket

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// TestRead fills the queue of a listener that accepts nothing: with a backlog of 0
// one connection waits, and the next SYN is dropped.
func TestRead(t *testing.T) {
	ns := nstest.New(t)
	ns.Run("ip link set lo up")
	if b, err := Read(ns.NS); err != nil || b.Overflows != 0 || len(b.Waiting) > 0 {
		t.Fatalf("an empty namespace: %+v, %v", b, err)
	}
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dial := func() (c net.Conn, err error) {
		err = ns.Do(func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
			return err
		})
		return c, err
	}
	first, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := dial(); err == nil {
			c.Close()
		}
	}()
	defer func() { cancel(); <-done }()
	var b *model.Backlog
	for b == nil || b.Overflows == 0 {
		if b, err = Read(ns.NS); err != nil {
			t.Fatal(err)
		}
		if t.Context().Err() != nil {
			t.Fatal("no overflow")
		}
	}
	want := model.Listener{Addr: netip.MustParseAddrPort(l.Addr().String()), Queue: 1}
	if len(b.Waiting) != 1 || b.Waiting[0] != want {
		t.Errorf("waiting: %+v, want %+v", b.Waiting, want)
	}
}

func TestParse(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n"
	found, err := listeners(strings.NewReader(head+
		"   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n"+
		"   1: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000081 00:00000000\n"+
		"   2: 0100007F:1F90 0100007F:8000 01 00000000:00000005 00:00000000\n"), tcpListen)
	want := []model.Listener{{Addr: netip.MustParseAddrPort("0.0.0.0:8080")}, {Addr: netip.MustParseAddrPort("[::]:80"), Queue: 129}}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("listeners: %+v, %v", found, err)
	}
}

// TestLoopback tells what listens on loopback addresses from what listens on all, and a
// socket that is connected from one that anybody may send to.
func TestLoopback(t *testing.T) {
	ns := nstest.New(t)
	ns.Run("ip link set lo up")
	var tcp, udp []model.Socket
	err := ns.Do(func() error {
		for _, at := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"} {
			l, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			u, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			t.Cleanup(func() { u.Close() })
			c, err := net.Dial("udp", u.LocalAddr().String())
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			if !strings.HasPrefix(at, "0") {
				tcp = append(tcp, model.Socket{Proto: unix.IPPROTO_TCP, Addr: netip.MustParseAddrPort(l.Addr().String())})
				udp = append(udp, model.Socket{Proto: unix.IPPROTO_UDP, Addr: netip.MustParseAddrPort(u.LocalAddr().String())})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := Loopback(ns.NS); err != nil || !slices.Equal(found, slices.Concat(tcp, udp)) {
		t.Errorf("listeners: %v, %v, want %v", found, err, slices.Concat(tcp, udp))
	}
}

func FuzzListeners(f *testing.F) {
	f.Add("head\n   0: 00000000:1F90 00000000:0000 0A 00000000:00000003 00:00000000\n")
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = listeners(strings.NewReader(text), tcpListen)
		_, _ = listeners(strings.NewReader(text), udpUnconnected)
	})
}
