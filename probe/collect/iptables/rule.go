package iptables

import (
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/collect/xt"
	"github.com/lasthop/lasthop/probe/model"
)

// builder makes a rule from its parts, in the order in which the kernel has them, and writes its text.
type builder struct {
	model.PacketRule
	// The parts that iptables prints first, in its order.
	src, dst, in, out, proto, fragment string
	// options are the matches, ports the place of the native port match among them.
	options []string
	ports   int
	target  string
	setName func(uint16) string
	lookups *lookups
	// native is the rule in nft's words.
	native []string
}

func newBuilder(r model.PacketRule) *builder { return &builder{PacketRule: r, ports: -1} }

// jumpOption is iptables' option in front of a target.
func jumpOption(isGoto bool) string { return model.Either(isGoto, "-g ", "-j ") }

// say adds a part of the rule's text in iptables' words and in nft's.
func (b *builder) say(option, native string) {
	b.options, b.native = append(b.options, option), append(b.native, native)
}

// unknown names a match that the fields cannot say.
func (b *builder) unknown(text string) { b.Unknown = append(b.Unknown, text) }

// restrict sets a field that says one match only. A second match of the same
// kind applies too, so that it is named instead.
func restrict[T comparable](b *builder, field *T, value T, text string) {
	if *field != *new(T) {
		b.unknown(text)
		return
	}
	*field = value
}

func (b *builder) matchLink(in bool, m model.IfMatch) {
	part, field, option, word := &b.out, &b.Out, "-o ", "oifname "
	if in {
		part, field, option, word = &b.in, &b.In, "-i ", "iifname "
	}
	*part = xt.Not(m.Not) + option + m.Name
	restrict(b, field, m, *part)
	b.native = append(b.native, word+nft.Differs(m.Not)+nft.InterfaceText(m.Name))
}

// matchAddr takes an address match; ok is false when it is none that a prefix can say, and text what iptables calls it.
func (b *builder) matchAddr(source bool, m model.AddrMatch, text string, invert, ok bool) {
	part, field, option, word := &b.dst, &b.Dst, "-d ", "daddr "
	if source {
		part, field, option, word = &b.src, &b.Src, "-s ", "saddr "
	}
	*part = xt.Not(invert) + option + text
	if ok {
		restrict(b, field, m, *part)
	} else {
		b.unknown(*part)
	}
	b.native = append(b.native, model.Either(m.Prefix.Addr().Is6(), "ip6 ", "ip ")+word+nft.Differs(invert)+text)
}

func (b *builder) matchProto(n uint8, invert bool) {
	b.proto = xt.Not(invert) + "-p " + xt.Protocol(n)
	if b.Proto != 0 {
		b.unknown(b.proto)
	} else {
		b.Proto, b.ProtoNot = n, invert
	}
	b.native = append(b.native, "meta l4proto "+nft.Differs(invert)+xt.Protocol(n))
}

// matchPorts takes a native port match. iptables writes those of one rule as one match of the protocol's name.
func (b *builder) matchPorts(source bool, r model.PortRange, text string, invert bool) {
	option, word, field := "--dport ", "dport ", &b.DstPorts
	if source {
		option, word, field = "--sport ", "sport ", &b.SrcPorts
	}
	part := xt.Not(invert) + option + text
	if invert || *field != nil {
		b.unknown(part)
	} else {
		*field = []model.PortRange{r}
	}
	b.protoOption(part)
	b.native = append(b.native, xt.Protocol(b.Proto)+" "+word+nft.Differs(invert)+strings.Replace(text, ":", "-", 1))
}

// protoOption adds an option to the match of the rule's protocol.
func (b *builder) protoOption(text string) {
	if b.ports < 0 {
		b.ports = len(b.options)
		b.options = append(b.options, "-m "+xt.Protocol(b.Proto))
	}
	b.options[b.ports] += " " + text
}

func (b *builder) build() model.PacketRule {
	parts := b.native
	if !b.Native {
		parts = slices.Concat([]string{b.src, b.dst, b.in, b.out, b.proto, b.fragment}, b.options, []string{b.target})
	}
	b.Text = xt.Join(parts...)
	return b.PacketRule
}
