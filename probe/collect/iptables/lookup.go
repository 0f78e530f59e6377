package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/model"
)

// lookups are the sets and maps of one family's tables that were read; out are those that a rule's match was
// decoded for, with their elements in words, and place is where each is there.
type lookups struct {
	family string
	sets   map[[2]string]*nft.Set
	place  map[[2]string]int
	out    []model.Set
}

func newLookups(family string, sets []nft.Set) *lookups {
	l := &lookups{family: family, sets: map[[2]string]*nft.Set{}, place: map[[2]string]int{}}
	for s := range model.Each(sets) {
		if s.Read {
			l.sets[[2]string{s.Table, s.Name}] = s
		}
	}
	return l
}

// field is a part of a key: what it is of a packet, in nft's words, how many bytes it
// has, and how its values are written.
type field struct {
	name string
	size int
	text func([]byte) string
}

// known is false for a field whose values are not read; then no packet's is known.
func (f field) known() bool { return f.text != nil }

// lookup takes a lookup in a set that was read, and reports whether it was one.
func (b *builder) lookup(m nft.Match) bool {
	at := [2]string{b.Table, m.Set}
	set := b.lookups.sets[at]
	if set == nil {
		return false
	}
	var names []string
	var fields []field
	size := 0
	for _, load := range m.Keys {
		if size >= int(set.KeyLen) {
			break
		}
		f := b.field(load)
		names, fields = append(names, f.name), append(fields, f)
		if size += f.size; size < int(set.KeyLen) || len(fields) > 1 {
			size += -f.size & 3
		}
	}
	if size != int(set.KeyLen) || !slices.ContainsFunc(fields, field.known) {
		return false
	}
	place, known := b.lookups.place[at]
	if !known {
		place = len(b.lookups.out)
		b.lookups.place[at] = place
		b.lookups.out = append(b.lookups.out, model.Set{
			Family: b.lookups.family, Table: set.Table, Name: set.Name, Anonymous: set.Anonymous(), Elements: elements(set, fields),
		})
	}
	l := model.Lookup{Set: m.Set, Key: names, Not: m.Op == expr.CmpOpNeq, Map: m.Map}
	b.Lookups = append(b.Lookups, l)
	verb := model.Either(m.Map, "vmap ", "") + nft.Differs(l.Not)
	text := strings.Join(names, " . ") + " " + verb + setText(&b.lookups.out[place])
	b.say("["+text+"]", text)
	return true
}

// mapped makes the lookup in a map the one that decides on the address of a
// translation, and is its text. A map that was not read is named, as for verdicts.
func (b *builder) mapped(name string) string {
	if i := slices.IndexFunc(b.Lookups, func(l model.Lookup) bool { return l.Set == name }); i >= 0 {
		b.Lookups[i].Map = true
	} else {
		b.Map = name
	}
	return " to map @" + name
}

// setText names a set, or shows the elements of one that is part of its rule.
func setText(s *model.Set) string {
	const most = 3
	if !s.Anonymous {
		return "@" + s.Name
	}
	words := model.Map(s.Elements[:min(most, len(s.Elements))], func(e model.Element) string {
		return model.Either(e.Value == "", e.Key, e.Key+" : "+e.Value)
	})
	if len(s.Elements) > most {
		words = append(words, fmt.Sprintf("and %d others", len(s.Elements)-most))
	}
	return "{ " + strings.Join(words, ", ") + " }"
}

// field is what a value is of a packet.
func (b *builder) field(l nft.Load) field {
	f := field{name: l.String(), size: l.Size()}
	switch l.Source {
	case nft.FromPayload:
		b.payloadField(l, &f)
	case nft.FromMeta:
		switch expr.MetaKey(l.Key) {
		case expr.MetaKeyL4PROTO:
			f.name, f.text = "meta l4proto", protoText
		case expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME:
			f.name = model.Either(expr.MetaKey(l.Key) == expr.MetaKeyIIFNAME, "iifname", "oifname")
			f.text = func(v []byte) string { return strings.TrimRight(string(v), "\x00") }
		}
	case nft.FromCT:
		if l.Key == unix.NFT_CT_STATE {
			f.name, f.text = "ct state", func(v []byte) string { return stateNames(binary.NativeEndian.Uint32(v)) }
		}
	case nft.FromNumgen:
		f.text = func(v []byte) string { return fmt.Sprint(binary.NativeEndian.Uint32(v)) }
	}
	return f
}

func (b *builder) payloadField(l nft.Load, f *field) {
	h := b.ipHeader(nft.Match{Load: l})
	ip, network := model.Either(h == header6, "ip6 ", "ip "), l.Base == expr.PayloadBaseNetworkHeader
	port := l.Base == expr.PayloadBaseTransportHeader && l.Len == 2
	switch {
	case network && l.Offset == h.addrs[0] && l.Len == h.size:
		f.name, f.text = ip+"saddr", addrText
	case network && l.Offset == h.addrs[1] && l.Len == h.size:
		f.name, f.text = ip+"daddr", addrText
	case network && l.Offset == h.proto && l.Len == 1:
		f.name, f.text = "meta l4proto", protoText
	case port && l.Offset == 0:
		f.name, f.text = "th sport", portText
	case port && l.Offset == 2:
		f.name, f.text = "th dport", portText
	}
}

func addrText(v []byte) string {
	a, _ := netip.AddrFromSlice(v)
	return a.String()
}

func portText(v []byte) string { return fmt.Sprint(binary.BigEndian.Uint16(v)) }

func protoText(v []byte) string { return model.ProtoName(v[0]) }

func elements(s *nft.Set, fields []field) []model.Element {
	out := make([]model.Element, len(s.Elements))
	for i := range s.Elements {
		e := &s.Elements[i]
		out[i] = model.Element{Key: keyText(e, fields), Comment: e.Comment}
		switch {
		case e.Verdict != nil:
			out[i].Value = e.Verdict.String()
		case e.Data != nil:
			out[i].Value = dataText(e.Data)
		}
	}
	return out
}

// dataText is an address, with a port or without.
func dataText(v []byte) string {
	size := model.Either(len(v) <= 8, 4, 16)
	if len(v) < size {
		return fmt.Sprintf("0x%x", v)
	}
	text := addrText(v[:size])
	if len(v) >= size+2 {
		text += " . " + portText(v[size:])
	}
	return text
}

// keyText is an element's key. What is not decoded of it is "?".
func keyText(e *nft.Element, fields []field) string {
	if e.Key == nil {
		return "*"
	}
	var parts []string
	at := 0
	for _, f := range fields {
		if f.known() && at+f.size <= len(e.Key) && (e.End == nil || at+f.size <= len(e.End)) {
			var end []byte
			if e.End != nil {
				end = e.End[at : at+f.size]
			}
			parts = append(parts, f.between(e.Key[at:at+f.size], end))
		} else {
			parts = append(parts, "?")
		}
		at += (f.size + 3) &^ 3
	}
	return strings.Join(parts, " . ")
}

// between is a range of values as nft writes it: a prefix, a name's beginning, or both ends.
func (f field) between(first, last []byte) string {
	if last == nil || slices.Equal(first, last) {
		return f.text(first)
	}
	switch f.name {
	case "iifname", "oifname":
		return f.text(first) + "*"
	case "ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr":
		a, _ := netip.AddrFromSlice(first)
		end, _ := netip.AddrFromSlice(last)
		for bits := range a.BitLen() {
			if p := netip.PrefixFrom(a, bits); p == p.Masked() && p.Contains(end) && !p.Contains(end.Next()) {
				return p.String()
			}
		}
	}
	return f.text(first) + "-" + f.text(last)
}
