// Package socket reads what listens in a network namespace, from /proc/net/netstat, tcp, udp and their IPv6 twins
// there: how often a queue of connections to be accepted was full, where connections wait, and what listens on a
// loopback address. Since the kernel takes a SYN that finds the queue full for consumed, no trace of dropped
// packets shows it. The files are readable without rights; entering another namespace takes CAP_SYS_ADMIN. The
// interface of ss(8), sock_diag, would load a kernel module.
package socket

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// dir has the files of the namespace that the reading thread is in.
const dir = "/proc/thread-self/net/"

// Read reads the listeners of a namespace. The sockets are listed only if a queue was ever full.
func Read(ns *netns.NS) (*model.Backlog, error) {
	out := &model.Backlog{}
	err := ns.Do(func() error {
		thread, err := procfs.NewProc(unix.Gettid())
		if err != nil {
			return err
		}
		n, err := thread.Netstat()
		if err == nil && n.ListenOverflows == nil {
			err = errors.New("no ListenOverflows in netstat")
		}
		if err != nil || *n.ListenOverflows == 0 {
			return err
		}
		out.Overflows = uint64(*n.ListenOverflows)
		return tables("tcp", func(r io.Reader) error {
			found, err := listeners(r, tcpListen)
			found = slices.DeleteFunc(found, func(l model.Listener) bool { return l.Queue == 0 })
			out.Waiting = append(out.Waiting, found...)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read TCP listeners: %w", err)
	}
	return out, nil
}

// Loopback lists the sockets that take what comes to a loopback address alone.
func Loopback(ns *netns.NS) ([]model.Socket, error) {
	var out []model.Socket
	read := func(file, state string, proto uint8) error {
		return tables(file, func(r io.Reader) error {
			found, err := listeners(r, state)
			for _, l := range found {
				if l.Addr.Addr().Unmap().IsLoopback() {
					out = append(out, model.Socket{Proto: proto, Addr: l.Addr})
				}
			}
			return err
		})
	}
	err := ns.Do(func() error {
		return errors.Join(read("tcp", tcpListen, unix.IPPROTO_TCP), read("udp", udpUnconnected, unix.IPPROTO_UDP))
	})
	if err != nil {
		return nil, fmt.Errorf("read listeners: %w", err)
	}
	return out, nil
}

// tables reads the table of a protocol's sockets and, but for a kernel without IPv6, its twin.
func tables(file string, read func(io.Reader) error) error {
	err := open(file, read)
	if failed := open(file+"6", read); !errors.Is(failed, fs.ErrNotExist) {
		err = errors.Join(err, failed)
	}
	return err
}

func open(file string, read func(io.Reader) error) error {
	f, err := os.Open(dir + file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := read(f); err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	return nil
}

// The states of sockets that anybody may send to.
const (
	tcpListen      = "0A"
	udpUnconnected = "07"
)

// mostSockets bounds the lines read of a table.
const mostSockets = 1 << 16

// listeners are the sockets of a state. The kernel lists TCP's listeners first, so the rest,
// which may be long, is not read.
func listeners(r io.Reader, in string) ([]model.Listener, error) {
	const local, state, queues = 1, 3, 4
	var out []model.Listener
	s := bufio.NewScanner(r)
	s.Scan() // the names of the columns
	for lines := 1; s.Scan(); lines++ {
		if lines > mostSockets {
			return out, fmt.Errorf("more than %d sockets", mostSockets)
		}
		fields := strings.Fields(s.Text())
		if len(fields) <= queues {
			return out, fmt.Errorf("%d columns", len(fields))
		}
		if fields[state] != in {
			if in == tcpListen {
				break
			}
			continue
		}
		_, received, _ := strings.Cut(fields[queues], ":")
		n, err := strconv.ParseUint(received, 16, 32)
		if err != nil {
			return out, err
		}
		at, err := parseAddr(fields[local])
		if err != nil {
			return out, err
		}
		out = append(out, model.Listener{Addr: at, Queue: uint32(n)})
	}
	return out, s.Err()
}

// parseAddr parses an address and port in hexadecimal. The address is printed as
// 32-bit words in the machine's byte order.
func parseAddr(text string) (netip.AddrPort, error) {
	a, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(a)
	n, failed := strconv.ParseUint(port, 16, 16)
	if err := errors.Join(err, failed); err != nil {
		return netip.AddrPort{}, err
	}
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	return netip.AddrPortFrom(addr, uint16(n)), nil
}
