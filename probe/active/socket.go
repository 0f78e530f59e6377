package active

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// open opens a socket that sends whole frames on a link and receives replies of
// the port's kind. id is the identifier of its echo requests.
func open(ns *netns.NS, at port, id uint16) (s *os.File, err error) {
	err = ns.Do(func() (err error) {
		s, err = openHere(at, id)
		return err
	})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil, &model.UnsupportedError{Feature: "send probes", Remedy: "needs CAP_NET_RAW", Err: err}
	}
	return s, err
}

func openHere(at port, id uint16) (*os.File, error) {
	// With protocol 0 the socket receives nothing before it is bound, when the filter is in place.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	protocol, filter := uint16(unix.ETH_P_ARP), arpReplies
	switch {
	case at.kind == model.ProbeEcho && at.isIPv6:
		// Without extension headers, as hosts send them to a request without.
		protocol, filter = unix.ETH_P_IPV6, echoReplies(6, unix.IPPROTO_ICMPV6, ipv6Size, 129, id)
	case at.kind == model.ProbeEcho:
		protocol, filter = unix.ETH_P_IP, echoReplies(9, unix.IPPROTO_ICMP, ipv4Size, 0, id)
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("filter packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: at.ifindex}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind packet socket: %w", err)
	}
	s := os.NewFile(uintptr(fd), "packet socket")
	// A stopped transmit queue must not block the sender forever.
	if err := s.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		s.Close()
		return nil, fmt.Errorf("bound packet socket: %w", err)
	}
	return s, nil
}

// read delivers replies until reading fails or done is closed.
func read(s *os.File, at port, replies chan<- heard, done <-chan struct{}) {
	frame := make([]byte, 2048)
	for {
		n, err := s.Read(frame)
		h := heard{port: at, at: time.Now(), err: err}
		if err == nil {
			var ok bool
			if h.reply, ok = decode(frame[:n]); !ok {
				continue
			}
		}
		select {
		case replies <- h:
		case <-done:
			return
		}
		if err != nil {
			return
		}
	}
}

// Classic BPF filters for Ethernet frames, so that a busy link does not fill the
// socket's buffer. A load beyond the end of the frame rejects it.
const (
	all      = 0xffff
	ethernet = 14 // bytes of its header

	loadByte  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	loadHalf  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	loadByteX = unix.BPF_LD | unix.BPF_B | unix.BPF_IND
	loadHalfX = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
	jumpEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	ret       = unix.BPF_RET | unix.BPF_K
)

var (
	// The sizes of network headers: as the IPv4 header says, and fixed.
	ipv4Size = unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: ethernet}
	ipv6Size = unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_IMM, K: 40}

	arpReplies = []unix.SockFilter{
		{Code: loadHalf, K: ethernet + 6}, // operation
		{Code: jumpEqual, K: 2, Jf: 1},
		{Code: ret, K: all},
		{Code: ret},
	}
)

// echoReplies accepts the replies to the echo requests with an identifier. protocol is at
// a place of the network header, and reply is the type of its messages.
func echoReplies(at, protocol uint32, size unix.SockFilter, reply uint32, id uint16) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: loadByte, K: ethernet + at},
		{Code: jumpEqual, K: protocol, Jf: 6},
		size,
		{Code: loadByteX, K: ethernet}, // type
		{Code: jumpEqual, K: reply, Jf: 3},
		{Code: loadHalfX, K: ethernet + 4}, // identifier
		{Code: jumpEqual, K: uint32(id), Jf: 1},
		{Code: ret, K: all},
		{Code: ret},
	}
}
