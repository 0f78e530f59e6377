package dump

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Attrs steps through the netlink attributes of a message. It never reads
// outside its bytes; what is cut short or overlong ends the walk with an
// error.
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
	// Type and Data are the current attribute's, flags removed.
	Type uint16
	Data []byte

	rest []byte
	err  error
}

// Parse starts a walk over b.
func Parse(b []byte) Attrs { return Attrs{rest: b} }

// ParseAfter starts a walk behind a fixed header of n bytes.
func ParseAfter(b []byte, n int) Attrs {
	if len(b) < n {
		return Attrs{err: fmt.Errorf("netlink message: %d bytes, want a header of %d", len(b), n)}
	}
	return Attrs{rest: b[n:]}
}

// Next goes to the next attribute and reports whether there is one.
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

// Err is what ended the walk early.
func (a *Attrs) Err() error { return a.err }

// Fail ends the walk with the error, unless it is nil or an earlier one stands.
func (a *Attrs) Fail(err error) {
	if a.err == nil && err != nil {
		a.err = err
	}
}

// bytes returns the first n bytes, or zeros and an error.
func (a *Attrs) bytes(n int) []byte {
	if len(a.Data) < n {
		a.Fail(fmt.Errorf("netlink attribute %d: %d bytes, want %d", a.Type, len(a.Data), n))
		return make([]byte, n)
	}
	return a.Data
}

// Uint8 reads a byte.
func (a *Attrs) Uint8() uint8 { return a.bytes(1)[0] }

// Uint32 reads a number in the host's byte order, as rtnetlink has them.
func (a *Attrs) Uint32() uint32 { return binary.NativeEndian.Uint32(a.bytes(4)) }

// BE16 reads a number in network byte order, as nfnetlink has them.
func (a *Attrs) BE16() uint16 { return binary.BigEndian.Uint16(a.bytes(2)) }

// BE32 reads a number in network byte order, as nfnetlink has them.
func (a *Attrs) BE32() uint32 { return binary.BigEndian.Uint32(a.bytes(4)) }

// BE64 reads a number in network byte order, as nfnetlink has them.
func (a *Attrs) BE64() uint64 { return binary.BigEndian.Uint64(a.bytes(8)) }

// String reads text up to its end or the first NUL.
func (a *Attrs) String() string {
	s, _, _ := bytes.Cut(a.Data, []byte{0})
	return string(s)
}

// Nested starts a walk over the attributes within.
func (a *Attrs) Nested() Attrs { return Parse(a.Data) }

// Append appends an attribute to a message under construction.
func Append(b []byte, typ uint16, data []byte) []byte {
	n := unix.SizeofNlAttr + len(data)
	b = binary.NativeEndian.AppendUint16(b, uint16(n))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}
