package iptables

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/collect/xt"
	"github.com/lasthop/lasthop/probe/model"
)

// tableNames are the tables that iptables itself makes.
var tableNames = []string{"raw", "mangle", "nat", "filter", "security"}

var familyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
	nftables.TableFamilyNetdev: "netdev",
}

// hookNamesOf are the hooks of a family by number. Those of netdev are of links, and inet has the first of them too.
func hookNamesOf(f nftables.TableFamily) []string {
	switch f {
	case nftables.TableFamilyNetdev:
		return []string{"INGRESS", "EGRESS"}
	case nftables.TableFamilyINet:
		return append(hookNames[:], "INGRESS")
	}
	return hookNames[:]
}

// fromSet turns what nft holds in one family into rules. setName is the name of an ipset.
func fromSet(set nft.Ruleset, f nftables.TableFamily, setName func(uint16) string) Tables {
	var t Tables
	family, hookNames, native := familyNames[f], hookNamesOf(f), map[string]bool{}
	for _, ch := range set.Chains {
		c := model.Chain{Backend: model.NFT, Family: family, Table: ch.Table, Name: ch.Name}
		if ch.Base && ch.Hook >= 0 && ch.Hook < len(hookNames) {
			c.Hook, c.Priority, c.Counter = hookNames[ch.Hook], ch.Priority, ch.Counter
			c.Devices, c.Policy = strings.Join(ch.Devices, ","), model.Either(ch.Accept, "ACCEPT", "DROP")
		}
		t.Chains = append(t.Chains, c)
		// iptables names the chains of hooks after them.
		if family == "inet" || family == "netdev" || !slices.Contains(tableNames, ch.Table) || ch.Base && c.Hook != ch.Name {
			native[ch.Table] = true
		}
	}
	looked, place := newLookups(family, set.Sets), map[[2]string]int{}
	t.Rules = make([]model.PacketRule, 0, len(set.Rules))
	for r := range model.Each(set.Rules) {
		at := [2]string{r.Table, r.Chain}
		place[at]++
		t.Rules = append(t.Rules, decoded(r, place[at], native[r.Table], setName, looked))
		*r = nft.Rule{} // Of tens of thousands, both forms would be held at once.
	}
	t.Sets = looked.out
	return t
}

func decoded(r *nft.Rule, place int, native bool, setName func(uint16) string, looked *lookups) model.PacketRule {
	b := newBuilder(model.PacketRule{
		Backend: model.NFT, Family: looked.family, Table: r.Table, Chain: r.Chain, Number: place, Handle: r.Handle, Native: native,
	})
	b.setName, b.lookups = setName, looked
	if b.Native {
		b.Comment = nft.Comment(r.UserData)
	}
	for _, item := range r.Items {
		b.item(item)
	}
	return b.build()
}

// One is a rule by itself, of a family, whose sets are not known. native says that iptables did not write it.
func One(r *nft.Rule, family string, native bool) model.PacketRule {
	return decoded(r, 1, native || family == "inet" || !slices.Contains(tableNames, r.Table), nil, newLookups(family, nil))
}

// item takes one part of an nft rule.
func (b *builder) item(item nft.Item) {
	switch i := item.(type) {
	case model.Counter:
		b.Counter = i
		b.Counter.Kept = b.Native
	case nft.Match:
		known := i.Set != "" && b.lookup(i)
		if i.Map && !known {
			b.Map = i.Set
		}
		if !known && !b.match(i) {
			b.unknown(i.String())
			b.say("["+i.String()+"]", "["+i.String()+"]")
		}
	case nft.Extension:
		b.extension(i)
	case nft.Verdict:
		b.verdict(i)
	case nft.NAT:
		b.nat(i)
	case nft.Reject:
		b.Target, b.target = "REJECT", "-j REJECT"
		b.native = append(b.native, "reject")
	case nft.Limit:
		text := i.String()
		b.unknown("limit " + text)
		b.say("-m limit "+text, "limit rate "+text)
	case nft.Write:
		switch {
		case i.Load.Source == nft.FromCT && i.Load.Key == unix.NFT_CT_ZONE && len(i.Value) >= 2:
			zone := binary.NativeEndian.Uint16(i.Value)
			b.Target, b.target = "CT", fmt.Sprintf("-j CT --zone %d", zone)
			b.native = append(b.native, fmt.Sprintf("ct zone set %d", zone))
			return
		case isMark(i.Load):
			b.setMark(i)
		case i.Load.Source != nft.FromMeta:
		case i.Load.Key == unix.NFT_META_NFTRACE:
			b.Target, b.target = "TRACE", "-j TRACE"
		}
		b.native = append(b.native, i.String())
	case nft.Log:
		b.log(i)
	case nft.Other:
		b.other(i.Name)
	}
}

// isMark reports whether a value is the packet's mark, or its connection's.
func isMark(l nft.Load) bool {
	return l.Source == nft.FromMeta && l.Key == unix.NFT_META_MARK || l.Source == nft.FromCT && l.Key == unix.NFT_CT_MARK
}

// setMark takes what writes one of these: a constant, one of them, or a part of it.
func (b *builder) setMark(w nft.Write) {
	m := model.MarkWrite{Mask: math.MaxUint32, OfFlow: w.Load.Source == nft.FromCT}
	number := func(v []byte) uint32 { return binary.NativeEndian.Uint32(append(slices.Clip(v), 0, 0, 0, 0)) }
	kept := model.Either(w.Mask == nil, math.MaxUint32, number(w.Mask))
	switch b.Target = model.Either(m.OfFlow, "CONNMARK", "MARK"); {
	case len(w.Value) >= 4:
		m.Value = number(w.Value)
	case !isMark(w.From):
		return
	case w.From.Source == w.Load.Source:
		m.Value, m.Mask = number(w.Xor), ^kept
	default:
		m.Value, m.Copied = number(w.Xor), kept
	}
	b.SetMark = m
}

// other takes an expression that is not decoded. Some are statements, which restrict nothing.
func (b *builder) other(name string) {
	switch name {
	case "notrack":
		b.Target = "NOTRACK"
	case "fwd":
		b.Target = model.TargetForward
	case "last", "dup", "flow_offload":
	default:
		b.unknown(name)
	}
	b.say("["+name+"]", "["+name+"]")
}

// logged is iptables' target that logs to a program.
const logged = "NFLOG"

// log takes a log that nft wrote itself, as iptables does for its target NFLOG. It restricts nothing.
func (b *builder) log(l nft.Log) {
	if l.Grouped {
		b.Target, b.target = logged, "-j "+xt.NFLogText(l.Prefix, l.Group, l.Size, true, l.Threshold)
	} else {
		b.options = append(b.options, "[log]")
	}
	b.native = append(b.native, "log")
	if l.Prefix != "" {
		b.native = append(b.native, "prefix "+strconv.Quote(l.Prefix))
	}
	if l.Grouped {
		b.native = append(b.native, fmt.Sprintf("group %d", l.Group))
	}
}

func (b *builder) extension(e nft.Extension) {
	x := xt.Extension{Name: e.Name, Rev: e.Rev, Info: e.Info, SetName: b.setName}
	if e.Target {
		b.target = xt.Target(&b.PacketRule, x)
		b.native = append(b.native, b.target)
		return
	}
	text := xt.Match(&b.PacketRule, x)
	b.say(text, text)
}

func (b *builder) verdict(v nft.Verdict) {
	if b.Target == logged {
		// No rule of iptables does both.
		b.options = append(b.options, "[log]")
	}
	switch v.Code {
	case nft.Accept, nft.Drop, nft.Return:
		b.Target = strings.ToUpper(v.String())
	case nft.Jump, nft.Goto:
		b.Target, b.Goto = v.Chain, v.Code == nft.Goto
	case nft.Continue, nft.Break:
		return
	default:
		b.Target = "QUEUE"
	}
	b.target = jumpOption(b.Goto) + b.Target
	b.native = append(b.native, v.String())
}

// nat takes a translation that nft wrote itself. Its addresses and ports are named where they are constants.
func (b *builder) nat(n nft.NAT) {
	options := map[string]string{"SNAT": " --to-source ", "DNAT": " --to-destination "}
	b.Target = strings.ToUpper(n.Kind)
	b.target = "-j " + b.Target
	text := n.Kind
	var ports model.PortRange
	if len(n.Port) >= 2 {
		ports.First = binary.BigEndian.Uint16(n.Port)
		ports.Last = binary.BigEndian.Uint16(model.Either(len(n.PortMax) >= 2, n.PortMax, n.Port))
	}
	if b.Target != "DNAT" {
		b.ToPorts = ports
	}
	a, ok := netip.AddrFromSlice(n.Addr)
	switch {
	case ok && ports.First == ports.Last && (n.AddrMax == nil || slices.Equal(n.AddrMax, n.Addr)):
		b.To = netip.AddrPortFrom(a, ports.First)
		to := model.Either(ports.First != 0, b.To.String(), a.String())
		b.target += options[b.Target] + to
		text += " to " + to
	case n.Addr == nil && ports.First != 0:
		text += " to :" + strings.Replace(xt.Ports(ports), ":", "-", 1)
	}
	if n.Map != "" {
		text += b.mapped(n.Map)
	}
	b.native = append(b.native, text)
}

// match takes a comparison, and reports whether it was understood.
func (b *builder) match(m nft.Match) bool {
	if m.Set != "" || m.High == nil && m.Op != expr.CmpOpEq && m.Op != expr.CmpOpNeq {
		return false
	}
	invert := m.Op == expr.CmpOpNeq
	switch m.Load.Source {
	case nft.FromMeta:
		return b.matchMeta(m, invert)
	case nft.FromPayload:
		switch m.Load.Base {
		case expr.PayloadBaseNetworkHeader:
			return b.matchNetwork(m, invert)
		case expr.PayloadBaseTransportHeader:
			return b.matchTransport(m, invert)
		}
	case nft.FromCT:
		return b.matchState(m, invert)
	case nft.FromFIB:
		return b.matchType(m, invert)
	}
	return false
}

func (b *builder) matchMeta(m nft.Match, invert bool) bool {
	if m.High != nil {
		return false
	}
	switch expr.MetaKey(m.Load.Key) {
	case expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME:
		b.matchLink(expr.MetaKey(m.Load.Key) == expr.MetaKeyIIFNAME, model.IfMatch{Name: nft.Interface(m.Value), Not: invert})
	case expr.MetaKeyIIF, expr.MetaKeyOIF:
		// By its index; that of others is another in each namespace.
		const lo = 1
		if len(m.Value) < 4 || m.Mask != nil || binary.NativeEndian.Uint32(m.Value) != lo {
			return false
		}
		b.matchLink(expr.MetaKey(m.Load.Key) == expr.MetaKeyIIF, model.IfMatch{Name: "lo", Not: invert})
	case expr.MetaKeyL4PROTO:
		if len(m.Value) == 0 || m.Mask != nil {
			return false
		}
		b.matchProto(m.Value[0], invert)
	case expr.MetaKeyNFPROTO:
		if len(m.Value) == 0 || invert || b.Family != "inet" || b.NFProto != 0 {
			return false
		}
		switch m.Value[0] {
		case unix.NFPROTO_IPV4:
			b.NFProto = 4
		case unix.NFPROTO_IPV6:
			b.NFProto = 6
		}
	case expr.MetaKeyPROTOCOL:
		if len(m.Value) < 2 || invert || m.Mask != nil || b.Family != "netdev" || b.NFProto != 0 {
			return false
		}
		switch binary.BigEndian.Uint16(m.Value) {
		case unix.ETH_P_IP:
			b.NFProto = 4
		case unix.ETH_P_IPV6:
			b.NFProto = 6
		default:
			return false
		}
	case expr.MetaKeyMARK:
		return b.matchMark(&b.Mark, m, invert, "mark", "meta mark ")
	default:
		return false
	}
	return true
}

// matchMark takes a comparison of the packet's mark, or of its connection's.
func (b *builder) matchMark(to *model.MarkMatch, m nft.Match, invert bool, option, native string) bool {
	if len(m.Value) < 4 || m.Mask != nil && len(m.Mask) < 4 || to.Set || m.High != nil {
		return false
	}
	*to = model.MarkMatch{Value: binary.NativeEndian.Uint32(m.Value), Mask: math.MaxUint32, Set: true, Not: invert}
	text := fmt.Sprintf("0x%x", to.Value)
	if m.Mask != nil {
		to.Mask = binary.NativeEndian.Uint32(m.Mask)
		text += fmt.Sprintf("/0x%x", to.Mask)
	}
	b.say("-m "+option+" "+xt.Not(invert)+"--mark "+text, native+nft.Differs(invert)+text)
	return true
}

// header places the fields of an IP header; addrs are source and destination.
type header struct {
	addrs       [2]uint32
	size, proto uint32
}

var (
	header4 = header{addrs: [2]uint32{12, 16}, size: 4, proto: 9}
	header6 = header{addrs: [2]uint32{8, 24}, size: 16, proto: 6}
)

// ipHeader is the header that the rule matches. A rule of an inet table may show
// it only by the length of what it loads.
func (b *builder) ipHeader(m nft.Match) header {
	long := (b.Family == "inet" || b.Family == "netdev") && b.NFProto == 0 && m.Load.Len == header6.size
	return model.Either(b.Family == "ip6" || b.NFProto == 6 || long, header6, header4)
}

func (b *builder) matchNetwork(m nft.Match, invert bool) bool {
	h, l := b.ipHeader(m), m.Load
	for i, at := range h.addrs {
		if l.Offset != at || l.Len > h.size || l.Len == 0 {
			continue
		}
		if m.High != nil || int(l.Len) > len(m.Value) {
			return false
		}
		a, mask := m.Padded(int(h.size))
		match, text, ok := xt.Addr(a, mask, invert)
		if ok && b.Native {
			text = xt.Host(match.Prefix)
		}
		b.matchAddr(i == 0, match, text, invert, ok)
		return true
	}
	switch {
	case l.Offset == h.proto && l.Len == 1 && m.Mask == nil && m.High == nil && len(m.Value) > 0:
		b.matchProto(m.Value[0], invert)
		return true
	case h == header4 && l.Offset == 6 && l.Len == 2 && slices.Equal(m.Mask, []byte{0x1f, 0xff}) && slices.Equal(m.Value, []byte{0, 0}):
		b.fragment = xt.Not(!invert) + "-f"
		b.unknown(b.fragment)
		b.native = append(b.native, "ip frag-off & 0x1fff "+model.Either(invert, "!=", "==")+" 0")
		return true
	}
	return false
}

func (b *builder) matchTransport(m nft.Match, invert bool) bool {
	l := m.Load
	switch {
	case l.Len == 2 && (l.Offset == 0 || l.Offset == 2) && m.Mask == nil && len(m.Value) >= 2:
		r := model.PortRange{First: binary.BigEndian.Uint16(m.Value)}
		r.Last = r.First
		if m.High != nil {
			if len(m.High) < 2 {
				return false
			}
			r.Last = binary.BigEndian.Uint16(m.High)
		}
		b.matchPorts(l.Offset == 0, r, xt.Ports(r), invert)
		return true
	case l.Len == 1 && l.Offset == 13 && b.Proto == model.TCP && len(m.Mask) == 1 && len(m.Value) == 1 && m.High == nil:
		text := xt.Not(invert) + "--tcp-flags " + xt.TCPFlags(m.Mask[0]) + " " + xt.TCPFlags(m.Value[0])
		b.protoOption(text)
		b.unknown("tcp " + text)
		b.native = append(b.native, text)
		return true
	}
	return false
}

// matchState is `ct state`: a set of bits, any of which is wanted.
func (b *builder) matchState(m nft.Match, invert bool) bool {
	if m.Load.Key == unix.NFT_CT_MARK {
		return b.matchMark(&b.FlowMark, m, invert, "connmark", "ct mark ")
	}
	if m.Load.Key != unix.NFT_CT_STATE || len(m.Mask) != 4 || m.High != nil {
		return false
	}
	// The rule tests whether the masked state differs from zero.
	text := "ct state " + nft.Differs(!invert) + stateNames(binary.NativeEndian.Uint32(m.Mask))
	b.unknown(text)
	b.say("["+text+"]", text)
	return true
}

// stateNames are the states of connection tracking with the given bits.
func stateNames(bits uint32) string {
	return xt.BitNames([]string{"invalid", "established", "related", "new", "", "", "untracked"}, bits, ",")
}

// matchType is `fib daddr type local`, iptables' addrtype.
func (b *builder) matchType(m nft.Match, invert bool) bool {
	const source, dest = 1, 2 // NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR
	if m.Load.Key != unix.NFT_FIB_RESULT_ADDRTYPE || len(m.Value) < 4 || m.Mask != nil || m.High != nil ||
		binary.NativeEndian.Uint32(m.Value) != unix.RTN_LOCAL {
		return false
	}
	side, local := "src", &b.SrcLocal
	switch m.Load.Flags {
	case source:
	case dest:
		side, local = "dst", &b.DstLocal
	default:
		return false
	}
	*local = model.Either(invert, -1, 1)
	b.say("-m addrtype "+xt.Not(invert)+"--"+side+"-type LOCAL", "fib "+side[:1]+"addr type "+nft.Differs(invert)+"local")
	return true
}
