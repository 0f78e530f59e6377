package dump

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns/nstest"
)

func TestAttrs(t *testing.T) {
	two := Append(Append(nil, 1, []byte("eth0\x00")), unix.NLA_F_NESTED|2, []byte{1, 2, 3, 4})
	for _, tt := range []struct {
		name string
		in   []byte
		n    int
		ok   bool
	}{
		{"none", nil, 0, true},
		{"two", two, 2, true},
		{"no room for a header", two[:3], 0, false},
		{"cut in the first", two[:8], 0, false},
		{"cut in the second", two[:len(two)-1], 1, false},
		{"length below the header's", []byte{3, 0, 1, 0}, 0, false},
		{"length zero", []byte{0, 0, 1, 0, 5, 5, 5, 5}, 0, false},
		{"last one without padding", two[:9], 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, n := Parse(tt.in), 0
			for a.Next() {
				n++
			}
			if n != tt.n || (a.Err() == nil) != tt.ok {
				t.Errorf("%d attributes, error %v; want %d, ok %v", n, a.Err(), tt.n, tt.ok)
			}
		})
	}
	a := Parse(two)
	a.Next()
	if a.Type != 1 || a.String() != "eth0" {
		t.Errorf("first: %d %q", a.Type, a.String())
	}
	a.Next()
	if a.Type != 2 || a.BE32() != 0x01020304 || a.Err() != nil {
		t.Errorf("second: %d %#x %v", a.Type, a.BE32(), a.Err())
	}
	if a.BE64(); a.Err() == nil {
		t.Error("8 bytes read from 4 without an error")
	}
	if b := ParseAfter([]byte{1}, 4); b.Err() == nil {
		t.Error("header cut short without an error")
	}
}

func FuzzAttrs(f *testing.F) {
	f.Add(Append(Append(nil, 1, []byte("eth0\x00")), 2, []byte{1, 2, 3, 4}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a := Parse(b)
		total := 0
		for a.Next() {
			total += len(a.Data)
			_, _ = a.String(), a.Uint8()
		}
		if total > len(b) {
			t.Errorf("%d bytes of data in %d", total, len(b))
		}
	})
}

func TestRetry(t *testing.T) {
	ctx := context.Background()
	runs := 0
	err := Retry(ctx, "try", func() error {
		if runs++; runs < 3 {
			return ErrInterrupted
		}
		return nil
	})
	if err != nil || runs != 3 {
		t.Errorf("%d runs, %v", runs, err)
	}
	runs = 0
	if err := Retry(ctx, "try", func() error { runs++; return ErrInterrupted }); !errors.Is(err, ErrInterrupted) || runs != attempts {
		t.Errorf("always interrupted: %d runs, %v", runs, err)
	}
	if err := Retry(ctx, "try", func() error { return []error{}[runs] }); err == nil {
		t.Error("a panic gave no error")
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := Retry(ended, "try", func() error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

// TestRefusedDump asks for what the kernel refuses: its answer is an error,
// and the socket works on.
func TestRefusedDump(t *testing.T) {
	ns := nstest.New(t)
	c, err := Open(ns.NS, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	none := Append(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_TARGET_NETNSID, []byte{77, 0, 0, 0})
	if err := c.Each(unix.RTM_GETLINK, none, unix.RTM_NEWLINK, func([]byte) error { return nil }); err == nil {
		t.Error("a namespace that does not exist gave no error")
	}
	var names [][]byte
	err = c.Each(unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg), unix.RTM_NEWLINK, func(m []byte) error {
		names = append(names, m)
		return nil
	})
	if err != nil || len(names) != 1 || !bytes.Contains(names[0], []byte("lo\x00")) {
		t.Errorf("dump after a refused one: %d links, %v", len(names), err)
	}
	stop := errors.New("stop")
	if err := c.Each(unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg), 0, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error of the caller: %v", err)
	}
}
