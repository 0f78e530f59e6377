package ebtables

import (
	"cmp"
	"fmt"

	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/collect/xt"
	"github.com/lasthop/lasthop/probe/model"
)

// builder collects a rule and formats it in the order of ebtables' options.
type builder struct {
	model.FrameRule
	proto, src, dst, in, out, logicalIn, logicalOut string
	options                                         []string
	target                                          string
	// native is the rule as nft prints it.
	native []string
}

// linkMatch is a match of an interface: its field and text, and what the two tools call it.
type linkMatch struct {
	field        *model.IfMatch
	part         *string
	option, word string
}

// links are the matches of interfaces, in the order of struct ebt_entry.
func (b *builder) links() [4]linkMatch {
	return [...]linkMatch{
		{&b.In, &b.in, "-i ", "iifname "}, {&b.LogicalIn, &b.logicalIn, "--logical-in ", "meta ibrname "},
		{&b.Out, &b.out, "-o ", "oifname "}, {&b.LogicalOut, &b.logicalOut, "--logical-out ", "meta obrname "},
	}
}

func (b *builder) matchLink(l linkMatch, name string, not bool) {
	*l.field = model.IfMatch{Name: name, Not: not}
	*l.part = l.option + xt.Not(not) + name
	b.native = append(b.native, l.word+nft.Differs(not)+nft.InterfaceText(name))
}

func (b *builder) matchMAC(source bool, addr, mask []byte, not bool) {
	m := model.MACMatch{Addr: model.MACFrom(addr), Mask: model.MACFrom(mask), Set: true, Not: not}
	field, part, option, word := &b.DstMAC, &b.dst, "-d ", "ether daddr "
	if source {
		field, part, option, word = &b.SrcMAC, &b.src, "-s ", "ether saddr "
	}
	*field, *part = m, option+xt.Not(m.Not)+macName(m)
	b.native = append(b.native, word+nft.Differs(m.Not)+macText(m.Addr, m.Mask))
}

func (b *builder) build() model.FrameRule {
	parts := b.native
	if !b.Native {
		parts = append([]string{b.proto, b.src, b.dst, b.in, b.logicalIn, b.out, b.logicalOut}, b.options...)
		parts = append(parts, cmp.Or(b.target, "-j CONTINUE"))
	}
	b.Target = cmp.Or(b.Target, model.TargetContinue)
	b.Text = xt.Join(parts...)
	return b.FrameRule
}

// etherTypes are the EtherTypes that ebtables names even without /etc/ethertypes.
var etherTypes = map[uint16]string{etherIPv4: "IPv4", etherARP: "ARP", etherIPv6: "IPv6", 0x8100: "802_1Q"}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	// etherLength is the least EtherType. A smaller number is a length.
	etherLength = 0x0600
)

func etherName(n uint16) string {
	if s, ok := etherTypes[n]; ok {
		return s
	}
	return fmt.Sprintf("0x%X", n)
}

// Masks and addresses that ebtables has names for.
var (
	wholeMAC = model.Broadcast
	groupBit = model.MAC{1}
	bga      = model.MAC{0x01, 0x80, 0xc2}
)

// macText formats an address under a mask.
func macText(addr, mask model.MAC) string {
	return model.Either(mask == wholeMAC, xt.MACText(addr), xt.MACText(addr)+"/"+xt.MACText(mask))
}

// macName formats an address as ebtables does, by its name if it has one.
func macName(m model.MACMatch) string {
	switch {
	case m.Mask == groupBit && m.Addr == model.MAC{}:
		return "Unicast"
	case m.Mask == groupBit && m.Addr == groupBit:
		return "Multicast"
	case m.Mask == wholeMAC && m.Addr == model.Broadcast:
		return "Broadcast"
	case m.Mask == wholeMAC && m.Addr == bga:
		return "BGA"
	}
	return macText(m.Addr, m.Mask)
}
