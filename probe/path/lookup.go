package path

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Sets are the sets and maps of nft that rules look packets up in. They are not for concurrent use.
type Sets map[setKey]*set

type setKey struct{ family, table, name string }

// set finds elements by the first part of their key.
type set struct {
	*model.Set
	// rules are the elements of a map as rules, each made when it is first asked for.
	rules map[choice]*model.PacketRule
	// places finds elements by the value that their key begins with; one that begins with
	// several values is about none alone.
	places index[string]
	// targets are what its elements lead to.
	targets []string
}

type choice struct {
	by      *model.Lookup
	element int
}

const (
	keySeparator = " . "
	anyKey       = "*"
)

// elements are the places of those that may be the packet's, by the first part of the key.
func (s *set) elements(p *Packet, part string) []int {
	if s.places.size == 0 {
		for _, e := range s.Elements {
			first, _, _ := strings.Cut(e.Key, keySeparator)
			s.places.add(first, !strings.ContainsAny(first, "*/-?,"))
		}
	}
	switch addr := p.address(part); {
	case addr.IsValid():
		return s.places.of(addr.String())
	case part == "iifname":
		return s.places.of(p.In...)
	case part == "oifname":
		return s.places.of(p.Out...)
	}
	return s.places.of()
}

// address is the one of the packet's that a part of a key is; not valid for other parts.
func (p *Packet) address(part string) netip.Addr {
	switch part {
	case "ip saddr", "ip6 saddr":
		return p.Src
	case "ip daddr", "ip6 daddr":
		return p.Dst
	}
	return netip.Addr{}
}

// of is the set that a rule looks the packet up in, nil where it or its key is not known.
func (sets Sets) of(r *model.PacketRule, l *model.Lookup) *set {
	if len(l.Key) == 0 {
		return nil
	}
	return sets[setKey{r.Family, r.Table, l.Set}]
}

// finds says how surely a lookup of a set's finds the packet.
func (p *Packet) finds(r *model.PacketRule, l *model.Lookup) Fit {
	s := p.Sets.of(r, l)
	if s == nil {
		return Maybe
	}
	found := No
	for _, i := range s.elements(p, l.Key[0]) {
		if found < Yes && p.inRanges(s.Elements[i].Key, l.Key) {
			var element model.PacketRule
			s.restrict(&element, i, l.Key)
			found = max(found, p.Fits(&element))
		}
	}
	switch {
	case !l.Not:
		return found
	case found == No:
		return Yes
	case found == Yes:
		return No
	}
	return Maybe
}

// inRanges reports whether the packet's addresses are in the ranges of a key that are no
// prefixes; fields of a rule say all else.
func (p *Packet) inRanges(key string, parts []string) bool {
	for i, v := range strings.Split(key, keySeparator) {
		low, high, isRange := strings.Cut(v, "-")
		if !isRange || i >= len(parts) {
			continue
		}
		from, err := netip.ParseAddr(low)
		to, err2 := netip.ParseAddr(high)
		if a := p.address(parts[i]); err == nil && err2 == nil && a.IsValid() && (a.Less(from) || to.Less(a)) {
			return false
		}
	}
	return true
}

// mapLookup is the lookup of a rule's map, nil where it has none, or is one of its elements.
func mapLookup(r *model.PacketRule) *model.Lookup {
	return model.First(r.Lookups, func(l *model.Lookup) bool { return l.Map && l.Element == "" })
}

// Choices are the rules that a rule stands for: with a map one for each element that the packet may have, in which
// Element is set; else itself. None: the map has no element for the packet, which goes on behind the rule.
func (p *Packet) Choices(r *model.PacketRule) []*model.PacketRule {
	l := mapLookup(r)
	if l == nil {
		return []*model.PacketRule{r}
	}
	s := p.Sets.of(r, l)
	if s == nil {
		unread := *r
		unread.Lookups, unread.Map = nil, l.Set
		return []*model.PacketRule{&unread}
	}
	var out []*model.PacketRule
	best := No
	for _, i := range s.elements(p, l.Key[0]) {
		if best == Yes && s.Elements[i].Key == anyKey || !p.inRanges(s.Elements[i].Key, l.Key) {
			continue
		}
		x := s.rule(choice{l, i}, r)
		if f := p.Fits(x); f != No {
			out, best = append(out, x), max(best, f)
		}
	}
	return out
}

// Targets are what the elements of a rule's verdict map lead to, each once; none where the rule has no such map.
func (sets Sets) Targets(r *model.PacketRule) []string {
	l := mapLookup(r)
	if l == nil || r.Target != "" {
		return nil
	}
	s := sets.of(r, l)
	if s == nil {
		return nil
	}
	if s.targets == nil {
		s.targets = []string{}
		for _, e := range s.Elements {
			var to model.PacketRule
			if setTarget(&to, e.Value); to.Target != "" {
				s.targets = append(s.targets, to.Target)
			}
		}
		slices.Sort(s.targets)
		s.targets = slices.Compact(s.targets)
	}
	return s.targets
}

// Translations are the rules that translate destinations to such an address, of one with a map the elements that do.
func (t *Tables) Translations(to func(netip.Addr) bool) (out []*model.PacketRule) {
	for r := range model.Each(t.state.PacketRules) {
		l := mapLookup(r)
		switch {
		case r.Target != "DNAT":
		case l != nil && t.Sets.of(r, l) != nil:
			s, x := t.Sets.of(r, l), model.PacketRule{}
			for i := range s.Elements {
				if setTarget(&x, s.Elements[i].Value); to(x.To.Addr()) {
					out = append(out, s.rule(choice{l, i}, r))
				}
			}
		case to(r.To.Addr()):
			out = append(out, r)
		}
	}
	return out
}

// rule is an element as a rule: what its key says in fields, and its value as the target.
func (s *set) rule(c choice, of *model.PacketRule) *model.PacketRule {
	if r := s.rules[c]; r != nil {
		return r
	}
	e, r := &s.Elements[c.element], *of
	r.Unknown, r.Lookups = slices.Clone(r.Unknown), slices.Clone(r.Lookups)
	for i := range r.Lookups {
		if r.Lookups[i].Map {
			r.Lookups[i].Element, r.Lookups[i].Shared = e.Key, len(s.Elements) > 1
		}
	}
	r.Comment = cmp.Or(e.Comment, r.Comment)
	if !s.Anonymous || len(s.Elements) > 1 {
		r.Text += ", element " + e.Key + " : " + e.Value
	}
	setTarget(&r, e.Value)
	s.restrict(&r, c.element, c.by.Key)
	s.rules[c] = &r
	return &r
}

// restrict adds to a rule what the key of an element says. Ranges of addresses that are
// no prefixes are compared before.
func (s *set) restrict(r *model.PacketRule, element int, parts []string) {
	key := s.Elements[element].Key
	if key == anyKey {
		if len(s.Elements) > 1 {
			r.Unknown = append(r.Unknown, "no other element")
		}
		return
	}
	for i, v := range strings.Split(key, keySeparator) {
		if i >= len(parts) {
			return
		}
		switch part := parts[i]; part {
		case "ip saddr", "ip6 saddr":
			r.Src = addrMatch(v)
		case "ip daddr", "ip6 daddr":
			r.Dst = addrMatch(v)
		case "meta l4proto":
			if r.Proto, r.ProtoNot = protoNumber(v), false; r.Proto == 0 {
				r.Unknown = append(r.Unknown, part+" "+v)
			}
		case "th sport":
			r.SrcPorts = portRange(v)
		case "th dport":
			r.DstPorts = portRange(v)
		case "iifname":
			r.In = linkMatch(v)
		case "oifname":
			r.Out = linkMatch(v)
		default:
			// One of all numbers that the kernel may make up comes; the last does where no other has.
			mod, _ := strconv.Atoi(part[strings.LastIndexByte(part, ' ')+1:])
			if !strings.HasPrefix(part, "numgen ") || len(s.Elements) != mod || element != mod-1 {
				r.Unknown = append(r.Unknown, part+" "+v)
			}
		}
	}
}

// setTarget takes a map's value: a verdict, or an address to translate to.
func setTarget(r *model.PacketRule, value string) {
	verdict, chain, _ := strings.Cut(value, " ")
	switch verdict {
	case "accept", "drop", "return":
		r.Target = strings.ToUpper(verdict)
	case "jump", "goto":
		r.Target, r.Goto = chain, verdict == "goto"
	case "continue":
	default:
		addr, port, _ := strings.Cut(value, keySeparator)
		a, err := netip.ParseAddr(addr)
		n, _ := strconv.ParseUint(port, 10, 16)
		if err == nil {
			r.To = netip.AddrPortFrom(a, cmp.Or(uint16(n), r.To.Port()))
		}
	}
}

func addrMatch(v string) model.AddrMatch {
	if p, err := netip.ParsePrefix(v); err == nil {
		return model.AddrMatch{Prefix: p}
	}
	a, err := netip.ParseAddr(v)
	if err != nil {
		return model.AddrMatch{}
	}
	return model.AddrMatch{Prefix: netip.PrefixFrom(a, a.BitLen())}
}

func linkMatch(v string) model.IfMatch {
	if prefix, ok := strings.CutSuffix(v, "*"); ok {
		v = prefix + "+"
	}
	return model.IfMatch{Name: v}
}

func portRange(v string) []model.PortRange {
	low, high, several := strings.Cut(v, "-")
	if !several {
		high = low
	}
	first, _ := strconv.ParseUint(low, 10, 16)
	last, _ := strconv.ParseUint(high, 10, 16)
	return []model.PortRange{{First: uint16(first), Last: uint16(last)}}
}

// protoNumber is the protocol that model.ProtoName names so, 0 where none is.
func protoNumber(name string) uint8 {
	for n := uint8(1); n != 0; n++ {
		if model.ProtoName(n) == name {
			return n
		}
	}
	return 0
}
