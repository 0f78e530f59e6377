// Package xt decodes the matches and targets of iptables from the bytes that
// the kernel keeps of them (struct xt_*_info), the same in legacy tables and
// in nft's.
//
// Each decoder fills in what model.PacketRule can say, and returns the option
// as `iptables -S` prints it, so that it can be given to `iptables -D`. Numbers
// are in the machine's byte order unless they come from a packet.
package xt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// info is an extension's bytes. Reading past the end gives zeros and sets
// short, so that a decoder checks once.
type info struct {
	b     []byte
	short bool
}

func (i *info) bytes(at, n int) []byte {
	if at+n > len(i.b) {
		i.short = true
		return make([]byte, n)
	}
	return i.b[at : at+n : at+n]
}

func (i *info) u8(at int) uint8       { return i.bytes(at, 1)[0] }
func (i *info) u16(at int) uint16     { return binary.NativeEndian.Uint16(i.bytes(at, 2)) }
func (i *info) u32(at int) uint32     { return binary.NativeEndian.Uint32(i.bytes(at, 4)) }
func (i *info) be16(at int) uint16    { return binary.BigEndian.Uint16(i.bytes(at, 2)) }
func (i *info) text(at, n int) string { return cut(i.bytes(at, n)) }
func (i *info) v4(at int) netip.Addr  { return netip.AddrFrom4([4]byte(i.bytes(at, 4))) }
func (i *info) v6(at int) netip.Addr  { return netip.AddrFrom16([16]byte(i.bytes(at, 16))) }
func (i *info) ip(at int, family string) netip.Addr {
	if family == "ip6" {
		return i.v6(at)
	}
	return i.v4(at)
}

func cut(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// Extension is a match or target as the kernel has it.
type Extension struct {
	Name string
	Rev  uint32
	Info []byte
}

// decoder decodes one extension for rule r. It returns the option's text, and
// the part of it that r's fields cannot say; that part restricts the rule.
type decoder func(r *model.PacketRule, rev uint32, i *info) (text, unsaid string)

// undecoded is the text of an extension whose options are not known.
const undecoded = "[options not decoded]"

// Match decodes a match into the rule and returns its text. What the rule's
// fields cannot express is named in r.Unknown.
func Match(r *model.PacketRule, e Extension) string {
	text, unsaid := undecoded, undecoded
	if decode := matches[e.Name]; decode != nil {
		i := info{b: e.Info}
		text, unsaid = decode(r, e.Rev, &i)
		if i.short {
			text, unsaid = undecoded, undecoded
		}
	}
	name := e.Name
	if strings.HasPrefix(text, "--state ") || strings.HasPrefix(text, "! --state ") {
		// The older name of the same match, as it was given.
		name = "state"
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
	if decode == nil {
		return "-j " + e.Name + " " + undecoded
	}
	i := info{b: e.Info}
	text, _ := decode(r, e.Rev, &i)
	if i.short {
		r.To = netip.AddrPort{}
		text = undecoded
	}
	return strings.TrimSpace("-j " + r.Target + " " + text)
}

// options joins what is not empty.
func options(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, " ")
}

// not is the negation in front of an option.
func not(invert bool) string {
	if invert {
		return "! "
	}
	return ""
}

func when(cond bool, text string) string {
	if cond {
		return text
	}
	return ""
}

// Quote quotes text as iptables does, where it needs it.
func Quote(s string) string {
	if !strings.ContainsAny(s, " \t\n\"\\'") && s != "" {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\'`).Replace(s) + `"`
}

// Ports is a range of ports as iptables prints it.
func Ports(r model.PortRange) string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d:%d", r.First, r.Last)
}

// masked is a number with its mask, the mask left out when it is whole.
func masked(value, mask uint32) string {
	if mask == 0xffffffff {
		return fmt.Sprintf("0x%x", value)
	}
	return fmt.Sprintf("0x%x/0x%x", value, mask)
}
