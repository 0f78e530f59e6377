package ebtables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/xt"
	"github.com/lasthop/lasthop/probe/model"
)

// payload is the kernel's struct of a match, target or watcher. The same bytes
// stand in nft's tables and in legacy ones. Reading past the end gives zeros
// and sets short.
type payload struct {
	b     []byte
	short bool
}

func (p *payload) bytes(at, n int) []byte {
	if at+n > len(p.b) {
		p.short = true
		return make([]byte, n)
	}
	return p.b[at : at+n : at+n]
}

func (p *payload) u8(at int) uint8      { return p.bytes(at, 1)[0] }
func (p *payload) u16(at int) uint16    { return binary.NativeEndian.Uint16(p.bytes(at, 2)) }
func (p *payload) u32(at int) uint32    { return binary.NativeEndian.Uint32(p.bytes(at, 4)) }
func (p *payload) u64(at int) uint64    { return binary.NativeEndian.Uint64(p.bytes(at, 8)) }
func (p *payload) be16(at int) uint16   { return binary.BigEndian.Uint16(p.bytes(at, 2)) }
func (p *payload) mac(at int) model.MAC { return model.MACFrom(p.bytes(at, 6)) }

// undecoded stands where the bytes could not be told.
const undecoded = "[options not decoded]"

// extension decodes a match or watcher into the rule and returns its text.
func (b *builder) extension(name string, info []byte) {
	p := payload{b: info}
	text := undecoded
	known, unsaid := true, ""
	switch name {
	case "ip":
		text, unsaid = b.ip(&p)
	case "ip6":
		text, unsaid = b.ip6(&p)
	case "arp":
		text, unsaid = b.arp(&p)
	case "vlan":
		text = vlan(&p)
		unsaid = text
	case "mark_m", "mark":
		text = markMatch(&p)
		unsaid = text
	case "pkttype":
		text = packetType(&p)
		unsaid = text
	case "802_3":
		text = llc(&p)
		unsaid = text
	case "stp":
		text = stp(&p)
		unsaid = text
	case "limit":
		text = xt.LimitText(p.u32(0), p.u32(4))
		unsaid = text
	case "log":
		// A watcher restricts nothing.
		text = logWatcher(&p)
	default:
		known = false
	}
	if !known || p.short {
		text = name + " " + undecoded
		unsaid = text
	}
	if unsaid != "" {
		b.Unknown = append(b.Unknown, unsaid)
	}
	b.options = append(b.options, text)
}

// Verdicts of ebtables targets, in the low four bits of a negative number.
const verdictBits = 0x0f

var verdicts = map[int32]model.FrameTarget{
	-1: model.TargetAccept, -2: model.TargetDrop, -3: model.TargetContinue, -4: model.TargetReturn,
}

// verdict is what follows a target. The bits above the lowest four belong to
// the target itself.
func verdict(n int32) model.FrameTarget {
	if v, ok := verdicts[n|^verdictBits]; ok {
		return v
	}
	return model.TargetOther
}

// targetExtension decodes a target.
func (b *builder) targetExtension(name string, info []byte) {
	p := payload{b: info}
	b.TargetName = name
	text := ""
	switch name {
	case "dnat":
		b.Target, b.MAC, b.Verdict = model.TargetDNAT, p.mac(0), verdict(int32(p.u32(8)))
		text = fmt.Sprintf("--to-dst %s --dnat-target %s", xt.MACText(b.MAC), b.Verdict)
	case "snat":
		// The bit is cleared where ARP headers are rewritten too.
		const noARP = 0x10
		v := int32(p.u32(8))
		b.Target, b.MAC, b.Verdict = model.TargetSNAT, p.mac(0), verdict(v)
		text = "--to-src " + xt.MACText(b.MAC)
		if v&noARP == 0 {
			text += " --snat-arp"
		}
		text += " --snat-target " + string(b.Verdict)
	case "arpreply":
		b.Target, b.MAC, b.Verdict = model.TargetARPReply, p.mac(0), verdict(int32(p.u32(8)))
		text = "--arpreply-mac " + xt.MACText(b.MAC)
		if b.Verdict != model.TargetDrop {
			text += " --arpreply-target " + string(b.Verdict)
		}
	case "redirect":
		b.Target, b.Verdict = model.TargetRedirect, verdict(int32(p.u32(0)))
		text = "--redirect-target " + string(b.Verdict)
	case "mark":
		b.Target = model.TargetOther
		text = b.markTarget(&p)
	default:
		b.Target, text = model.TargetOther, undecoded
	}
	if p.short {
		b.Target, b.MAC, b.Verdict, text = model.TargetOther, model.MAC{}, "", undecoded
	}
	b.target = "-j " + name + " " + text
}

func (b *builder) markTarget(p *payload) string {
	v := int32(p.u32(8))
	b.Verdict = verdict(v)
	action := map[int32]string{-16: "set", -32: "or", -48: "and", -64: "xor"}[v&^verdictBits]
	if action == "" {
		return undecoded
	}
	return fmt.Sprintf("--mark-%s 0x%x --mark-target %s", action, p.u64(0), b.Verdict)
}

// options writes the options of one match.
type options struct {
	// mask has a bit for each option that is given, invert one for each
	// that is negated.
	mask, invert uint16
	parts        []string
}

// add writes "--name [! ]value" when the bit of mask is set, and reports that.
func (o *options) add(bit uint16, name, value string) bool {
	if o.mask&bit == 0 {
		return false
	}
	o.parts = append(o.parts, "--"+name+" "+not(o.invert&bit != 0)+value)
	return true
}

func (o *options) not(bit uint16) bool { return o.invert&bit != 0 }
func (o *options) last() string        { return o.parts[len(o.parts)-1] }
func (o *options) String() string      { return strings.Join(o.parts, " ") }

// address sets a field from an address and mask under an option's bit. It
// returns the option when the field cannot say it.
func (o *options) address(bit uint16, name string, addr, mask []byte, field *model.AddrMatch) (unsaid string) {
	m, text, ok := xt.Addr(addr, mask, o.not(bit))
	if ok {
		text = host(m.Prefix)
	}
	if !o.add(bit, name, text) {
		return ""
	}
	if !ok || !field.IsZero() {
		return o.last()
	}
	*field = m
	return ""
}

func host(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// Bits of struct ebt_ip_info and ebt_ip6_info.
const (
	ipSource  = 0x01
	ipDest    = 0x02
	ipTOS     = 0x04
	ipProto   = 0x08
	ipSrcPort = 0x10
	ipDstPort = 0x20
	ipICMP    = 0x40
	ipIGMP    = 0x80
)

func (b *builder) ip(p *payload) (text, unsaid string) {
	o := options{mask: uint16(p.u8(18)), invert: uint16(p.u8(19))}
	var rest []string
	rest = append(rest, o.address(ipSource, "ip-src", p.bytes(0, 4), p.bytes(8, 4), &b.IPSrc))
	rest = append(rest, o.address(ipDest, "ip-dst", p.bytes(4, 4), p.bytes(12, 4), &b.IPDst))
	said := len(o.parts)
	o.add(ipTOS, "ip-tos", fmt.Sprintf("0x%02X", p.u8(16)))
	o.add(ipProto, "ip-proto", protoName(p.u8(17)))
	o.add(ipICMP, "ip-icmp-type", icmpRange(append(p.bytes(20, 2), p.bytes(24, 2)...)))
	o.add(ipIGMP, "ip-igmp-type", byteRange(p.bytes(20, 2)))
	o.add(ipSrcPort, "ip-sport", portRange(p.u16(20), p.u16(22)))
	o.add(ipDstPort, "ip-dport", portRange(p.u16(24), p.u16(26)))
	return o.String(), join(append(rest, o.parts[said:]...))
}

func (b *builder) ip6(p *payload) (text, unsaid string) {
	o := options{mask: uint16(p.u8(66)), invert: uint16(p.u8(67))}
	var rest []string
	rest = append(rest, o.address(ipSource, "ip6-src", p.bytes(0, 16), p.bytes(32, 16), &b.IPSrc))
	rest = append(rest, o.address(ipDest, "ip6-dst", p.bytes(16, 16), p.bytes(48, 16), &b.IPDst))
	said := len(o.parts)
	o.add(ipTOS, "ip6-tclass", fmt.Sprintf("0x%02X", p.u8(64)))
	o.add(ipProto, "ip6-proto", protoName(p.u8(65)))
	o.add(ipSrcPort, "ip6-sport", portRange(p.u16(68), p.u16(70)))
	o.add(ipDstPort, "ip6-dport", portRange(p.u16(72), p.u16(74)))
	o.add(ipICMP, "ip6-icmp-type", icmpRange(append(p.bytes(68, 2), p.bytes(72, 2)...)))
	return o.String(), join(append(rest, o.parts[said:]...))
}

// Bits of struct ebt_arp_info.
const (
	arpOpcode     = 0x01
	arpHType      = 0x02
	arpPType      = 0x04
	arpSource     = 0x08
	arpDest       = 0x10
	arpSourceMAC  = 0x20
	arpDestMAC    = 0x40
	arpGratuitous = 0x80
)

var arpOps = []string{
	"", "Request", "Reply", "Request_Reverse", "Reply_Reverse", "DRARP_Request",
	"DRARP_Reply", "DRARP_Error", "InARP_Request", "ARP_NAK",
}

func arpOpName(op uint16) string {
	if op > 0 && int(op) < len(arpOps) {
		return arpOps[op]
	}
	return fmt.Sprint(op)
}

func (b *builder) arp(p *payload) (text, unsaid string) {
	o := options{mask: uint16(p.u8(48)), invert: uint16(p.u8(49))}
	var rest []string
	op := p.be16(4)
	if o.add(arpOpcode, "arp-op", arpOpName(op)) {
		b.ARPOp, b.ARPOpNot = op, o.not(arpOpcode)
	}
	said := len(o.parts)
	o.add(arpHType, "arp-htype", fmt.Sprint(p.be16(0)))
	o.add(arpPType, "arp-ptype", fmt.Sprintf("0x%x", p.be16(2)))
	rest = append(rest, o.parts[said:]...)
	rest = append(rest, o.address(arpSource, "arp-ip-src", p.bytes(8, 4), p.bytes(12, 4), &b.ARPSrc))
	rest = append(rest, o.address(arpDest, "arp-ip-dst", p.bytes(16, 4), p.bytes(20, 4), &b.ARPDst))
	said = len(o.parts)
	o.add(arpSourceMAC, "arp-mac-src", macText(p.mac(24), p.mac(30)))
	o.add(arpDestMAC, "arp-mac-dst", macText(p.mac(36), p.mac(42)))
	if o.mask&arpGratuitous != 0 {
		o.parts = append(o.parts, not(o.not(arpGratuitous))+"--arp-gratuitous")
	}
	return o.String(), join(append(rest, o.parts[said:]...))
}

func vlan(p *payload) string {
	o := options{mask: uint16(p.u8(6)), invert: uint16(p.u8(7))}
	o.add(1, "vlan-id", fmt.Sprint(p.u16(0)))
	o.add(2, "vlan-prio", fmt.Sprint(p.u8(2)))
	o.add(4, "vlan-encap", fmt.Sprintf("%4.4X", p.be16(4)))
	return o.String()
}

func markMatch(p *payload) string {
	const or = 2
	mark, mask := p.u64(0), p.u64(8)
	value := fmt.Sprintf("0x%x", mark)
	switch {
	case p.u8(17) == or:
		value = fmt.Sprintf("/0x%x", mask)
	case mask != ^uint64(0) && mask != 0xffffffff:
		value += fmt.Sprintf("/0x%x", mask)
	}
	return "--mark " + not(p.u8(16) != 0) + value
}

var packetTypes = []string{"host", "broadcast", "multicast", "otherhost", "outgoing", "loopback", "fastroute"}

func packetType(p *payload) string {
	n := p.u8(0)
	name := fmt.Sprint(n)
	if int(n) < len(packetTypes) {
		name = packetTypes[n]
	}
	return "--pkttype-type " + not(p.u8(1) != 0) + name
}

func llc(p *payload) string {
	o := options{mask: uint16(p.u8(4)), invert: uint16(p.u8(5))}
	o.add(1, "802_3-sap", fmt.Sprintf("0x%.2X", p.u8(0)))
	o.add(2, "802_3-type", fmt.Sprintf("0x%.4X", p.be16(2)))
	return o.String()
}

func stp(p *payload) string {
	o := options{mask: p.u16(68), invert: p.u16(70)}
	numbers := func(at int) string { return portRange(p.u16(at), p.u16(at+2)) }
	kind := p.u8(0)
	o.add(0x001, "stp-type", map[uint8]string{0: "config", 0x80: "tcn"}[kind]+map[bool]string{true: fmt.Sprint(kind)}[kind != 0 && kind != 0x80])
	flags := p.u8(4)
	o.add(0x002, "stp-flags", map[uint8]string{1: "topology-change", 0x80: "topology-change-ack"}[flags]+map[bool]string{true: fmt.Sprint(flags)}[flags != 1 && flags != 0x80])
	o.add(0x004, "stp-root-prio", numbers(6))
	o.add(0x008, "stp-root-addr", macText(p.mac(10), p.mac(16)))
	cost := fmt.Sprint(p.u32(24))
	if p.u32(28) != p.u32(24) {
		cost += fmt.Sprintf(":%d", p.u32(28))
	}
	o.add(0x010, "stp-root-cost", cost)
	o.add(0x020, "stp-sender-prio", numbers(32))
	o.add(0x040, "stp-sender-addr", macText(p.mac(36), p.mac(42)))
	for i, name := range []string{"stp-port", "stp-msg-age", "stp-max-age", "stp-hello-time", "stp-forward-delay"} {
		o.add(0x080<<i, name, numbers(48+4*i))
	}
	return o.String()
}

var logLevels = []string{"emerg", "alert", "crit", "error", "warning", "notice", "info", "debug"}

func logWatcher(p *payload) string {
	level, prefix, flags := p.u8(0), p.bytes(1, 30), p.u32(32)
	name := fmt.Sprint(level)
	if int(level) < len(logLevels) {
		name = logLevels[level]
	}
	s, _, _ := strings.Cut(string(prefix), "\x00")
	text := "--log-level " + name + ` --log-prefix "` + s + `"`
	for i, option := range []string{" --log-ip", " --log-arp", "", " --log-ip6"} {
		if flags&(1<<i) != 0 {
			text += option
		}
	}
	return text
}

func portRange(first, last uint16) string { return xt.Ports(model.PortRange{First: first, Last: last}) }

func byteRange(b []byte) string { return portRange(uint16(b[0]), uint16(b[1])) }

// icmpRange is a range of types and one of codes; all codes go without saying.
func icmpRange(b []byte) string {
	text := byteRange(b[:2])
	if b[2] != 0 || b[3] != 0xff {
		text += "/" + byteRange(b[2:])
	}
	return text
}

func join(parts []string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, " ")
}
