package model

import (
	"net/netip"
	"slices"
	"time"
)

// Reason is the kernel's name for why it freed a packet, without the SKB_DROP_REASON_ prefix. Empty before Linux 5.17.
type Reason string

// Drop counts the packets of one pair of addresses that the kernel freed in one
// function for one reason. loss.Classifier says whether they were lost.
type Drop struct {
	// At least one of Src and Dst is a local address.
	Src, Dst netip.Addr
	// Range is set instead of the other one for the drops of several addresses in it: those for which the local address
	// had no entry left. The range without bits is that of all others, of any protocol.
	Range  netip.Prefix
	Proto  uint8
	Reason Reason
	// Location is the function that freed the packet.
	Location string `redact:"keep"`
	// IfIndex and Link are the packet's device, 0 when it had none. Netns is the inode of the namespace it was in.
	IfIndex int
	Link    string `redact:"link"`
	Netns   uint32
	// DstMAC is the frame's destination, zero where there was no Ethernet header.
	DstMAC MAC
	// Cilium is what its program left about a drop at a hook of tc or netkit.
	Cilium      CiliumDrop
	Packets     uint64
	First, Last time.Time
}

// Key is what makes drops of two readings the same: the drop without its counts, times and the name of its link.
func (d *Drop) Key() Drop {
	k := *d
	k.Link, k.Packets, k.First, k.Last = "", 0, time.Time{}, time.Time{}
	return k
}

// Far is the prefix of an address of the drop: the address alone or, where that is not known, Range.
func (d *Drop) Far(a netip.Addr) netip.Prefix {
	return Either(a.IsValid() || !d.Range.IsValid(), netip.PrefixFrom(a, a.BitLen()), d.Range)
}

// Between reports whether packets from src to dst may be among those of the drop.
func (d *Drop) Between(src, dst netip.Addr) bool {
	return d.Far(d.Src).Contains(src) && d.Far(d.Dst).Contains(dst)
}

// DropCause is why packets were dropped.
type DropCause struct {
	// Code and Object are those of the finding that claims the drop, as in its Key; without one, Ordinary is why none does.
	Code     Code
	Object   string `redact:"withhold"`
	Ordinary Excuse
}

// Expected reports whether a healthy node frees such packets too.
func (c *DropCause) Expected() bool { return c.Ordinary != "" && !c.Ordinary.Open() }

// FromOrTo reports whether the packet is of one of the addresses.
func (d *Drop) FromOrTo(list []netip.Addr) bool {
	return slices.Contains(list, d.Src) || slices.Contains(list, d.Dst)
}
