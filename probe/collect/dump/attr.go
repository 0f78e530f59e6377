package dump

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// Attrs iterates over the netlink attributes of a message. It never reads outside its bytes: a truncated or
// overlong attribute ends the iteration with an error.
//
//	a := dump.Parse(b)
//	for a.Next() {
//		switch a.Type {
//		case unix.IFLA_MTU:
//			mtu = a.Uint32()
//		}
//	}
//	return a.Err()
type Attrs struct {
	// Type and Data are those of the current attribute. Type has the bits NLA_F_NESTED and NLA_F_NET_BYTEORDER cleared.
	Type uint16
	Data []byte

	rest []byte
	err  error
}

// Parse returns an iterator over the attributes in b.
func Parse(b []byte) Attrs { return Attrs{rest: b} }

// ParseAfter is Parse for a message that starts with a fixed header of n bytes. A shorter message is an error;
// callers that read the header check Err before they do.
func ParseAfter(b []byte, n int) Attrs {
	if len(b) < n {
		return Attrs{err: fmt.Errorf("netlink message: %d bytes, want a header of %d", len(b), n)}
	}
	return Attrs{rest: b[n:]}
}

// Next advances to the next attribute and reports whether there is one.
func (a *Attrs) Next() bool {
	if a.err != nil || len(a.rest) == 0 {
		return false
	}
	if len(a.rest) < unix.SizeofNlAttr {
		a.err = fmt.Errorf("netlink attribute: %d bytes left, want a header of %d", len(a.rest), unix.SizeofNlAttr)
		return false
	}
	n := int(binary.NativeEndian.Uint16(a.rest))
	if n < unix.SizeofNlAttr || n > len(a.rest) {
		a.err = fmt.Errorf("netlink attribute: length %d of %d bytes left", n, len(a.rest))
		return false
	}
	a.Type = binary.NativeEndian.Uint16(a.rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	a.Data = a.rest[unix.SizeofNlAttr:n:n]
	next := (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1)
	a.rest = a.rest[min(next, len(a.rest)):]
	return true
}

// Err returns the error that ended the iteration early, or nil.
func (a *Attrs) Err() error { return a.err }

// Fail ends the iteration with err. It does nothing if err is nil or the iteration has failed already.
func (a *Attrs) Fail(err error) {
	if a.err == nil && err != nil {
		a.err = err
	}
}

// bytes returns the attribute's bytes if there are n of them at least. Else it fails the iteration and returns zeros.
func (a *Attrs) bytes(n int) []byte {
	if len(a.Data) < n {
		a.Fail(fmt.Errorf("netlink attribute %d: %d bytes, want %d", a.Type, len(a.Data), n))
		return make([]byte, n)
	}
	return a.Data
}

// Uint8 decodes a byte.
func (a *Attrs) Uint8() uint8 { return a.bytes(1)[0] }

// Uint16 decodes a number in host byte order, which rtnetlink uses.
func (a *Attrs) Uint16() uint16 { return binary.NativeEndian.Uint16(a.bytes(2)) }

// Uint32 decodes a number in host byte order, which rtnetlink uses.
func (a *Attrs) Uint32() uint32 { return binary.NativeEndian.Uint32(a.bytes(4)) }

// BE16 decodes a number in network byte order, which nfnetlink uses.
func (a *Attrs) BE16() uint16 { return binary.BigEndian.Uint16(a.bytes(2)) }

// BE32 decodes a number in network byte order, which nfnetlink uses.
func (a *Attrs) BE32() uint32 { return binary.BigEndian.Uint32(a.bytes(4)) }

// BE64 decodes a number in network byte order, which nfnetlink uses.
func (a *Attrs) BE64() uint64 { return binary.BigEndian.Uint64(a.bytes(8)) }

// String decodes text, which ends at the first NUL if there is one.
func (a *Attrs) String() string { return unix.ByteSliceToString(a.Data) }

// Nested returns an iterator over the attributes nested in the current one. The caller passes its Err to Fail.
func (a *Attrs) Nested() Attrs { return Parse(a.Data) }

// Fields are where attributes go, by their types: text to a *string, bytes to a *[]byte, a
// number that is not zero to a *bool, numbers to pointers to such (*int takes 32 bits with a
// sign), addresses to pointers to such, zero for what is none, nested attributes to Fields,
// and anything to a func(*Attrs).
type Fields map[uint16]any

// Others are the attributes that Fields have nothing else for.
const Others = 1<<16 - 1

// Unsigned takes a number of 32 bits without a sign.
func Unsigned(to *int) func(*Attrs) { return func(a *Attrs) { *to = int(a.Uint32()) } }

// Decode decodes the attributes that fields name, numbers in the given order.
func (a Attrs) Decode(order binary.ByteOrder, fields Fields) error {
	a.decode(order, fields)
	return a.err
}

func (a *Attrs) decode(order binary.ByteOrder, fields Fields) {
	for a.Next() {
		to, known := fields[a.Type]
		if !known {
			to = fields[Others]
		}
		switch to := to.(type) {
		case nil:
		case *string:
			*to = a.String()
		case *[]byte:
			*to = a.Data
		case *bool:
			*to = slices.ContainsFunc(a.bytes(1), func(b byte) bool { return b != 0 })
		case *uint8:
			*to = a.Uint8()
		case *uint16:
			*to = order.Uint16(a.bytes(2))
		case *uint32:
			*to = order.Uint32(a.bytes(4))
		case *int32:
			*to = int32(order.Uint32(a.bytes(4)))
		case *int:
			*to = int(int32(order.Uint32(a.bytes(4))))
		case *uint64:
			*to = order.Uint64(a.bytes(8))
		case *netip.Addr:
			ip, _ := netip.AddrFromSlice(a.Data)
			*to = ip.Unmap()
		case *model.MAC:
			*to = model.MACFrom(a.Data)
		case Fields:
			rest := a.rest
			a.rest = a.Data
			a.decode(order, to)
			a.rest = rest
		case func(*Attrs):
			to(a)
		default:
			a.Fail(fmt.Errorf("netlink attribute %d: no value of %T", a.Type, to))
		}
	}
}

// Append appends an attribute and its padding to b.
func Append(b []byte, typ uint16, data []byte) []byte {
	return append(b, nl.NewRtAttr(int(typ), data).Serialize()...)
}
