package iptables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/sockopt"
	"github.com/lasthop/lasthop/probe/netns"
)

// The kernel's socket option for sets (include/uapi/linux/netfilter/ipset/ip_set.h), and struct
// ip_set_req_get_set: the operation, the protocol's version, and the number of a set, or its name in the answer.
const (
	soIPSet       = 83
	opByIndex     = 7
	ipsetProtocol = 6
	setRequestLen = 8 + setNameLen
	setNameLen    = 32
)

// sets are the names of the namespace's sets by number, which is all that rules hold of them.
type sets struct {
	fd    int
	names map[uint16]string
}

func openSets(ns *netns.NS) (s *sets, err error) {
	s = &sets{names: map[uint16]string{}}
	err = ns.Do(func() error {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	return s, err
}

func (s *sets) close() error { return unix.Close(s.fd) }

// still reports whether sets have the names that they had.
func (s *sets) still(names map[uint16]string) bool {
	for number, name := range names {
		if s.name(number) != name {
			return false
		}
	}
	return true
}

// noting is name for rules whose sets' names are noted.
func (s *sets) noting(names map[uint16]string) func(uint16) string {
	return func(number uint16) string {
		names[number] = s.name(number)
		return names[number]
	}
}

// name is a set's name, empty if the kernel does not tell it. Where no set was ever made
// the kernel does not know the option, and loads no module for it.
func (s *sets) name(number uint16) string {
	name, ok := s.names[number]
	if ok {
		return name
	}
	b := make([]byte, setRequestLen)
	binary.NativeEndian.PutUint32(b, opByIndex)
	binary.NativeEndian.PutUint32(b[4:], ipsetProtocol)
	binary.NativeEndian.PutUint16(b[8:], number)
	if sockopt.Get(s.fd, unix.SOL_IP, soIPSet, b) == nil {
		name = unix.ByteSliceToString(b[8:])
	}
	s.names[number] = name
	return name
}
