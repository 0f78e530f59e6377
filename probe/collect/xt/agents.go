package xt

import (
	"cmp"
	"fmt"
	"math/bits"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// The matches here are those of node agents. None says anything that a rule's
// fields can hold, so all of their text is unsaid.

// unsaid makes a decoder of a function whose text no field can hold.
func unsaid(text func(r *model.PacketRule, rev uint32, i *Bytes) string) decoder {
	return func(r *model.PacketRule, rev uint32, i *Bytes) (string, string) {
		t := text(r, rev, i)
		return t, cmp.Or(t, "match")
	}
}

// nfAcct is kube-proxy's, which counts packets so. The object may have a quota,
// behind which the rule no longer matches.
func nfAcct(_ *model.PacketRule, _ uint32, i *Bytes) string {
	return "--nfacct-name " + Quote(i.Text(0, 32))
}

// ipSet is what Calico, Azure NPM and kube-proxy in its mode ipvs write. A rule holds the number of a set, and
// the kernel knows its name; without it the text is for reading only. The directions are bits above the lowest,
// which inverts.
func ipSet(_ *model.PacketRule, _ uint32, i *Bytes) string {
	number, dims, flags := i.U16(0), int(i.U8(2)), i.U8(3)
	if dims > 6 {
		return Undecoded
	}
	var dirs []string
	for d := 1; d <= dims; d++ {
		dirs = append(dirs, model.Either(flags&(1<<d) != 0, "src", "dst"))
	}
	name := fmt.Sprintf("[set %d]", number)
	if i.setName != nil {
		if known := i.setName(number); known != "" {
			name = Quote(known)
		}
	}
	return Not(flags&1 != 0) + "--match-set " + name + " " + strings.Join(dirs, ",")
}

// recent keeps a service's client at its endpoint (kube-proxy's session affinity).
func recent(r *model.PacketRule, _ uint32, i *Bytes) string {
	const check, set, update, remove, ttl, reap = 1, 2, 4, 8, 16, 32
	seconds, hits, does, invert := i.U32(0), i.U32(4), i.U8(8), i.U8(9)
	name, side, mask := i.Text(10, 200), i.U8(210), i.ip(212, r.Family).String()
	return Join(
		strings.TrimSpace(Not(invert != 0)),
		when(does&set != 0, "--set"), when(does&check != 0, "--rcheck"),
		when(does&update != 0, "--update"), when(does&remove != 0, "--remove"),
		when(seconds != 0, fmt.Sprintf("--seconds %d", seconds)), when(does&reap != 0, "--reap"),
		when(hits != 0, fmt.Sprintf("--hitcount %d", hits)), when(does&ttl != 0, "--rttl"),
		"--name "+Quote(name), "--mask "+mask, model.Either(side != 0, "--rdest", "--rsource"),
	)
}

// rpFilter is Calico's, against spoofed addresses.
func rpFilter(_ *model.PacketRule, _ uint32, i *Bytes) string {
	return flags(i.U8(0), "--loose", "--validmark", "--accept-local", "--invert")
}

// socket is Cilium's, in front of its proxy.
func socket(_ *model.PacketRule, _ uint32, i *Bytes) string {
	return flags(i.U8(0), "--transparent", "--nowildcard", "--restore-skmark")
}

// owner is that of Azure's agent, which alone may reach the host's address.
func owner(_ *model.PacketRule, _ uint32, i *Bytes) string {
	o := options{set: uint32(i.U8(16)), invert: uint32(i.U8(17))}
	ids := func(at int) string {
		from, to := i.U32(at), i.U32(at+4)
		return fmt.Sprint(from) + when(from != to, fmt.Sprintf("-%d", to))
	}
	o.add(4, "--socket-exists")
	o.add(1, "--uid-owner "+ids(0))
	o.add(2, "--gid-owner "+ids(8))
	o.add(8, "--suppl-groups")
	return o.String()
}

// connLimit is Calico's, for a limit of connections by annotation.
func connLimit(r *model.PacketRule, _ uint32, i *Bytes) string {
	const inverted, dest = 1, 2
	ones := 0
	for _, b := range i.Slice(0, model.Either(r.Family == "ip6", 16, 4)) {
		ones += bits.OnesCount8(b)
	}
	limit, flags := i.U32(16), i.U32(20)
	option := model.Either(flags&inverted != 0, "--connlimit-upto", "--connlimit-above")
	side := model.Either(flags&dest != 0, "--connlimit-daddr", "--connlimit-saddr")
	return fmt.Sprintf("%s %d --connlimit-mask %d %s", option, limit, ones, side)
}

// sctp has the destination's ports first, and nothing of what it is not asked for.
func sctp(r *model.PacketRule, _ uint32, i *Bytes) (string, string) {
	const source, dest, chunks = 1, 2, 4
	flags, invert := i.U32(284), i.U32(288)
	var src, srcUnsaid, dst, dstUnsaid string
	if flags&source != 0 {
		src, srcUnsaid = ports(&r.SrcPorts, i, 4, "--sport", invert&source != 0)
	}
	if flags&dest != 0 {
		dst, dstUnsaid = ports(&r.DstPorts, i, 0, "--dport", invert&dest != 0)
	}
	types := when(flags&chunks != 0, Undecoded)
	return Join(src, dst, types), Join(srcUnsaid, dstUnsaid, types)
}

func pktType(_ *model.PacketRule, _ uint32, i *Bytes) string {
	names := map[uint32]string{0: "unicast", 1: "broadcast", 2: "multicast"}
	return Not(i.U32(4) != 0) + "--pkt-type " + cmp.Or(names[i.U32(0)], Undecoded)
}
