package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Backend is the kernel subsystem that holds a rule.
type Backend string

// The backends.
const (
	NFT    Backend = "nft"
	Legacy Backend = "legacy"
)

// PassedBy reports whether pods' packets do not come to a base chain: programs forward them past its hook.
func (s *Snapshot) PassedBy(c *Chain) bool {
	return s.Node.PassedBy && slices.Contains([]string{"PREROUTING", "FORWARD", "POSTROUTING"}, c.Hook)
}

// Counter is a rule's count. Packets and Bytes are the kernel's totals; Delta is how many packets were added between
// the window's first and last reading.
type Counter struct {
	Packets, Bytes uint64
	Delta          uint64
	// Kept is true for a native nft rule that has a counter; those of iptables and ebtables always have one.
	Kept bool
	// Restarted is true where the rule was rewritten in the window, its counter was zeroed, or it was not read when the
	// window began. Delta is then the least that it counted.
	Restarted bool
	// Added is true where the rule is not known to have been there when the window began.
	Added bool
}

// Covers reports whether the counter of a rule, native to nft or not, covers the window.
func (c Counter) Covers(native bool) bool {
	return !c.Restarted && (!native || c.Kept || c.Packets > 0)
}

// Unused reports whether it covers the window and counted nothing.
func (c Counter) Unused(native bool) bool { return c.Covers(native) && c.Delta == 0 }

// IfMatch matches an interface name. A Name that ends in '+' matches every
// name that starts with what is before it. An empty Name matches all.
type IfMatch struct {
	Name string `redact:"match"`
	Not  bool
}

// Matches reports whether the link's name satisfies the match.
func (m IfMatch) Matches(link string) bool {
	if m.Name == "" {
		return true
	}
	start, open := strings.CutSuffix(m.Name, "+")
	return (m.Name == link || open && strings.HasPrefix(link, start)) != m.Not
}

// AddrMatch matches an address. The zero Prefix matches all.
type AddrMatch struct {
	Prefix netip.Prefix
	Not    bool
}

// IsZero reports whether the match says nothing.
func (m AddrMatch) IsZero() bool { return !m.Prefix.IsValid() }

// Addr is the one address that the match wants; not valid where it wants more, or all but one.
func (m AddrMatch) Addr() netip.Addr {
	return Either(m.Not || !m.Prefix.IsSingleIP(), netip.Addr{}, m.Prefix.Addr())
}

// Matches reports whether the address satisfies the match.
func (m AddrMatch) Matches(a netip.Addr) bool { return m.IsZero() || m.Prefix.Contains(a) != m.Not }

// MACMatch matches an Ethernet address under a mask. Unset matches all.
type MACMatch struct {
	Addr, Mask MAC
	Set, Not   bool
}

// Matches reports whether the address satisfies the match.
func (m MACMatch) Matches(a MAC) bool {
	if !m.Set {
		return true
	}
	same := true
	for i := range a {
		same = same && a[i]&m.Mask[i] == m.Addr[i]&m.Mask[i]
	}
	return same != m.Not
}

// MarkMatch matches a packet's mark under a mask. Unset matches all.
type MarkMatch struct {
	Value, Mask uint32
	Set, Not    bool
}

// MarkWrite is what a rule does to a packet's mark or, with OfFlow, to its connection's: it clears the bits of Mask, and flips
// those of Value then, and those of Copied that the other of the two marks has. Zero: that is not known.
type MarkWrite struct {
	Value, Mask, Copied uint32
	OfFlow              bool `json:",omitzero"`
}

// FrameTarget is what an ebtables rule does with a frame.
type FrameTarget string

// The targets: decisions, jumps, and those that change or answer a frame. The
// name of another target is in FrameRule.TargetName.
const (
	TargetAccept   FrameTarget = "ACCEPT"
	TargetDrop     FrameTarget = "DROP"
	TargetContinue FrameTarget = "CONTINUE"
	TargetReturn   FrameTarget = "RETURN"
	TargetJump     FrameTarget = "jump"
	TargetDNAT     FrameTarget = "dnat"
	TargetSNAT     FrameTarget = "snat"
	TargetARPReply FrameTarget = "arpreply"
	TargetRedirect FrameTarget = "redirect"
	TargetOther    FrameTarget = "other"
)

// FrameRule is one ebtables rule, or a native nft rule of the bridge family.
type FrameRule struct {
	Backend Backend
	// Table and Chain as ebtables names them: nat PREROUTING.
	Table string `redact:"keep"`
	Chain string `redact:"text"`
	// Number is the rule's place in its chain, from 1.
	Number int
	// Text is the rule as `ebtables -L` prints it, without the chain; what `ebtables -D CHAIN` takes.
	Text string `redact:"ruleText"`
	// Handle is what nft deletes the rule by, 0 where nft does not hold it.
	Handle uint64
	// Native is true for a rule that nft wrote and ebtables does not know:
	// its Text is nft's, and only its Handle deletes it.
	Native bool

	In, Out IfMatch
	// LogicalIn and LogicalOut match the bridge instead of the port.
	LogicalIn, LogicalOut IfMatch
	// EtherType is 0x0800 for IPv4, 0x0806 for ARP, 0 for any.
	EtherType      uint16
	EtherTypeNot   bool
	SrcMAC, DstMAC MACMatch
	// IPSrc and IPDst match the IPv4 or IPv6 header.
	IPSrc, IPDst AddrMatch
	// ARPOp is 1 for a request, 2 for a reply, 0 for any.
	ARPOp          uint16
	ARPOpNot       bool
	ARPSrc, ARPDst AddrMatch
	// Unknown names matches that were not decoded. A rule with any may match less than the fields above say.
	Unknown []string `redact:"text"`

	Target FrameTarget
	// TargetName is the jump's chain, or the name of another target.
	TargetName string `redact:"text"`
	// MAC is what dnat, snat and arpreply write.
	MAC MAC
	// Verdict is the decision after such a target: ACCEPT, DROP, CONTINUE or RETURN.
	Verdict FrameTarget

	Counter Counter
}

// PacketRule is one iptables rule, or a native nft rule of the ip, ip6 or inet family.
type PacketRule struct {
	Backend Backend
	// Family is that of the table: "ip", "ip6" or "inet".
	Family string `redact:"keep"`
	// NFProto is the IP version that a rule of an inet table matches: 4 or 6,
	// 0 for both. It is 0 in the other tables, which see one version only.
	NFProto      int
	Table, Chain string `redact:"text"`
	Number       int
	// Text is the rule as `iptables -S` prints it, without "-A CHAIN".
	Text string `redact:"ruleText"`
	// Handle and Native are as in FrameRule.
	Handle  uint64
	Native  bool
	Comment string `redact:"comment"`

	In, Out  IfMatch
	Src, Dst AddrMatch
	// Proto is the IP protocol number, 0 for any.
	Proto    uint8
	ProtoNot bool
	// SrcPorts and DstPorts are inclusive ranges; nil for any.
	SrcPorts, DstPorts []PortRange
	// DstLocal and SrcLocal are `-m addrtype --dst-type LOCAL`: +1 wants LOCAL, -1 wants anything else, 0 is no match.
	DstLocal, SrcLocal int
	// Mark matches the packet's mark, FlowMark its connection's.
	Mark     MarkMatch
	FlowMark MarkMatch `json:",omitzero"`
	// Unknown names matches that were not decoded.
	Unknown []string `redact:"text"`
	// Lookups are what the rule looks up in sets and maps of its table.
	Lookups []Lookup
	// Map is the nft map whose elements decide where the packet goes and are not known. It is empty where there is none.
	Map string `redact:"text"`

	// Target is ACCEPT, DROP, RETURN, REJECT, MASQUERADE, SNAT, DNAT, a
	// chain's name, or empty for a rule that only counts.
	Target string `redact:"text"`
	Goto   bool
	// To is the address that SNAT or DNAT writes, where it is a single one.
	To netip.AddrPort
	// SetMark is what MARK and CONNMARK write.
	SetMark MarkWrite
	// ToPorts are those that MASQUERADE, SNAT or REDIRECT may give; zero for any.
	ToPorts PortRange

	Counter Counter
}

// TargetForward is nft's fwd, which sends packets of a link's hook out by another link.
const TargetForward = "FWD"

// Lookup is what a rule of nft looks up in a set, which is a match, or in a map, whose element decides.
type Lookup struct {
	Set string `redact:"text"`
	// Key are the parts of the packet that are looked up, in nft's words: "ip daddr", "meta l4proto", "th dport".
	Key []string `redact:"keep"`
	Not bool
	Map bool
	// Element is the key of one element of the map, in a rule that stands for it alone.
	Element string `redact:"text"`
	// Shared: the map has other elements.
	Shared bool
}

// Set is a set or map of nft whose elements were read.
type Set struct {
	// Family is that of the table: "ip", "ip6" or "inet".
	Family string `redact:"keep"`
	Table  string `redact:"text"`
	Name   string `redact:"text"`
	// Anonymous: it is part of the one rule that uses it.
	Anonymous bool
	Elements  []Element
}

// Element is one of a set, in nft's words: the Key "10.96.0.1 . tcp . 443", "*" for what
// no other has, and in a map the Value "goto service-443" or "10.244.0.7 . 8443".
type Element struct {
	Key, Value string `redact:"element"`
	Comment    string `redact:"comment"`
}

// PortRange is an inclusive range of ports.
type PortRange struct{ First, Last uint16 }

// Has reports whether a port is in the range.
func (r PortRange) Has(port uint16) bool { return r.First <= port && port <= r.Last }

func (r PortRange) String() string {
	return Either(r.First == r.Last, fmt.Sprint(r.First), fmt.Sprintf("%d-%d", r.First, r.Last))
}

// Chain is a chain of iptables, ebtables or nft.
type Chain struct {
	Backend Backend
	// Family is "ip", "ip6", "inet", "bridge", "netdev".
	Family      string `redact:"keep"`
	Table, Name string `redact:"text"`
	// Hook is PREROUTING, FORWARD, …; empty for a chain that is only jumped to. Priority orders the chains of one hook.
	// An INGRESS or EGRESS is that of Devices, separated by commas.
	Hook     string `redact:"keep"`
	Devices  string `redact:"links"`
	Priority int
	// Policy is ACCEPT or DROP for a chain with a hook, and for a chain of ebtables' users that has one.
	Policy  string `redact:"keep"`
	Counter Counter
}

// SendsToFabric reports whether the rule rewrites the destination MAC of every frame that comes in by the links it
// matches, as azure-vnet's tunnel mode does to send pods' packets to the fabric.
func (r *FrameRule) SendsToFabric() bool {
	return r.Table == "nat" && r.Chain == "PREROUTING" && r.Target == TargetDNAT && len(r.Unknown) == 0 &&
		r.EtherType == 0 && r.IPDst.IsZero() && r.ARPDst.IsZero() && strings.HasSuffix(r.In.Name, "+") && !r.In.Not
}

// CNIMasqueradeTable is the nft table of the family inet in which the CNI
// project's plugins masquerade pods, since their version 1.6.
const CNIMasqueradeTable = "cni_plugins_masquerade"

// CNIChain reports whether a chain is one of those that the CNI project's
// plugins make for each pod that they masquerade: CNI- and 24 hex digits.
func CNIChain(name string) bool {
	hex, ok := strings.CutPrefix(name, "CNI-")
	return ok && len(hex) == 24 && strings.Trim(hex, "0123456789abcdef") == ""
}

// Concerns reports whether a rule's addresses match packets from one to another.
func (r *PacketRule) Concerns(from, to netip.Addr) bool {
	return r.Src.Matches(from) && r.Dst.Matches(to)
}

// IsNotrack reports whether the rule excludes packets from connection tracking.
func (r *PacketRule) IsNotrack() bool {
	return r.Target == "NOTRACK" || r.Target == "CT" && strings.Contains(r.Text, "--notrack")
}

// SetsTTL reports whether the rule sets the TTL or hop limit of packets.
func (r *PacketRule) SetsTTL() bool { return r.Target == "TTL" || r.Target == "HL" }

// Limits reports whether the rule matches by how much there is: a rate, a number of connections, a quota.
func (r *PacketRule) Limits() bool {
	return slices.ContainsFunc(r.Unknown, func(match string) bool {
		name, _, _ := strings.Cut(match, " ")
		return slices.Contains([]string{"limit", "hashlimit", "connlimit", "recent", "quota", "dynset"}, name)
	})
}

// Untracks reports whether a rule excluded packets from connection tracking in the window, or had it track them in
// another zone.
func (r *PacketRule) Untracks() bool {
	return (r.IsNotrack() || r.Target == "CT" && strings.Contains(r.Text, "zone")) && !r.Counter.Unused(r.Native)
}
