package model

import (
	"fmt"
	"net"
)

// MAC is an Ethernet address. The zero value means unknown.
type MAC [6]byte

// Broadcast is the Ethernet broadcast address.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// MACFrom returns the address in b, the zero MAC unless b has 6 bytes: there may
// be no link-layer address, or an InfiniBand one.
func MACFrom(b []byte) MAC {
	var m MAC
	if len(b) == len(m) {
		copy(m[:], b)
	}
	return m
}

// ParseMAC parses an Ethernet address in any form that net.ParseMAC accepts.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, err
	}
	if len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("parse MAC %q: want 6 bytes, got %d", s, len(hw))
	}
	return MACFrom(hw), nil
}

// IsZero reports whether the address is unknown.
func (m MAC) IsZero() bool { return m == MAC{} }

// IsMulticast reports whether the group bit is set: multicast or broadcast.
func (m MAC) IsMulticast() bool { return m[0]&1 != 0 }

// String returns the address in lower case with colons, empty if unknown.
func (m MAC) String() string {
	if m.IsZero() {
		return ""
	}
	return net.HardwareAddr(m[:]).String()
}

// MarshalText implements encoding.TextMarshaler as String.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler as ParseMAC. Empty text is the
// zero MAC.
func (m *MAC) UnmarshalText(b []byte) (err error) {
	*m = MAC{}
	if len(b) > 0 {
		*m, err = ParseMAC(string(b))
	}
	return err
}
