package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// BridgeRuleDrop is the code of this finding.
const BridgeRuleDrop model.Code = "BridgeRuleDrop"

var bridgeRuleDrop = kind{
	code:     BridgeRuleDrop,
	severity: model.Warning,
	find:     findBridgeRuleDrop,
	ends:     []model.HopKind{model.HopBridge, model.HopNeighbor, model.HopPod}, // who asks hears nothing
}

// routesInstead is the table in which DROP means to route the frame.
const routesInstead = "broute"

func findBridgeRuleDrop(v *view) []finding {
	var drops []*model.Drop
	for d := range model.Each(v.Traffic.Drops) {
		if d.Netfilter() && (d.Netns == 0 || d.Netns == v.Node.Netns) && v.pod(d).IsValid() && !v.explained(d) && v.drops.Class(d) != loss.ByDesign {
			drops = append(drops, d)
		}
	}
	var out []finding
	// left are the packets of each drop that no rule has been found for.
	left := map[*model.Drop]uint64{}
	for _, d := range drops {
		left[d] = d.Packets
	}
	for _, r := range droppingRules(v) {
		mine := map[*model.Drop]uint64{}
		budget := r.Counter.Delta
		for _, d := range drops {
			if n := min(left[d], budget); n > 0 && meets(v, r, d) {
				mine[d] = n
				left[d] -= n
				budget -= n
			}
		}
		if found, ok := bridgeRule(v, r, mine); ok {
			found.claims = cutOff(v, r, mine, left, found.Pods)
			out = append(out, found)
		}
	}
	return out
}

// droppingRules are the rules of bridges that dropped in the window and should
// not, and behind them the policies, as rules that match all.
func droppingRules(v *view) []*model.FrameRule {
	var out []*model.FrameRule
	for r := range model.Each(v.FrameRules) {
		if r.Target == model.TargetDrop && r.Table != routesInstead && r.Counter.Delta >= minDrops && !loss.Deduplicates(v.Snapshot, r) {
			out = append(out, r)
		}
	}
	for _, c := range v.Chains {
		if c.Family == "bridge" && c.Policy == string(model.TargetDrop) && c.Table != routesInstead && c.Counter.Delta >= minDrops {
			out = append(out, &model.FrameRule{Backend: c.Backend, Table: c.Table, Chain: c.Name, Text: policy,
				Target: model.TargetDrop, Counter: c.Counter})
		}
	}
	return out
}

// policy is the text of a rule that stands for its chain's policy.
const policy = "policy DROP"

// meets reports whether the rule may have dropped it, as far as a drop tells.
// The packet's device is the port that the frame was to leave by, or came in
// by before the bridge had decided, or the bridge when it was for the node.
func meets(v *view, r *model.FrameRule, d *model.Drop) bool {
	f := path.Frame{Src: d.Src, Dst: d.Dst, DstMAC: d.DstMAC}
	if l := cmp.Or(v.links[d.IfIndex], v.byName[d.Link]); l != nil {
		if f.Out = []string{l.Name}; l.Master == 0 && l.Kind != "bridge" {
			return false
		}
	}
	return f.Fits(r) != path.No
}

// namedPods are the running pods that a rule names by address, link or MAC.
func namedPods(v *view, r *model.FrameRule) []netip.Addr {
	found := map[netip.Addr]bool{}
	for _, m := range []model.AddrMatch{r.IPDst, r.IPSrc, r.ARPDst, r.ARPSrc} {
		if m.IsZero() || m.Not {
			continue
		}
		for a := range v.pods {
			if m.Prefix.Contains(a) {
				found[a] = true
			}
		}
	}
	for p := range model.Each(v.Pods) {
		here := func(m model.IfMatch) bool { return m.Name == p.Link && !m.Not }
		mac := func(m model.MACMatch) bool { return m.Set && !m.Not && m.Addr == p.MAC && m.Mask == model.Broadcast }
		if here(r.In) || here(r.Out) || mac(r.SrcMAC) || mac(r.DstMAC) {
			for _, a := range podAddrs(p) {
				found[a] = true
			}
		}
	}
	return sorted(found)
}

func bridgeRule(v *view, r *model.FrameRule, mine map[*model.Drop]uint64) (finding, bool) {
	f := model.Finding{Confidence: model.Proven, Pods: namedPods(v, r)}
	pods, peers := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	var last *model.Drop
	for d, n := range mine {
		f.Packets += n
		if last == nil || cmp.Or(cmp.Compare(d.Packets, last.Packets), last.Src.Compare(d.Src), last.Dst.Compare(d.Dst),
			cmp.Compare(last.IfIndex, d.IfIndex), cmp.Compare(last.Proto, d.Proto), cmp.Compare(last.Location, d.Location)) > 0 {
			last = d
		}
		pod := v.pod(d)
		pods[pod] = true
		if d.Dst != pod {
			peers[d.Dst] = true
		} else {
			peers[d.Src] = true
		}
	}
	if len(f.Pods) == 0 {
		f.Pods = sorted(pods)
	}
	if len(f.Pods) == 0 {
		// What it counted were not pods' frames, as far as is known.
		return finding{}, false
	}
	for _, a := range f.Pods {
		delete(peers, a)
	}
	f.Peers = hosts(sorted(peers))
	f.Packets = cmp.Or(f.Packets, r.Counter.Delta)
	f.Title = fmt.Sprintf("rule %d of the bridge's %s %s drops frames", r.Number, r.Table, r.Chain)
	if r.Text == policy {
		f.Title = fmt.Sprintf("the policy of the bridge's %s %s drops frames", r.Table, r.Chain)
	}
	f.Why = fmt.Sprintf("A rule of the bridge's table %s, chain %s, dropped %s in the window: %s.", r.Table, r.Chain,
		words.Count(r.Counter.Delta, "frame"), r.Text)
	f.Evidence = []model.Evidence{ruleEvidence(r)}
	if last != nil {
		f.LastHopAlive = v.place(last.Link, model.Egress)
		observe(&f, model.SourceDrops,
			"%s that it matches dropped as %s at %s, most of them %s to %s", words.Count(f.Packets, "packet"), cmp.Or(string(last.Reason), "dropped"), last.Location, last.Src, last.Dst)
	} else {
		f.Unseen = append(f.Unseen, "whose frames they were: the rule's own count and match alone tell")
	}
	if len(r.Unknown) > 0 {
		f.Unseen = append(f.Unseen, "matches of the rule that lasthop cannot read: "+fmt.Sprint(r.Unknown))
		f.Confidence = model.Likely
	}
	f.Fix = []string{words.UnlessMeant(mendRule(r))}
	out := finding{Finding: f}
	if r.EtherType == 0 || (r.EtherType == 0x0806) != r.EtherTypeNot {
		// Nor does any MAC resolve.
		out.silences = silencesAll(f.Pods)
	}
	return out, true
}

// cutOff accounts for drops that the rules made, each wholly, and where the
// rule drops ARP for what waited for the answer.
func cutOff(v *view, r *model.FrameRule, mine, left map[*model.Drop]uint64, pods []netip.Addr) func(*model.Drop) bool {
	arp := r.EtherType == 0 || (r.EtherType == 0x0806) != r.EtherTypeNot
	return func(d *model.Drop) bool {
		return mine[d] > 0 && left[d] == 0 ||
			arp && d.NeighborFailed() && (slices.Contains(pods, d.Dst) || slices.Contains(pods, d.Src))
	}
}

// mendRule is the command that deletes a rule of the bridge, or opens the
// chain whose policy it stands for.
func mendRule(r *model.FrameRule) string {
	if r.Text == policy {
		return fmt.Sprintf("%s -t %s -P %s ACCEPT", words.FrameRuleTool(r), words.Quote(r.Table), words.Quote(r.Chain))
	}
	return words.UndoFrameRule(r)
}
