package ebtables

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/collect/xt"
	"github.com/lasthop/lasthop/probe/model"
)

// item takes one expression of an nft rule.
func (b *builder) item(item nft.Item) {
	switch i := item.(type) {
	case model.Counter:
		b.Counter = i
		b.Counter.Kept = b.Native
	case nft.Match:
		if !b.match(i) {
			b.unknown("[" + i.String() + "]")
		}
	case nft.Extension:
		b.compat(i)
	case nft.Verdict:
		b.verdict(i)
	case nft.Write:
		b.write(i)
	case nft.Limit:
		b.unknown(i.String())
	case nft.Reject:
		b.Target, b.TargetName, b.target = model.TargetDrop, "reject", "[reject]"
		b.native = append(b.native, "reject")
	case nft.NAT:
		b.Target, b.TargetName, b.target = model.TargetOther, i.Kind, "["+i.Kind+"]"
		b.native = append(b.native, i.Kind)
	case nft.Log:
		b.native = append(b.native, "[log]")
	case nft.Other:
		if i.Name == "last" || i.Name == "dup" {
			b.native = append(b.native, "["+i.Name+"]")
			return
		}
		b.unknown("[" + i.Name + "]")
	}
}

// unknown takes a match that the rule's fields cannot express.
func (b *builder) unknown(text string) {
	b.Unknown = append(b.Unknown, text)
	b.options = append(b.options, text)
	b.native = append(b.native, text)
}

func (b *builder) compat(e nft.Extension) {
	// ebtables-nft writes a watcher as a target in front of the real one.
	if !e.Target || e.Name == "log" || e.Name == "nflog" {
		b.matchExtension(e.Name, e.Info)
		return
	}
	b.targetExtension(e.Name, e.Info)
}

var verdictTargets = map[int32]model.FrameTarget{
	nft.Accept: model.TargetAccept, nft.Drop: model.TargetDrop, nft.Return: model.TargetReturn,
	nft.Continue: model.TargetContinue, nft.Break: model.TargetContinue,
	nft.Jump: model.TargetJump, nft.Goto: model.TargetJump,
}

func (b *builder) verdict(v nft.Verdict) {
	b.native = append(b.native, v.String())
	t := cmp.Or(verdictTargets[v.Code], model.TargetOther)
	option := "-j " + string(t)
	switch t {
	case model.TargetJump:
		b.TargetName, option = v.Chain, "-j "+v.Chain
	case model.TargetOther:
		b.TargetName = v.String()
	}
	if b.Target != "" {
		// A statement of nft, such as "ether daddr set", is followed by a verdict.
		b.Verdict = t
		return
	}
	b.Target, b.target = t, option
}

// Offsets in an Ethernet header.
const (
	dstMACAt    = 0
	srcMACAt    = 6
	etherTypeAt = 12
	macLen      = 6
)

// write takes a write to the frame. A new MAC is what ebtables calls dnat or snat, after which the rule goes on.
func (b *builder) write(w nft.Write) {
	l := w.Load
	text := ""
	if l.Source == nft.FromPayload && l.Base == expr.PayloadBaseLLHeader && l.Len == macLen && len(w.Value) >= macLen {
		switch l.Offset {
		case dstMACAt:
			b.Target, text = model.TargetDNAT, "ether daddr set "
		case srcMACAt:
			b.Target, text = model.TargetSNAT, "ether saddr set "
		}
	}
	if text == "" {
		b.Target, b.TargetName = model.TargetOther, w.String()
		b.native = append(b.native, w.String())
		return
	}
	b.MAC, b.Verdict = model.MACFrom(w.Value[:macLen]), model.TargetContinue
	b.native = append(b.native, text+xt.MACText(b.MAC))
}

// match takes a comparison, and reports whether it was understood.
func (b *builder) match(m nft.Match) bool {
	if m.Set != "" || m.High != nil {
		return false
	}
	invert := m.Op == expr.CmpOpNeq
	if m.Op != expr.CmpOpEq && !invert {
		return b.matchLength(m)
	}
	switch m.Load.Source {
	case nft.FromMeta:
		return b.matchMeta(m, invert)
	case nft.FromPayload:
		switch m.Load.Base {
		case expr.PayloadBaseLLHeader:
			return b.matchFrame(m, invert)
		case expr.PayloadBaseNetworkHeader:
			return b.matchNetwork(m, invert)
		}
	}
	return false
}

// matchLength is `-p Length`: the field is a length and no EtherType.
func (b *builder) matchLength(m nft.Match) bool {
	l := m.Load
	if l.Source != nft.FromPayload || l.Base != expr.PayloadBaseLLHeader || l.Offset != etherTypeAt || l.Len != 2 ||
		m.Mask != nil || len(m.Value) < 2 || binary.BigEndian.Uint16(m.Value) != etherLength {
		return false
	}
	switch m.Op {
	case expr.CmpOpLt:
		b.proto = "-p Length"
	case expr.CmpOpGte:
		b.proto = "-p ! Length"
	default:
		return false
	}
	b.Unknown = append(b.Unknown, b.proto)
	b.native = append(b.native, m.String())
	return true
}

func (b *builder) matchMeta(m nft.Match, invert bool) bool {
	key := expr.MetaKey(m.Load.Key)
	if key == expr.MetaKeyPROTOCOL {
		known := b.EtherType != 0
		ok := b.matchEtherType(m, invert)
		if ok && !known {
			b.native = append(b.native, "meta protocol "+nft.Differs(invert)+etherName(b.EtherType))
		}
		return ok
	}
	keys := []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyBRIIIFNAME, expr.MetaKeyOIFNAME, expr.MetaKeyBRIOIFNAME}
	i := slices.Index(keys, key)
	if i < 0 || m.Mask != nil || b.links()[i].field.Name != "" {
		return false
	}
	b.matchLink(b.links()[i], nft.Interface(m.Value), invert)
	return true
}

// matchEtherType takes a comparison with an EtherType. It fails if the rule has another one already: both apply.
func (b *builder) matchEtherType(m nft.Match, invert bool) bool {
	if m.Mask != nil || len(m.Value) < 2 {
		return false
	}
	n := binary.BigEndian.Uint16(m.Value)
	if b.EtherType != 0 && (b.EtherType != n || b.EtherTypeNot != invert) {
		return false
	}
	b.EtherType, b.EtherTypeNot = n, invert
	return true
}

func (b *builder) matchFrame(m nft.Match, invert bool) bool {
	l := m.Load
	switch {
	case l.Offset == etherTypeAt && l.Len == 2 && b.proto == "" && b.matchEtherType(m, invert):
		b.proto = "-p " + xt.Not(invert) + etherName(b.EtherType)
		b.native = append(b.native, "ether type "+nft.Differs(invert)+etherName(b.EtherType))
		return true
	case l.Offset == srcMACAt && b.src == "", l.Offset == dstMACAt && b.dst == "":
		// It compares an address, or its first bytes.
		if n := int(l.Len); n == 0 || n > macLen || len(m.Value) < n || m.Mask != nil && len(m.Mask) < n {
			return false
		}
		a, mask := m.Padded(macLen)
		b.matchMAC(l.Offset == srcMACAt, a, mask, invert)
		return true
	}
	return false
}

// matchNetwork takes a match in the header that the EtherType selects, as nft and newer versions of ebtables write it.
func (b *builder) matchNetwork(m nft.Match, invert bool) bool {
	l := m.Load
	if b.EtherTypeNot || int(l.Len) > len(m.Value) {
		return false
	}
	if b.EtherType == etherARP && l.Offset == 6 && l.Len == 2 && m.Mask == nil && b.ARPOp == 0 {
		b.ARPOp, b.ARPOpNot = binary.BigEndian.Uint16(m.Value), invert
		b.native = append(b.native, fmt.Sprintf("arp operation %s%d", nft.Differs(invert), b.ARPOp))
		b.options = append(b.options, "--arp-op "+xt.Not(invert)+xt.Name(arpOps, b.ARPOp))
		return true
	}
	for _, p := range []struct {
		etherType    uint16
		offset, size uint32
		field        *model.AddrMatch
		option, word string
	}{
		{etherIPv4, 12, 4, &b.IPSrc, "--ip-src", "ip saddr"},
		{etherIPv4, 16, 4, &b.IPDst, "--ip-dst", "ip daddr"},
		{etherIPv6, 8, 16, &b.IPSrc, "--ip6-src", "ip6 saddr"},
		{etherIPv6, 24, 16, &b.IPDst, "--ip6-dst", "ip6 daddr"},
		{etherARP, 14, 4, &b.ARPSrc, "--arp-ip-src", "arp saddr ip"},
		{etherARP, 24, 4, &b.ARPDst, "--arp-ip-dst", "arp daddr ip"},
	} {
		if b.EtherType != p.etherType || l.Offset != p.offset || l.Len == 0 || l.Len > p.size || !p.field.IsZero() {
			continue
		}
		a, mask := m.Padded(int(p.size))
		match, _, ok := xt.Addr(a, mask, invert)
		if !ok {
			return false
		}
		b.native = append(b.native, p.word+" "+nft.Differs(invert)+xt.Host(match.Prefix))
		b.options = append(b.options, p.option+" "+xt.Not(invert)+xt.Host(match.Prefix))
		*p.field = match
		return true
	}
	return false
}
