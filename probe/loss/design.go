// Package loss tells which packets that the kernel freed were lost, and what excuses the others.
package loss

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// allowances are what the rules of a healthy node drop by design.
type allowances []allowance

// allowance is what one rule drops by design.
type allowance struct {
	takes func(*model.Drop) bool
	// left is how many packets the rule counted, less those taken.
	left uint64
}

// take reports whether the drop is by design, and uses up what it takes.
func (list allowances) take(d *model.Drop) bool {
	for i := range list {
		if d.Netfilter() && list[i].left >= d.Packets && list[i].takes(d) {
			list[i].left -= d.Packets
			return true
		}
	}
	return false
}

// byDesign finds the rules that drop on a healthy node: kubelet's
// deduplication of frames that a promiscuous bridge delivers twice, and AKS's
// bans of the wire server and of the metadata service. A rule whose counter
// restarted in the window may have dropped any number.
func byDesign(s *model.Snapshot) allowances {
	var out allowances
	add := func(c model.Counter, takes func(*model.Drop) bool) {
		if c.Restarted {
			c.Delta = math.MaxUint64
		}
		out = append(out, allowance{takes, c.Delta})
	}
	for i := range s.FrameRules {
		if r := &s.FrameRules[i]; Deduplicates(s, r) {
			add(r.Counter, func(d *model.Drop) bool { return r.IPSrc.Matches(d.Src) && r.Out.Matches(d.Link) })
		}
	}
	for i := range s.PacketRules {
		if r := &s.PacketRules[i]; Bans(r) {
			add(r.Counter, func(d *model.Drop) bool {
				return r.Dst.Matches(d.Dst) && r.Src.Matches(d.Src) && (r.Proto == 0 || r.Proto == d.Proto)
			})
		}
	}
	return out
}

// Deduplicates reports whether a rule drops the second copy of what the node
// itself sent through its bridge, as kubelet's rules do.
func Deduplicates(s *model.Snapshot, r *model.FrameRule) bool {
	return r.Target == model.TargetDrop && r.SrcMAC.Set && !r.IPSrc.IsZero() && slices.ContainsFunc(s.Links, func(l model.Link) bool {
		return l.MAC == r.SrcMAC.Addr && (l.Master != 0 || l.Kind == "bridge")
	})
}

// WireServer is Azure's address for DNS, health probes and the guest
// agent. Pods may not reach all of it, by design of AKS.
var WireServer = netip.AddrFrom4([4]byte{168, 63, 129, 16})

// tcp is the protocol's number.
const tcp = 6

// wireServerPorts are those of it that pods may not reach.
var wireServerPorts = []uint16{80, 32526}

// Bans reports whether a rule is one of AKS's own bans. A ban of the
// wire server's other ports is not: its DNS is for everybody.
func Bans(r *model.PacketRule) bool {
	if r.Target != "DROP" && r.Target != "REJECT" || r.Dst.Not || !r.Dst.Prefix.IsSingleIP() || r.ProtoNot {
		return false
	}
	if r.Dst.Prefix.Addr() != WireServer {
		return strings.HasPrefix(r.Comment, "AKS managed")
	}
	return r.Proto == tcp && len(r.DstPorts) > 0 && !slices.ContainsFunc(r.DstPorts, func(p model.PortRange) bool {
		return p.First != p.Last || !slices.Contains(wireServerPorts, p.First)
	})
}
