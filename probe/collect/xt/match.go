package xt

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

var matches = map[string]decoder{
	"addrtype": addrType, "comment": comment, "connlimit": unsaid(connLimit),
	"connmark":  markOf(func(r *model.PacketRule) *model.MarkMatch { return &r.FlowMark }),
	"conntrack": unsaid(connTrack), "icmp": icmp, "icmp6": icmp, "iprange": unsaid(ipRange), "limit": unsaid(limit),
	"mac": unsaid(mac), "mark": markOf(func(r *model.PacketRule) *model.MarkMatch { return &r.Mark }), "multiport": multiPort, "nfacct": unsaid(nfAcct),
	"owner": unsaid(owner), "physdev": unsaid(physDev), "pkttype": unsaid(pktType), "recent": unsaid(recent),
	"rpfilter": unsaid(rpFilter), "sctp": sctp, "set": unsaid(ipSet), "socket": unsaid(socket),
	"statistic": unsaid(statistic), "tcp": tcp, "udp": udp,
}

func comment(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	r.Comment = unix.ByteSliceToString(i.B)
	return "--comment " + Quote(r.Comment), ""
}

// addrTypes are the names of the types, by bit (the kernel's RTN_*).
var addrTypes = []string{
	"UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST",
	"BLACKHOLE", "UNREACHABLE", "PROHIBIT", "THROW", "NAT", "XRESOLVE",
}

const addrTypeLocal = 1 << 2

func addrType(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	const notSource, notDest, in, out = 1, 2, 4, 8
	source, dest, flags := i.U16(0), i.U16(2), i.U32(4)
	one := func(mask uint16, invert bool, option string, local *int) (text, unsaid string) {
		if mask == 0 {
			return "", ""
		}
		text = Not(invert) + option + " " + BitNames(addrTypes, mask, ",")
		// A rule may have several of these matches, which all apply.
		if mask != addrTypeLocal || *local != 0 {
			return text, text
		}
		*local = model.Either(invert, -1, 1)
		return text, ""
	}
	src, srcUnsaid := one(source, flags&notSource != 0, "--src-type", &r.SrcLocal)
	dst, dstUnsaid := one(dest, flags&notDest != 0, "--dst-type", &r.DstLocal)
	limits := Join(when(flags&in != 0, "--limit-iface-in"), when(flags&out != 0, "--limit-iface-out"))
	return Join(src, dst, limits), Join(srcUnsaid, dstUnsaid, limits)
}

func multiPort(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	const max = 15
	kind, count := i.U8(0), int(i.U8(1))
	if count > max {
		i.Short = true
		return "", ""
	}
	invert := i.U8(47) != 0
	var ranges []model.PortRange
	var names []string
	for n := 0; n < count; n++ {
		p := model.PortRange{First: i.U16(2 + 2*n)}
		p.Last = p.First
		if i.U8(32+n) != 0 && n+1 < count {
			n++
			p.Last = i.U16(2 + 2*n)
		}
		ranges, names = append(ranges, p), append(names, Ports(p))
	}
	option := cmp.Or(map[uint8]string{0: "--sports", 1: "--dports"}[kind], "--ports")
	text := Not(invert) + option + " " + strings.Join(names, ",")
	if invert || kind > 1 {
		return text, text
	}
	return text, restrict(model.Either(kind == 0, &r.SrcPorts, &r.DstPorts), ranges, text)
}

// restrict sets the ports of a rule. If another match has set them already, both
// apply, which a list of ranges cannot express: it returns text, which is unsaid.
func restrict(ports *[]model.PortRange, to []model.PortRange, text string) string {
	if *ports != nil {
		return text
	}
	*ports = to
	return ""
}

// ports decodes one side of the tcp and udp matches.
func ports(dst *[]model.PortRange, i *Bytes, at int, option string, invert bool) (text, unsaid string) {
	p := model.PortRange{First: i.U16(at), Last: i.U16(at + 2)}
	if p.First == 0 && p.Last == 0xffff && !invert {
		return "", ""
	}
	text = Not(invert) + option + " " + Ports(p)
	if invert {
		return text, text
	}
	return text, restrict(dst, []model.PortRange{p}, text)
}

var tcpFlags = []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG"}

// TCPFlags names the flags as iptables does.
func TCPFlags(b uint8) string { return cmp.Or(BitNames(tcpFlags, b, ","), "NONE") }

func tcp(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	option, mask, cmp, invert := i.U8(8), i.U8(9), i.U8(10), i.U8(11)
	text, unsaid := bothPorts(r, i, invert)
	opt := when(option != 0, fmt.Sprintf("%s--tcp-option %d", Not(invert&8 != 0), option))
	flags := when(mask != 0 || invert&4 != 0,
		fmt.Sprintf("%s--tcp-flags %s %s", Not(invert&4 != 0), TCPFlags(mask), TCPFlags(cmp)))
	return Join(text, opt, flags), Join(unsaid, opt, flags)
}

func udp(r *model.PacketRule, _ uint32, i *Bytes) (string, string) { return bothPorts(r, i, i.U8(8)) }

// bothPorts decodes those with which the tcp and udp matches begin.
func bothPorts(r *model.PacketRule, i *Bytes, invert uint8) (text, unsaid string) {
	src, srcUnsaid := ports(&r.SrcPorts, i, 0, "--sport", invert&1 != 0)
	dst, dstUnsaid := ports(&r.DstPorts, i, 4, "--dport", invert&2 != 0)
	return Join(src, dst), Join(srcUnsaid, dstUnsaid)
}

func icmp(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	kind, first, last, invert := i.U8(0), i.U8(1), i.U8(2), i.U8(3)
	option := model.Either(r.Family == "ip6", "--icmpv6-type ", "--icmp-type ")
	value := fmt.Sprint(kind)
	switch {
	case kind == 0xff && r.Family != "ip6":
		value = "any"
	case first == last:
		value += fmt.Sprintf("/%d", first)
	case first != 0 || last != 0xff:
		value += fmt.Sprintf("/%d-%d", first, last)
	}
	text := Not(invert&1 != 0) + option + value
	if value == "any" && invert&1 == 0 {
		return text, ""
	}
	return text, text
}

// markOf decodes a match of the packet's mark, or of its connection's: the structs are the same.
func markOf(field func(*model.PacketRule) *model.MarkMatch) decoder {
	return func(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
		m := model.MarkMatch{Value: i.U32(0), Mask: i.U32(4), Set: true, Not: i.U8(8) != 0}
		text := Not(m.Not) + "--mark " + masked(m.Value, m.Mask)
		if field(r).Set {
			return text, text
		}
		*field(r) = m
		return text, ""
	}
}

func statistic(_ *model.PacketRule, _ uint32, i *Bytes) string {
	invert := Not(i.U16(2)&1 != 0)
	switch i.U16(0) {
	case 0:
		return fmt.Sprintf("--mode random %s--probability %.11f", invert, float64(i.U32(4))/0x80000000)
	case 1:
		// The kernel keeps one less than the option's value.
		return fmt.Sprintf("--mode nth %s--every %d --packet %d", invert, i.U32(4)+1, i.U32(8))
	}
	return Undecoded
}

func limit(_ *model.PacketRule, _ uint32, i *Bytes) string { return LimitText(i.U32(0), i.U32(4)) }

// limitScale is XT_LIMIT_SCALE: periods are in ten-thousandths of a second.
const limitScale = 10000

// LimitText formats a limit of one packet per period, in ten-thousandths of a second.
func LimitText(period, burst uint32) string {
	if period == 0 {
		return Undecoded
	}
	unit, best := "day", uint32(24*60*60*limitScale)
	for _, u := range []struct {
		name  string
		scale uint32
	}{{"hour", 60 * 60 * limitScale}, {"min", 60 * limitScale}, {"sec", limitScale}} {
		if period > u.scale || u.scale/period < u.scale%period {
			break
		}
		unit, best = u.name, u.scale
	}
	return fmt.Sprintf("--limit %d/%s", best/period, unit) + when(burst != 5, fmt.Sprintf(" --limit-burst %d", burst))
}

func mac(_ *model.PacketRule, _ uint32, i *Bytes) string {
	return Not(i.U32(8) != 0) + "--mac-source " + MACText(i.MAC(0))
}

// MACText formats an Ethernet address, the zero address too.
func MACText(m model.MAC) string { return net.HardwareAddr(m[:]).String() }

func ipRange(r *model.PacketRule, _ uint32, i *Bytes) string {
	flags := uint32(i.U8(64))
	o := options{set: flags, invert: flags >> 4}
	o.add(1, fmt.Sprintf("--src-range %s-%s", i.ip(0, r.Family), i.ip(16, r.Family)))
	o.add(2, fmt.Sprintf("--dst-range %s-%s", i.ip(32, r.Family), i.ip(48, r.Family)))
	return o.String()
}

func physDev(_ *model.PacketRule, _ uint32, i *Bytes) string {
	o := options{set: uint32(i.U8(65)), invert: uint32(i.U8(64))}
	o.add(1, "--physdev-in "+Interface(i.Slice(0, 16), i.Slice(16, 16)))
	o.add(8, "--physdev-is-in")
	o.add(2, "--physdev-out "+Interface(i.Slice(32, 16), i.Slice(48, 16)))
	o.add(16, "--physdev-is-out")
	o.add(4, "--physdev-is-bridged")
	return o.String()
}

// Interface formats an interface match from its name and mask. A mask that covers the terminating NUL matches
// that name; a shorter one matches every name with that prefix, which iptables writes as "+".
func Interface(name, mask []byte) string {
	s := unix.ByteSliceToString(name)
	covered := len(mask)
	if i := bytes.IndexByte(mask, 0); i >= 0 {
		covered = i
	}
	switch {
	case s == "" || covered == 0:
		return ""
	case covered > len(s):
		return s
	}
	return s[:covered] + "+"
}

// Host formats a prefix, that of a single address without its length.
func Host(p netip.Prefix) string { return model.Either(p.IsSingleIP(), p.Addr().String(), p.String()) }

// Addr converts an address and its mask to a match, and formats it as iptables
// does. ok is false for a mask that is no prefix, which a match cannot express.
func Addr(a, mask []byte, invert bool) (m model.AddrMatch, text string, ok bool) {
	ip, valid := netip.AddrFromSlice(a)
	if !valid || len(a) != len(mask) {
		return m, "", false
	}
	bits, size := net.IPMask(mask).Size()
	if size == 0 {
		netmask, _ := netip.AddrFromSlice(mask)
		return m, fmt.Sprintf("%s/%s", ip, netmask), false
	}
	m = model.AddrMatch{Prefix: netip.PrefixFrom(ip, bits), Not: invert}
	return m, m.Prefix.String(), true
}
