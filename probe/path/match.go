package path

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Fit is how surely a packet matches a rule.
type Fit int

// The grades, the least sure first.
const (
	No Fit = iota
	// Unlikely: it does not match, and is one of several, which may.
	Unlikely
	Maybe
	Yes
)

// Packet is what a packet rule may look at.
type Packet struct {
	Src, Dst netip.Addr
	// Proto is the IP protocol number. It and the ports are 0 where they are not known.
	Proto            uint8
	SrcPort, DstPort uint16
	// Sampled: the ports are those of one of several packets.
	Sampled bool
	// In and Out are the links that the packet may have had; none where they
	// are not known. An empty name stands for no link at all.
	In, Out []string
	// SrcLocal and DstLocal say that an address is one of the node's own.
	SrcLocal, DstLocal bool
	// Mark is the packet's, Flow its connection's. Later: it is not the first packet of a connection, which alone the nat tables see.
	Mark, Flow Mark
	Later      bool
	// State is connection tracking's: new, established, related or invalid. ICMP are an error's type and code. They are empty where
	// they are not known.
	State, ICMP string
	// New: the flow began in the window.
	New bool
	// Sets are those that rules look the packet up in; without them that is not known.
	Sets Sets
}

// Of is the packet as one of some flows that are known. Each datagram may be a flow's first.
func (p Packet) Of(flows ...*model.Flow) Packet {
	for i, f := range flows {
		if i == 0 {
			p.Flow.Value = f.Mark
		}
		p.Later, p.Flow.Loose = f.Proto == model.TCP, p.Flow.Loose|f.Mark^p.Flow.Value
	}
	return p
}

// Fits says how surely the packet matches the rule.
func (p *Packet) Fits(r *model.PacketRule) Fit {
	if r.NFProto == 4 && isIPv6(p.Dst) || r.NFProto == 6 && !isIPv6(p.Dst) ||
		!r.Src.Matches(p.Src) || !r.Dst.Matches(p.Dst) ||
		r.DstLocal != 0 && (r.DstLocal > 0) != p.DstLocal || r.SrcLocal != 0 && (r.SrcLocal > 0) != p.SrcLocal {
		return No
	}
	f := min(linkFits(r.In, p.In), linkFits(r.Out, p.Out),
		p.portFits(r.SrcPorts, p.SrcPort), p.portFits(r.DstPorts, p.DstPort), p.Mark.fits(r.Mark), p.Flow.fits(r.FlowMark))
	if r.Proto != 0 {
		f = min(f, known(p.Proto != 0, (r.Proto == p.Proto) != r.ProtoNot))
	}
	for _, text := range r.Unknown {
		f = min(f, p.restFits(text))
	}
	for i := range r.Lookups {
		if l := &r.Lookups[i]; f != No && !l.Map {
			f = min(f, p.finds(r, l))
		}
	}
	return f
}

// known is the grade of a match of something that may not be known.
func known(known, matches bool) Fit {
	switch {
	case !known:
		return Maybe
	case matches:
		return Yes
	}
	return No
}

func linkFits(m model.IfMatch, links []string) Fit {
	if m.Name == "" {
		return Yes
	}
	matched := 0
	for _, l := range links {
		if m.Matches(l) {
			matched++
		}
	}
	return known(len(links) > 0 && (matched == 0 || matched == len(links)), matched > 0)
}

func (p *Packet) portFits(ranges []model.PortRange, port uint16) Fit {
	if ranges == nil {
		return Yes
	}
	in := func(r model.PortRange) bool { return r.Has(port) }
	fit := known(port != 0, slices.ContainsFunc(ranges, in))
	return model.Either(p.Sampled, max(Unlikely, min(fit, Maybe)), fit)
}

// restFits decodes the two kinds of further match that can be judged: the type of an ICMP error, and the state of connection
// tracking.
func (p *Packet) restFits(text string) Fit {
	if _, kind, found := strings.Cut(text, "-type "); found && p.ICMP != "" && !strings.Contains(text, "! ") {
		return known(true, kind == "any" || strings.HasPrefix(p.ICMP+"/", kind+"/"))
	}
	if kind, found := strings.CutPrefix(text, "@th,0,8 0x0"); found && p.ICMP != "" {
		return known(true, strings.HasPrefix(p.ICMP, kind))
	}
	state := p.State
	for _, option := range []string{"--ctstate ", "--state ", "ct state "} {
		before, words, found := strings.Cut(text, option)
		if !found || state == "" {
			continue
		}
		not := strings.HasSuffix(strings.TrimSpace(before), "!")
		if rest, ok := strings.CutPrefix(words, "!= "); ok {
			words, not = rest, true
		}
		words = strings.TrimSpace(words)
		return known(!strings.Contains(words, " "), slices.Contains(strings.Split(strings.ToLower(words), ","), state) != not)
	}
	return Maybe
}

// EtherTypes that rules and frames have.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

// Frame is what a bridge rule may look at. MACs are zero where they are not known; the links are as in Packet.
type Frame struct {
	Src, Dst                       netip.Addr
	SrcMAC, DstMAC                 model.MAC
	In, Out, LogicalIn, LogicalOut []string
	// ARP is the operation of an ARP message, 0 for a packet.
	ARP uint16
}

// Fits says how surely the frame matches the rule.
func (f *Frame) Fits(r *model.FrameRule) Fit {
	etherType := uint16(etherIPv4)
	switch {
	case f.ARP != 0:
		etherType = etherARP
	case isIPv6(f.Dst):
		etherType = etherIPv6
	}
	if r.EtherType != 0 && (r.EtherType == etherType) == r.EtherTypeNot {
		return No
	}
	src, dst := r.IPSrc, r.IPDst
	if f.ARP != 0 {
		if r.ARPOp != 0 && (r.ARPOp == f.ARP) == r.ARPOpNot {
			return No
		}
		src, dst = r.ARPSrc, r.ARPDst
	} else if r.ARPOp != 0 || !r.ARPSrc.IsZero() || !r.ARPDst.IsZero() {
		return No
	}
	m := min(addrFits(src, f.Src), addrFits(dst, f.Dst), linkFits(r.In, f.In),
		linkFits(r.Out, f.Out), linkFits(r.LogicalIn, f.LogicalIn), linkFits(r.LogicalOut, f.LogicalOut),
		macFits(r.SrcMAC, f.SrcMAC), macFits(r.DstMAC, f.DstMAC))
	if len(r.Unknown) > 0 {
		m = min(m, Maybe)
	}
	return m
}

func addrFits(m model.AddrMatch, a netip.Addr) Fit {
	return known(m.IsZero() || a.IsValid(), m.Matches(a))
}

func macFits(m model.MACMatch, a model.MAC) Fit { return known(!m.Set || !a.IsZero(), m.Matches(a)) }

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }
