package path

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// serviceBits4 and serviceBits6 are the sizes of block that addresses of services
// are told by: where rules translate some of a block, the others are services' too.
const (
	serviceBits4 = 16
	serviceBits6 = 64
)

// Untranslated is why an address that no rule translates looks like a service's.
type Untranslated struct {
	// Rules name the address, and lead to no rule that translates it.
	Rules []*model.PacketRule
	// Beside translate the address for other protocols or ports.
	Beside []*model.PacketRule
	// Others are addresses beside it, a few, that rules do translate.
	Others []netip.Addr
}

// Is reports whether it looks like one.
func (u Untranslated) Is() bool { return len(u.Rules)+len(u.Beside)+len(u.Others) > 0 }

// Untranslated looks up the address that a packet is sent to. The result is empty
// where that is translated, or not known, and where the node has a route to the
// address other than the default.
func (t *Tables) Untranslated(p Packet) Untranslated {
	if !p.Dst.IsPrivate() || !t.state.Has(model.SourceNAT) {
		return Untranslated{}
	}
	found := t.destination(p, "PREROUTING")
	d := t.state.Routing().Lookup(Query{Src: p.Src, Dst: p.Dst})
	if !found.none() || d.Type != "unicast" || d.Route == nil || d.Route.Dst.Bits() != 0 {
		return Untranslated{}
	}
	out := Untranslated{Rules: found.named, Others: t.Services(p.Dst)}
	if p.Proto != 0 {
		out.Beside = t.destination(Packet{Src: p.Src, Dst: p.Dst}, "PREROUTING").rules
	}
	return out
}

// Destination are the rules that may translate where a packet of a pod's goes. surely: one
// of them does.
func (t *Tables) Destination(p Packet) (rules []*model.PacketRule, surely bool) {
	found := t.destination(p, "PREROUTING")
	return found.rules, found.whole && !found.mapped && !found.cutOff
}

// Services are addresses of the same range as one, a few, that rules translate to
// others.
func (t *Tables) Services(beside netip.Addr) []netip.Addr {
	const most, tries = 3, 20
	bits := serviceBits4
	if isIPv6(beside) {
		bits = serviceBits6
	}
	block, err := beside.Prefix(bits)
	if err != nil {
		return nil
	}
	var out []netip.Addr
	asked := 0
	for a := range t.translatable() {
		if !block.Contains(a) || a == beside || slices.Contains(out, a) {
			continue
		}
		if asked++; asked > tries {
			break
		}
		if found := t.destination(Packet{Dst: a}, "PREROUTING"); found.service && len(found.rules) > 0 {
			if out = append(out, a); len(out) == most {
				break
			}
		}
	}
	return out
}

// translatable are the addresses that rules and elements of maps name, which may
// translate them.
func (t *Tables) translatable() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for r := range model.Each(t.state.PacketRules) {
			if a := r.Dst.Addr(); (r.Table == "nat" || r.Native) && a.IsValid() && !yield(a) {
				return
			}
		}
		for x := range model.Each(t.state.Snapshot.Sets) {
			for _, e := range x.Elements {
				first, _, _ := strings.Cut(e.Key, keySeparator)
				if a, err := netip.ParseAddr(first); err == nil && e.Value != "" && !yield(a) {
					return
				}
			}
		}
	}
}
