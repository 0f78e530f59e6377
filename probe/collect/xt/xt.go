// Package xt decodes the matches and targets of iptables from the structs that the kernel keeps of them (struct
// xt_*_info). They are the same bytes in legacy tables and in nftables (nft_compat). It reads nothing itself.
//
// Each decoder sets what model.PacketRule can express and returns the option as `iptables -S` prints it, which
// `iptables -D` takes. A match that the rule cannot express, or whose bytes are too short or unknown, is named in
// PacketRule.Unknown. Numbers are in host byte order unless they come from a packet.
package xt

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// Bytes is a struct of the kernel. A read past the end returns zeros and sets Short, so that a decoder checks once.
type Bytes struct {
	B       []byte
	Short   bool
	setName func(uint16) string
}

// Slice returns the n bytes at an offset.
func (i *Bytes) Slice(at, n int) []byte {
	if at+n > len(i.B) {
		i.Short = true
		return make([]byte, n)
	}
	return i.B[at : at+n : at+n]
}

// U8 decodes a byte.
func (i *Bytes) U8(at int) uint8 { return i.Slice(at, 1)[0] }

// U16 decodes a number in host byte order.
func (i *Bytes) U16(at int) uint16 { return binary.NativeEndian.Uint16(i.Slice(at, 2)) }

// U32 decodes a number in host byte order.
func (i *Bytes) U32(at int) uint32 { return binary.NativeEndian.Uint32(i.Slice(at, 4)) }

// U64 decodes a number in host byte order.
func (i *Bytes) U64(at int) uint64 { return binary.NativeEndian.Uint64(i.Slice(at, 8)) }

// BE16 decodes a number in network byte order.
func (i *Bytes) BE16(at int) uint16 { return binary.BigEndian.Uint16(i.Slice(at, 2)) }

// MAC decodes an Ethernet address.
func (i *Bytes) MAC(at int) model.MAC { return model.MACFrom(i.Slice(at, 6)) }

// Text decodes text of n bytes at most, which ends at the first NUL.
func (i *Bytes) Text(at, n int) string { return unix.ByteSliceToString(i.Slice(at, n)) }

func (i *Bytes) v4(at int) netip.Addr { return netip.AddrFrom4([4]byte(i.Slice(at, 4))) }
func (i *Bytes) v6(at int) netip.Addr { return netip.AddrFrom16([16]byte(i.Slice(at, 16))) }
func (i *Bytes) ip(at int, family string) netip.Addr {
	if family == "ip6" {
		return i.v6(at)
	}
	return i.v4(at)
}

// Extension is a match or target as the kernel keeps it.
type Extension struct {
	Name string
	Rev  uint32
	Info []byte
	// SetName is the name of the ipset with a number, empty if it is not known. It may be nil.
	SetName func(uint16) string
}

// decoder decodes one extension of rule r. It returns the option's text, and as unsaid the part of it that
// restricts the rule and that r's fields cannot express.
type decoder func(r *model.PacketRule, rev uint32, i *Bytes) (text, unsaid string)

// Undecoded is the text of an extension that has no decoder, or whose bytes are too short.
const Undecoded = "[options not decoded]"

// oldest are the least revisions that are decoded, 0 for others: iptables has written later ones alone since 1.6, on kernels
// that have them.
var oldest = map[string]uint32{
	"addrtype": 1, "connlimit": 1, "conntrack": 3, "owner": 1, "recent": 1, "set": 1, "socket": 1,
	"CONNMARK": 1, "MARK": 2, "NFQUEUE": 2, "TPROXY": 1,
}

// Match decodes a match into the rule and returns its text.
func Match(r *model.PacketRule, e Extension) string {
	text, unsaid := Undecoded, Undecoded
	if decode := matches[e.Name]; decode != nil && e.Rev >= oldest[e.Name] {
		i := Bytes{B: e.Info, setName: e.SetName}
		text, unsaid = decode(r, e.Rev, &i)
		if i.Short {
			text, unsaid = Undecoded, Undecoded
		}
	}
	name := e.Name
	if strings.HasPrefix(strings.TrimPrefix(text, "! "), "--state ") {
		name = "state" // the older name of the same match
	}
	if unsaid != "" {
		r.Unknown = append(r.Unknown, strings.TrimSpace(name+" "+unsaid))
	}
	return strings.TrimSpace("-m " + name + " " + text)
}

// Target decodes a target into the rule and returns its text.
func Target(r *model.PacketRule, e Extension) string {
	r.Target = e.Name
	decode := targets[e.Name]
	if decode == nil || e.Rev < oldest[e.Name] {
		return "-j " + e.Name + " " + Undecoded
	}
	i := Bytes{B: e.Info}
	text, _ := decode(r, e.Rev, &i)
	if i.Short {
		r.To, text = netip.AddrPort{}, Undecoded
	}
	return strings.TrimSpace("-j " + r.Target + " " + text)
}

// Join joins the parts that are not empty by spaces.
func Join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(parts), func(p string) bool { return p == "" }), " ")
}

// Not is the negation in front of an option, or empty.
func Not(invert bool) string { return when(invert, "! ") }

// Name returns the name of n, or n as a number if it has none.
func Name[K comparable](names map[K]string, n K) string {
	if s, ok := names[n]; ok {
		return s
	}
	return fmt.Sprint(n)
}

var protocols = map[uint8]string{
	model.ICMP: "icmp", 2: "igmp", model.TCP: "tcp", model.UDP: "udp", 33: "dccp", 47: "gre",
	50: "esp", 51: "ah", model.ICMPv6: "ipv6-icmp", 132: "sctp", 135: "ipv6-mh", 136: "udplite",
}

// Protocol is what iptables and ebtables call an IP protocol.
func Protocol(n uint8) string { return Name(protocols, n) }

// BitNames lists the names of the bits that are set. Where it is empty the bit has none.
func BitNames[N uint8 | uint16 | uint32](names []string, bits N, separator string) string {
	var out []string
	for bit, name := range names {
		if bits&(1<<bit) != 0 && name != "" {
			out = append(out, name)
		}
	}
	return strings.Join(out, separator)
}

// options are those of a match that has a bit for each that is given, and one for each that is negated.
type options struct {
	set, invert uint32
	text        []string
}

func (o *options) add(bit uint32, text string) {
	if o.set&bit != 0 {
		o.text = append(o.text, Not(o.invert&bit != 0)+text)
	}
}

func (o *options) String() string { return strings.Join(o.text, " ") }

func flags[N uint8 | uint16](bits N, options ...string) string { return BitNames(options, bits, " ") }

func when(cond bool, text string) string { return model.Either(cond, text, "") }

var escaped = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\'`)

// Quote quotes text as iptables does, if it needs quotes.
func Quote(s string) string {
	return model.Either(!strings.ContainsAny(s, " \t\n\"\\'") && s != "", s, `"`+escaped.Replace(s)+`"`)
}

// Ports formats a range of ports as iptables prints it.
func Ports(r model.PortRange) string {
	return model.Either(r.First == r.Last, fmt.Sprint(r.First), fmt.Sprintf("%d:%d", r.First, r.Last))
}

// masked formats a number with its mask, without a mask of all ones.
func masked(value, mask uint32) string {
	return model.Either(mask == 0xffffffff, fmt.Sprintf("0x%x", value), fmt.Sprintf("0x%x/0x%x", value, mask))
}
