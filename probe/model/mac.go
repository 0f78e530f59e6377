package model

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
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
func (m MAC) String() string { return Either(m.IsZero(), "", net.HardwareAddr(m[:]).String()) }

// MarshalText implements encoding.TextMarshaler as String.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler as ParseMAC. Empty text is the zero MAC.
func (m *MAC) UnmarshalText(b []byte) (err error) {
	*m = MAC{}
	if len(b) > 0 {
		*m, err = ParseMAC(string(b))
	}
	return err
}

// VirtualRouter reports whether several routers share a MAC in turn: VRRP's for
// IPv4 and IPv6 (RFC 9568), or those of HSRP and GLBP.
func (m MAC) VirtualRouter() bool {
	return slices.ContainsFunc([][]byte{
		{0x00, 0x00, 0x5e, 0x00, 0x01}, {0x00, 0x00, 0x5e, 0x00, 0x02}, {0x00, 0x00, 0x0c, 0x07, 0xac},
		{0x00, 0x00, 0x0c, 0x9f, 0xf0}, {0x00, 0x05, 0x73, 0xa0}, {0x00, 0x07, 0xb4},
	}, func(prefix []byte) bool { return bytes.HasPrefix(m[:], prefix) })
}

// Compare orders addresses.
func (m MAC) Compare(o MAC) int { return slices.Compare(m[:], o[:]) }

// Names reports whether a MAC is made of an address, as bridge plugins make it.
func (m MAC) Names(a netip.Addr) bool { return a.Is4() && slices.Equal(m[2:], a.AsSlice()) }
