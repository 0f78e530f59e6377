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

// socket is a packet socket on one link.
type socket struct{ file *os.File }

// open makes a socket that sends whole frames on a link and hears what answers
// the port's kind of question. id is the one of its echo requests.
func open(ns *netns.NS, at port, id uint16) (*socket, error) {
	var s *socket
	err := ns.Do(func() (err error) {
		s, err = openHere(at, id)
		return err
	})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil, &model.UnsupportedError{Feature: "send probes", Remedy: "CAP_NET_RAW would allow it", Err: err}
	}
	return s, err
}

func openHere(at port, id uint16) (*socket, error) {
	// With protocol 0 nothing is heard until the filter is there.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	protocol, filter := uint16(unix.ETH_P_ARP), arpReplies()
	switch {
	case at.kind == model.ProbeEcho && at.six:
		protocol, filter = unix.ETH_P_IPV6, echoReplies6(id)
	case at.kind == model.ProbeEcho:
		protocol, filter = unix.ETH_P_IP, echoReplies(id)
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
	s := &socket{os.NewFile(uintptr(fd), "packet socket")}
	// A link that takes no frames must not hold the sender for good.
	if err := s.file.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		s.close()
		return nil, fmt.Errorf("bound packet socket: %w", err)
	}
	return s, nil
}

func (s *socket) send(frame []byte) error {
	if _, err := s.file.Write(frame); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// close ends a read that is under way.
func (s *socket) close() { s.file.Close() }

// read passes replies on until the socket is closed or broken, or nobody wants
// them any more.
func (s *socket) read(at port, replies chan<- heard, done <-chan struct{}) {
	d := newDecoder()
	frame := make([]byte, 2048)
	for {
		n, err := s.file.Read(frame)
		h := heard{port: at, at: time.Now(), err: err}
		if err == nil {
			var ok bool
			if h.reply, ok = d.decode(frame[:n]); !ok {
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

// Classic BPF for frames with an Ethernet header, so that a busy link does not
// fill the socket. A load beyond the frame's end ends the program with 0: no.
const (
	all = 0xffff

	loadByte  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	loadHalf  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	headerLen = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
	loadByteX = unix.BPF_LD | unix.BPF_B | unix.BPF_IND
	loadHalfX = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
	jumpEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	giveBack  = unix.BPF_RET | unix.BPF_K
)

func arpReplies() []unix.SockFilter {
	return []unix.SockFilter{
		{Code: loadHalf, K: 14 + 6}, // operation
		{Code: jumpEqual, K: 2, Jf: 1},
		{Code: giveBack, K: all},
		{Code: giveBack},
	}
}

func echoReplies(id uint16) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: loadByte, K: 14 + 9}, // protocol
		{Code: jumpEqual, K: unix.IPPROTO_ICMP, Jf: 6},
		{Code: headerLen, K: 14},
		{Code: loadByteX, K: 14}, // type
		{Code: jumpEqual, K: 0, Jf: 3},
		{Code: loadHalfX, K: 14 + 4}, // identifier
		{Code: jumpEqual, K: uint32(id), Jf: 1},
		{Code: giveBack, K: all},
		{Code: giveBack},
	}
}

// echoReplies6 takes replies without extension headers: nobody puts any before
// an answer to a plain echo.
func echoReplies6(id uint16) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: loadByte, K: 14 + 6}, // next header
		{Code: jumpEqual, K: unix.IPPROTO_ICMPV6, Jf: 5},
		{Code: loadByte, K: 14 + 40}, // type
		{Code: jumpEqual, K: 129, Jf: 3},
		{Code: loadHalf, K: 14 + 40 + 4}, // identifier
		{Code: jumpEqual, K: uint32(id), Jf: 1},
		{Code: giveBack, K: all},
		{Code: giveBack},
	}
}
