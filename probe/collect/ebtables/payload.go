package ebtables

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/xt"
	"github.com/lasthop/lasthop/probe/model"
)

// matches decode the matches and watchers. The same structs are in nftables and in legacy tables.
var matches = map[string]func(*builder, *xt.Bytes, *options){
	"ip": ipMatch(4, "ip", "ip-tos"), "ip6": ipMatch(16, "ip6", "ip6-tclass"), "arp": (*builder).arp,
	"vlan": vlan, "mark_m": markMatch, "mark": markMatch, "pkttype": packetType,
	"limit": func(_ *builder, p *xt.Bytes, o *options) { o.match(xt.LimitText(p.U32(0), p.U32(4))) },
	// A watcher restricts nothing.
	"log": func(_ *builder, p *xt.Bytes, o *options) { o.text = append(o.text, logText(p)) },
}

// matchExtension decodes a match or watcher into the rule. What the rule's fields cannot express is named in Unknown.
func (b *builder) matchExtension(name string, info []byte) {
	p, o, decode := xt.Bytes{B: info}, options{}, matches[name]
	if decode != nil {
		decode(b, &p, &o)
	}
	text, unsaid := strings.Join(o.text, " "), strings.Join(o.unsaid, " ")
	if decode == nil || p.Short {
		text = name + " " + xt.Undecoded
		unsaid = text
	}
	if unsaid != "" {
		b.Unknown = append(b.Unknown, unsaid)
	}
	b.options = append(b.options, text)
}

// verdictBits are the bits of a target's verdict, which is negative. The other bits belong to the target itself.
const verdictBits = 0x0f

var verdicts = map[int32]model.FrameTarget{-1: model.TargetAccept, -2: model.TargetDrop, -3: model.TargetContinue, -4: model.TargetReturn}

func verdictOf(n uint32) model.FrameTarget {
	return cmp.Or(verdicts[int32(n)|^verdictBits], model.TargetOther)
}

func (b *builder) targetExtension(name string, info []byte) {
	p := xt.Bytes{B: info}
	b.TargetName = name
	text := ""
	switch name {
	case "dnat":
		b.Target, b.MAC, b.Verdict = model.TargetDNAT, p.MAC(0), verdictOf(p.U32(8))
		text = fmt.Sprintf("--to-dst %s --dnat-target %s", xt.MACText(b.MAC), b.Verdict)
	case "snat":
		// The bit is clear if ARP headers are rewritten too.
		const noARP = 0x10
		b.Target, b.MAC, b.Verdict = model.TargetSNAT, p.MAC(0), verdictOf(p.U32(8))
		arp := model.Either(p.U32(8)&noARP == 0, " --snat-arp", "")
		text = fmt.Sprintf("--to-src %s%s --snat-target %s", xt.MACText(b.MAC), arp, b.Verdict)
	case "arpreply":
		b.Target, b.MAC, b.Verdict = model.TargetARPReply, p.MAC(0), verdictOf(p.U32(8))
		text = "--arpreply-mac " + xt.MACText(b.MAC)
		if b.Verdict != model.TargetDrop {
			text += " --arpreply-target " + string(b.Verdict)
		}
	case "redirect":
		b.Target, b.Verdict = model.TargetRedirect, verdictOf(p.U32(0))
		text = "--redirect-target " + string(b.Verdict)
	case "mark":
		b.Target = model.TargetOther
		text = b.markTarget(&p)
	default:
		b.Target, text = model.TargetOther, xt.Undecoded
	}
	if p.Short {
		b.Target, b.MAC, b.Verdict, text = model.TargetOther, model.MAC{}, "", xt.Undecoded
	}
	b.target = "-j " + name + " " + text
}

func (b *builder) markTarget(p *xt.Bytes) string {
	v := p.U32(8)
	b.Verdict = verdictOf(v)
	action := map[int32]string{-16: "set", -32: "or", -48: "and", -64: "xor"}[int32(v)&^verdictBits]
	if action == "" {
		return xt.Undecoded
	}
	return fmt.Sprintf("--mark-%s 0x%x --mark-target %s", action, p.U64(0), b.Verdict)
}

// options collects the options of one match.
type options struct {
	// mask has a bit for each option that is given, invert one for each that is negated.
	mask, invert uint16
	text, unsaid []string
}

// match takes an option that the rule's fields cannot express.
func (o *options) match(text string) {
	o.text = append(o.text, text)
	o.unsaid = append(o.unsaid, text)
}

// given takes "--name [! ]value" if the bit of mask is set, and reports that.
func (o *options) given(bit uint16, name, value string) bool {
	if o.mask&bit == 0 {
		return false
	}
	o.text = append(o.text, "--"+name+" "+xt.Not(o.not(bit))+value)
	return true
}

// add is given for an option that the rule's fields cannot express.
func (o *options) add(bit uint16, name, value string) {
	if o.given(bit, name, value) {
		o.unsaid = append(o.unsaid, o.text[len(o.text)-1])
	}
}

// address is given for an address and its mask, which field takes if it can.
func (o *options) address(bit uint16, name string, addr, mask []byte, field *model.AddrMatch) {
	m, text, ok := xt.Addr(addr, mask, o.not(bit))
	if ok {
		text = xt.Host(m.Prefix)
	}
	if !ok || !field.IsZero() {
		o.add(bit, name, text)
	} else if o.given(bit, name, text) {
		*field = m
	}
}

func (o *options) not(bit uint16) bool { return o.invert&bit != 0 }

// ipMatch returns the decoder of struct ebt_ip_info or ebt_ip6_info, for addresses
// of n bytes. The two have the same fields, and IPv4's has IGMP too.
func ipMatch(n int, prefix, tos string) func(*builder, *xt.Bytes, *options) {
	return func(b *builder, p *xt.Bytes, o *options) {
		o.mask, o.invert = uint16(p.U8(4*n+2)), uint16(p.U8(4*n+3))
		o.address(0x01, prefix+"-src", p.Slice(0, n), p.Slice(2*n, n), &b.IPSrc)
		o.address(0x02, prefix+"-dst", p.Slice(n, n), p.Slice(3*n, n), &b.IPDst)
		o.add(0x04, tos, fmt.Sprintf("0x%02X", p.U8(4*n)))
		o.add(0x08, prefix+"-proto", xt.Protocol(p.U8(4*n+1)))
		// What follows depends on the protocol: types and codes, or ports.
		first, second := 4*n+4, 4*n+8
		icmp := byteRange(p.Slice(first, 2))
		if codes := p.Slice(second, 2); codes[0] != 0 || codes[1] != 0xff {
			icmp += "/" + byteRange(codes)
		}
		o.add(0x40, prefix+"-icmp-type", icmp)
		o.add(0x80, prefix+"-igmp-type", byteRange(p.Slice(first, 2)))
		o.add(0x10, prefix+"-sport", portRange(p.U16(first), p.U16(first+2)))
		o.add(0x20, prefix+"-dport", portRange(p.U16(second), p.U16(second+2)))
	}
}

var arpOps = map[uint16]string{
	1: "Request", 2: "Reply", 3: "Request_Reverse", 4: "Reply_Reverse", 5: "DRARP_Request",
	6: "DRARP_Reply", 7: "DRARP_Error", 8: "InARP_Request", 9: "ARP_NAK",
}

func (b *builder) arp(p *xt.Bytes, o *options) {
	o.mask, o.invert = uint16(p.U8(48)), uint16(p.U8(49))
	const opcode, gratuitous = 0x01, 0x80
	if op := p.BE16(4); o.given(opcode, "arp-op", xt.Name(arpOps, op)) {
		b.ARPOp, b.ARPOpNot = op, o.not(opcode)
	}
	o.add(0x02, "arp-htype", fmt.Sprint(p.BE16(0)))
	o.add(0x04, "arp-ptype", fmt.Sprintf("0x%x", p.BE16(2)))
	o.address(0x08, "arp-ip-src", p.Slice(8, 4), p.Slice(12, 4), &b.ARPSrc)
	o.address(0x10, "arp-ip-dst", p.Slice(16, 4), p.Slice(20, 4), &b.ARPDst)
	o.add(0x20, "arp-mac-src", macText(p.MAC(24), p.MAC(30)))
	o.add(0x40, "arp-mac-dst", macText(p.MAC(36), p.MAC(42)))
	if o.mask&gratuitous != 0 {
		o.match(xt.Not(o.not(gratuitous)) + "--arp-gratuitous")
	}
}

func vlan(_ *builder, p *xt.Bytes, o *options) {
	o.mask, o.invert = uint16(p.U8(6)), uint16(p.U8(7))
	o.add(1, "vlan-id", fmt.Sprint(p.U16(0)))
	o.add(2, "vlan-prio", fmt.Sprint(p.U8(2)))
	o.add(4, "vlan-encap", fmt.Sprintf("%4.4X", p.BE16(4)))
}

func markMatch(_ *builder, p *xt.Bytes, o *options) {
	const or = 2
	mark, mask := p.U64(0), p.U64(8)
	value := fmt.Sprintf("0x%x", mark)
	switch {
	case p.U8(17) == or:
		value = fmt.Sprintf("/0x%x", mask)
	case mask != ^uint64(0) && mask != 0xffffffff:
		value += fmt.Sprintf("/0x%x", mask)
	}
	o.match("--mark " + xt.Not(p.U8(16) != 0) + value)
}

var packetTypes = map[uint8]string{0: "host", 1: "broadcast", 2: "multicast", 3: "otherhost", 4: "outgoing", 5: "loopback", 6: "fastroute"}

func packetType(_ *builder, p *xt.Bytes, o *options) {
	o.match("--pkttype-type " + xt.Not(p.U8(1) != 0) + xt.Name(packetTypes, p.U8(0)))
}

var logLevels = map[uint8]string{0: "emerg", 1: "alert", 2: "crit", 3: "error", 4: "warning", 5: "notice", 6: "info", 7: "debug"}

func logText(p *xt.Bytes) string {
	text := "--log-level " + xt.Name(logLevels, p.U8(0)) + ` --log-prefix "` + p.Text(1, 30) + `"`
	return xt.Join(text, xt.BitNames([]string{"--log-ip", "--log-arp", "", "--log-ip6"}, p.U32(32), " "))
}

func portRange(first, last uint16) string { return xt.Ports(model.PortRange{First: first, Last: last}) }

func byteRange(b []byte) string { return portRange(uint16(b[0]), uint16(b[1])) }
