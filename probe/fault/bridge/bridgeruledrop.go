package bridge

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// routesInstead is the table in which DROP means to route the frame.
const routesInstead = "broute"

// RuleDrop reports rules of bridges (ebtables, nft family bridge) that drop pods' frames.
var RuleDrop = fault.Kind{Code: "BridgeRuleDrop", Severity: model.Warning, Find: ruleDrop, Decides: true,
	Needs: fault.Sources{model.SourceLinks}, Ends: fault.Hops{model.HopBridge, model.HopNeighbor, model.HopPod},
	Objects: fault.Objects{"rule.Table rule.Chain rule"}, Else: fault.Else{"undecoded"}}

func ruleDrop(v *fault.Input) {
	drops := model.Chosen(v.Traffic.Drops, func(d *model.Drop) bool {
		return d.Is(model.Netfilter) && (d.Netns == 0 || d.Netns == v.Node.Netns) && v.OfPod(d) && !v.Explained(d) &&
			v.Classifier.Class(d) != loss.ByDesign
	})
	// left are the packets of each drop that no rule has been found for.
	left := map[*model.Drop]uint64{}
	for _, d := range drops {
		left[d] = d.Packets
	}
	for _, r := range droppingRules(v.Index) {
		mine := map[*model.Drop]uint64{}
		budget := r.Counter.Delta
		for _, d := range drops {
			if n := min(left[d], budget); n > 0 && meets(v.Index, r, d) {
				mine[d] = n
				left[d] -= n
				budget -= n
			}
		}
		bridgeRule(v, r, mine, left)
	}
}

// droppingRules are the rules of bridges that dropped in the window and should
// not, and behind them the policies, as rules that match all.
func droppingRules(v *node.Index) []*model.FrameRule {
	out := model.Chosen(v.FrameRules, func(r *model.FrameRule) bool {
		return r.Target == model.TargetDrop && r.Table != routesInstead && r.Counter.Delta >= node.MinDrops
	})
	for _, c := range v.Chains {
		if c.Family == "bridge" && c.Policy == string(model.TargetDrop) && c.Table != routesInstead &&
			c.Counter.Delta >= node.MinDrops {
			out = append(out, &model.FrameRule{Backend: c.Backend, Table: c.Table, Chain: c.Name, Text: policy,
				Target: model.TargetDrop, Counter: c.Counter})
		}
	}
	return out
}

// policy is the text of a rule that stands for its chain's policy.
const policy = "policy DROP"

// meets reports whether the rule may have dropped it, as far as a drop tells. The packet's device is the port that the
// frame was to leave by, or came in by before the bridge had decided, or the bridge when it was for the node.
func meets(v *node.Index, r *model.FrameRule, d *model.Drop) bool {
	f := path.Frame{Src: d.Src, Dst: d.Dst, DstMAC: d.DstMAC}
	if l := cmp.Or(v.ByIndex[d.IfIndex], v.LinkByName[d.Link]); l != nil {
		if f.Out = []string{l.Name}; l.Master == 0 && l.Kind != "bridge" {
			return false
		}
	}
	return f.Fits(r) != path.No
}

// namedPods are the running pods that a rule names by address, link or MAC.
func namedPods(v *node.Index, r *model.FrameRule) []netip.Addr {
	var out []netip.Addr
	for p := range model.Each(v.Pods) {
		link := func(m model.IfMatch) bool { return m.Name == p.Link && !m.Not }
		mac := func(m model.MACMatch) bool { return m.Set && !m.Not && m.Addr == p.MAC && m.Mask == model.Broadcast }
		named := link(r.In) || link(r.Out) || mac(r.SrcMAC) || mac(r.DstMAC)
		for _, a := range node.PodAddrs(p) {
			addr := func(m model.AddrMatch) bool { return !m.IsZero() && !m.Not && m.Prefix.Contains(a) }
			if named || addr(r.IPDst) || addr(r.IPSrc) || addr(r.ARPDst) || addr(r.ARPSrc) {
				out = append(out, a)
			}
		}
	}
	return model.Unique(out)
}

// refusedPods are those of whose own frames a rule drops all, also what they ask by ARP: of some, or of all where none are known.
func refusedPods(v *node.Index, r *model.FrameRule, among []netip.Addr) []*model.Pod {
	return model.Chosen(v.Pods, func(p *model.Pod) bool {
		b := v.BridgeOf(p)
		asked := len(among) == 0 || model.Meet(among, node.PodAddrs(p))
		return b != nil && asked && r.ARPDst.IsZero() && r.ARPSrc.IsZero() && v.Frames().Dropper(path.Frame{
			SrcMAC: p.MAC, DstMAC: model.Broadcast,
			ARP: 1, In: []string{p.Link}, LogicalIn: []string{b.Name}}) == r
	})
}

// expectedMAC is the only one that the chain of a rule lets pass in front of it, where the pod has another; zero for none.
func expectedMAC(v *node.Index, r *model.FrameRule, p *model.Pod) (only model.MAC) {
	for x := range model.Each(v.FrameRules) {
		if x.Backend != r.Backend || x.Table != r.Table || x.Chain != r.Chain || x == r {
			continue
		}
		passes := x.SrcMAC.Set && !x.SrcMAC.Not && (x.Target == model.TargetReturn || x.Target == model.TargetAccept)
		if !passes || !only.IsZero() || x.SrcMAC.Addr == p.MAC {
			return model.MAC{}
		}
		only = x.SrcMAC.Addr
	}
	return only
}

// bridgeRule reports a rule with the drops that it made, of which some packets may be left that it did not.
func bridgeRule(v *fault.Input, r *model.FrameRule, mine, left map[*model.Drop]uint64) {
	f, copies := fault.Fault{Facts: words.Facts{"rule": r, "policy": r.Text == policy, "undecoded": r.Unknown}}, loss.Deduplicates(v.Snapshot, r)
	pods, peers := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for d, n := range mine {
		f.Packets += n
		pod := v.Pod(d)
		pods[pod], peers[node.OtherEnd(d, pod)] = true, true
	}
	if f.Pods = namedPods(v.Index, r); len(f.Pods) == 0 || copies {
		f.Pods = node.Sorted(pods)
	}
	refused := refusedPods(v.Index, r, f.Pods)
	for _, p := range refused {
		f.Pods, f.CutOff = model.With(f.Pods, node.PodAddrs(p)...), append(f.CutOff, node.PodAddrs(p)...)
	}
	if len(refused) == 1 {
		f.Facts["pod"] = refused[0]
		if m := expectedMAC(v.Index, r, refused[0]); !m.IsZero() {
			f.Facts["expected"] = m
		}
	}
	if len(f.Pods) == 0 || copies && f.Packets < node.MinDrops {
		// What it counted were not pods' frames, as far as is known, or copies of frames that were delivered.
		return
	}
	for _, a := range f.Pods {
		delete(peers, a)
	}
	f.Peers, f.Packets = model.Hosts(node.Sorted(peers)), cmp.Or(f.Packets, r.Counter.Delta)
	if len(mine) > 0 {
		last := node.MostDropped(slices.Collect(maps.Keys(mine)))[0]
		f.Facts["last"], f.LastHopAlive = last, v.Place(last.Link, model.Egress)
	}
	// Where a rule drops ARP, no MAC resolves either.
	arp := !copies && (r.EtherType == 0 || (r.EtherType == 0x0806) != r.EtherTypeNot)
	if arp {
		f.Silences = node.SilencesAll(f.Pods)
	}
	f.Claims = func(d *model.Drop) bool {
		return mine[d] > 0 && left[d] == 0 || arp && d.Is(model.NeighborFailed) && d.FromOrTo(f.Pods)
	}
	// What several receivers may want is seldom wanted: such rules keep DHCP and the like from the bridge.
	f.InfoUnless(len(mine) == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(mine)), func(d *model.Drop) bool {
		return d.Dst.Is6() || !v.Classifier.ToGroup(d.Dst)
	}))
	v.Report(f)
}
