package xt

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

var targets = map[string]decoder{
	"CHECKSUM": checksum, "CONNMARK": setConnMark, "CT": ct, "DNAT": nat("--to-destination"),
	"LOG": logTarget, "MARK": setMark, "MASQUERADE": nat("--to-ports"), "NFLOG": nfLog, "NFQUEUE": nfQueue,
	"NOTRACK": plain, "REDIRECT": nat("--to-ports"), "REJECT": reject, "SNAT": nat("--to-source"),
	"TCPMSS": tcpMSS, "TPROXY": tProxy, "TRACE": plain,
}

// plain is a target without options.
func plain(*model.PacketRule, uint32, *Bytes) (string, string) { return "", "" }

// Flags of struct nf_nat_range.
const (
	natAddresses   = 1 << 0
	natPorts       = 1 << 1
	natRandom      = 1 << 2
	natPersistent  = 1 << 3
	natRandomFully = 1 << 4
	natOffset      = 1 << 5
)

// nat decodes the targets that translate. The kernel has two layouts: the old
// one of IPv4 with a count of ranges in front (always 1), and nf_nat_range.
func nat(option string) decoder {
	return func(r *model.PacketRule, rev uint32, i *Bytes) (string, string) {
		var flags uint32
		var low, high netip.Addr
		var first, last, base uint16
		if rev == 0 && r.Family != "ip6" {
			flags = i.U32(4)
			low, high = i.v4(8), i.v4(12)
			first, last = i.BE16(16), i.BE16(18)
		} else {
			flags = i.U32(0)
			low, high = i.ip(4, r.Family), i.ip(20, r.Family)
			first, last = i.BE16(36), i.BE16(38)
			if flags&natOffset != 0 {
				base = i.BE16(40)
			}
		}
		if i.Short {
			return "", ""
		}
		if flags&natAddresses == 0 {
			low, high = netip.Addr{}, netip.Addr{}
		}
		if flags&natPorts == 0 {
			first, last = 0, 0
		}
		if low.IsValid() && low == high && first == last {
			r.To = netip.AddrPortFrom(low, first)
		}
		if r.Target != "DNAT" {
			r.ToPorts = model.PortRange{First: first, Last: last}
		}
		to := natText(low, high, first, last, base, r.Target == "SNAT" || r.Target == "DNAT")
		return Join(when(to != "", option+" "+to),
			when(flags&natRandom != 0, "--random"),
			when(flags&natRandomFully != 0, "--random-fully"),
			when(flags&natPersistent != 0, "--persistent")), ""
	}
}

// natText formats what an address is translated to: "10.0.0.1-10.0.0.9:80-90".
// MASQUERADE and REDIRECT print the ports alone, without the colon.
func natText(low, high netip.Addr, first, last, base uint16, colon bool) string {
	text := ""
	if low.IsValid() {
		text = low.String()
		if high != low {
			text += "-" + high.String()
		}
		if low.Is6() && first != 0 {
			text = "[" + text + "]"
		}
	}
	if first == 0 {
		return text
	}
	if colon {
		text += ":"
	}
	text += fmt.Sprint(first)
	if last != first {
		text += fmt.Sprintf("-%d", last)
	}
	if base != 0 {
		text += fmt.Sprintf("/%d", base)
	}
	return text
}

func setMark(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	r.SetMark = model.MarkWrite{Value: i.U32(0), Mask: i.U32(4)}
	return fmt.Sprintf("--set-xmark 0x%x/0x%x", r.SetMark.Value, r.SetMark.Mask), ""
}

func setConnMark(r *model.PacketRule, rev uint32, i *Bytes) (string, string) {
	mark, ctMask, nfMask := i.U32(0), i.U32(4), i.U32(8)
	mode := i.U8(12)
	if rev >= 2 {
		// Revision 2 has a shift in front of the mode.
		if i.U8(13) != 0 {
			return Undecoded, ""
		}
		mode = i.U8(14)
	}
	switch mode {
	case 0:
		r.SetMark = model.MarkWrite{Value: mark, Mask: ctMask, OfFlow: true}
		return fmt.Sprintf("--set-xmark 0x%x/0x%x", mark, ctMask), ""
	case 1, 2:
		verb := []string{"save", "restore"}[mode-1]
		r.SetMark = model.Either(mode == 1, model.MarkWrite{Mask: ctMask, Copied: nfMask, OfFlow: true},
			model.MarkWrite{Mask: nfMask, Copied: ctMask})
		return fmt.Sprintf("--%s-mark --nfmask 0x%x --ctmask 0x%x", verb, nfMask, ctMask), ""
	}
	return Undecoded, ""
}

// Replies of REJECT, by number (enum ipt_reject_with, ip6t_reject_with).
var (
	rejects4 = []string{
		"icmp-net-unreachable", "icmp-host-unreachable", "icmp-proto-unreachable", "icmp-port-unreachable",
		"", "icmp-net-prohibited", "icmp-host-prohibited", "tcp-reset", "icmp-admin-prohibited",
	}
	rejects6 = []string{
		"icmp6-no-route", "icmp6-adm-prohibited", "", "icmp6-addr-unreachable", "icmp6-port-unreachable",
		"", "tcp-reset", "icmp6-policy-fail", "icmp6-reject-route",
	}
)

func reject(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	names := model.Either(r.Family == "ip6", rejects6, rejects4)
	if n := i.U32(0); n < uint32(len(names)) && names[n] != "" {
		return "--reject-with " + names[n], ""
	}
	return Undecoded, ""
}

func logTarget(_ *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	level, bits, prefix := i.U8(0), i.U8(1), i.Text(2, 30)
	return Join(
		when(prefix != "", "--log-prefix "+Quote(prefix)),
		when(level != 4, fmt.Sprintf("--log-level %d", level)),
		flags(bits, "--log-tcp-sequence", "--log-tcp-options", "--log-ip-options", "--log-uid", "", "--log-macdecode"),
	), ""
}

func tcpMSS(_ *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	if mss := i.U16(0); mss != 0xffff {
		return fmt.Sprintf("--set-mss %d", mss), ""
	}
	return "--clamp-mss-to-pmtu", ""
}

// ct decodes the forms without events, helpers and timeouts, for a zone of both directions.
func ct(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	const noTrack, alias = 1 << 0, 1 << 1
	flags, zone := i.U16(0), i.U16(2)
	if !i.Short && flags == 0 && zone != 0 && i.U32(4)|i.U32(8) == 0 && i.Text(12, 16) == "" {
		return fmt.Sprintf("--zone %d", zone), ""
	}
	if i.Short || flags&noTrack == 0 || flags&^(noTrack|alias) != 0 || zone != 0 {
		return Undecoded, ""
	}
	if flags&alias != 0 {
		r.Target = "NOTRACK"
		return "", ""
	}
	return "--notrack", ""
}

// checksum is against hardware that computes that of tunnelled packets wrongly.
func checksum(_ *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	return when(i.U8(0)&1 != 0, "--checksum-fill"), ""
}

// nfLog is Calico's, which logs flows so.
func nfLog(_ *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	const copyLength = 1
	flags := i.U16(8)
	return strings.TrimPrefix(NFLogText(i.Text(12, 64), i.U16(4), i.U32(0), flags&copyLength != 0, i.U16(6)), "NFLOG "), ""
}

// NFLogText is the target NFLOG. The size of what is copied is a length, or, from old
// iptables, a range that never worked. A size of 0 is all.
func NFLogText(prefix string, group uint16, size uint32, isLength bool, threshold uint16) string {
	option := model.Either(isLength, "--nflog-size", "--nflog-range")
	return Join(
		"NFLOG",
		when(prefix != "", "--nflog-prefix "+Quote(prefix)),
		when(group != 0, fmt.Sprintf("--nflog-group %d", group)),
		when(size != 0, fmt.Sprintf("%s %d", option, size)),
		when(threshold > 1, fmt.Sprintf("--nflog-threshold %d", threshold)),
	)
}

// nfQueue hands packets to a program.
func nfQueue(_ *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	first, count, bits := i.U16(0), i.U16(2), i.U16(4)
	queues := fmt.Sprintf("--queue-num %d", first)
	if count > 1 {
		queues = fmt.Sprintf("--queue-balance %d:%d", first, first+count-1)
	}
	return Join(queues, flags(bits, "--queue-bypass", "--queue-cpu-fanout")), ""
}

// tProxy is Cilium's, which hands connections to its proxy.
func tProxy(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	mask, value, to, port := i.U32(0), i.U32(4), i.ip(8, r.Family), i.BE16(24)
	return fmt.Sprintf("--on-port %d --on-ip %s --tproxy-mark 0x%x/0x%x", port, to, value, mask), ""
}
