package neighbor

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// DuplicateMAC reports pods that have the MAC of another, or another than the node gave them.
var DuplicateMAC = fault.Kind{Code: "DuplicateMAC", Severity: model.Critical, Find: duplicateMAC,
	Ends: fault.Hops{model.HopBridge, model.HopPod, model.HopNeighbor}, Objects: fault.Objects{"mac"},
	Traits: model.ByNextHop, Else: fault.Else{"DuplicateMAC !stray"}}

func duplicateMAC(v *fault.Input) {
	if !v.Has(model.SourceLinks) || v.Status(model.SourcePods) == model.Missing {
		return
	}
	type segment struct {
		bridge int
		mac    model.MAC
	}
	var having node.Groups[segment, []*model.Pod]
	for p := range model.Each(v.Pods) {
		if b := v.BridgeOf(p); b != nil && !p.MAC.IsZero() && v.Enterable(p) {
			node.Put(&having, segment{b.Index, p.MAC}, p)
		}
	}
	for k, list := range having.All() {
		if b := v.ByIndex[k.bridge]; b.MAC == k.mac {
			v.Report(bridgesMAC(v, b, *list))
		} else if len(*list) > 1 && !apart(v.Index, k.bridge, *list) {
			v.Report(sharedMAC(v, *list))
		}
	}
}

// bridgesMAC is the finding on pods that have the MAC of their bridge, which keeps what is for it.
func bridgesMAC(v *fault.Input, b *model.Link, list []*model.Pod) fault.Fault {
	f := fault.Fault{Page: "DuplicateMAC-bridge"}
	f.Pods, f.LastHopAlive = model.Flat(list, node.PodAddrs), v.Place(b.Name, model.Egress)
	f.CutOff, f.Claims = f.Pods, func(d *model.Drop) bool {
		return d.FromOrTo(f.Pods) && (d.Is(model.NeighborFailed) || d.IfIndex == b.Index)
	}
	f.Packets = v.Dropped(f.Claims)
	f.Facts = words.Facts{"mac": b.MAC, "bridge": b, "pods": list, "to": free(b.MAC, v.MACNames)}
	return f
}

// apart reports whether the bridge keeps the pods in VLANs of their own, where each MAC is looked up by itself.
func apart(v *node.Index, bridge int, list []*model.Pod) bool {
	return !slices.ContainsFunc(list, func(p *model.Pod) bool {
		return !slices.ContainsFunc(v.FDB, func(e model.FDBEntry) bool {
			return e.Bridge == bridge && e.MAC == p.MAC && e.VLAN != 0 && e.IfIndex == p.LinkIndex
		})
	})
}

func sharedMAC(v *fault.Input, list []*model.Pod) fault.Fault {
	bridge, mac := v.BridgeOf(list[0]), list[0].MAC
	f := fault.Fault{Facts: words.Facts{
		"pods": list, "mac": mac, "bridge": bridge, "stray": strayFrames(v.Index, list), "changes": anotherMAC(v.Index, list),
	}}
	f.Pods = model.Flat(list, node.PodAddrs)
	e := model.First(v.FDB, func(e *model.FDBEntry) bool { return e.Bridge == bridge.Index && e.MAC == mac && !e.Local })
	if e != nil {
		f.Facts["port"] = v.LinkName(e.IfIndex)
	}
	f.LastHopAlive, f.CutOff = v.Place(bridge.Name, model.Egress), f.Pods
	f.Claims = func(d *model.Drop) bool {
		// It was freed at the wrong pod, or waited for a reply that went there.
		wrong := func(p *model.Pod) bool { return d.Netns == p.Netns && !p.Has(d.Dst) }
		return d.FromOrTo(f.CutOff) && (d.Is(model.NeighborFailed) || slices.ContainsFunc(list, wrong))
	}
	f.Packets = v.Dropped(f.Claims)
	return f
}

// strayFrame is what left for one pod by another's port, At.
type strayFrame struct {
	At, Link string
	Addr     netip.Addr
	Packets  uint64
}

func strayFrames(v *node.Index, list []*model.Pod) []strayFrame {
	var out []strayFrame
	for _, p := range list {
		for _, a := range node.PodAddrs(p) {
			for _, o := range list {
				if n := v.FramesBetween(a, o.LinkIndex, model.Egress, model.AsDestination, p.MAC); o != p && n >= node.MinDrops {
					out = append(out, strayFrame{o.Link, p.Link, a, n})
				}
			}
		}
	}
	return out
}

// changedMAC is another MAC for a pod. The settings have it tell its peers, which hold the former one for a while.
type changedMAC struct {
	Pod      *model.Pod
	To       model.MAC
	Settings []string
}

// anotherMAC gives all but one of the pods another MAC: the one that the node's entries or rules hold for it,
// else one that nobody on the node has. The pod that keeps the shared one is the first that nothing gives
// another, rather one whose MAC is made of its own address.
func anotherMAC(v *node.Index, list []*model.Pod) []changedMAC {
	rank := func(p *model.Pod) int {
		switch {
		case !givenMAC(v, p).IsZero():
			return 2
		case slices.ContainsFunc(node.PodAddrs(p), func(a netip.Addr) bool { return p.MAC.Names(a) }):
			return 0
		}
		return 1
	}
	list = slices.SortedStableFunc(slices.Values(list), func(a, b *model.Pod) int { return cmp.Compare(rank(a), rank(b)) })
	var out []changedMAC
	taken := maps.Clone(v.MACNames)
	for _, p := range list[1:] {
		c := changedMAC{Pod: p, To: givenMAC(v, p)}
		if c.To.IsZero() {
			c.To = free(p.MAC, taken)
		}
		taken[c.To] = p.Interface
		if len(node.OwnIn(p, false)) > 0 {
			c.Settings = append(c.Settings, path.LinkSetting(p.Interface, "arp_notify"))
		}
		if len(node.OwnIn(p, true)) > 0 {
			c.Settings = append(c.Settings, path.LinkSetting6(p.Interface, "ndisc_notify"))
		}
		out = append(out, c)
	}
	return out
}

// givenMAC is the MAC that a pinned neighbour entry or a bridge rule of the node holds for a pod's address,
// where it is another than the pod has and nobody has it; zero for none.
func givenMAC(v *node.Index, p *model.Pod) model.MAC {
	fits := func(m model.MAC) bool {
		_, used := v.MACNames[m]
		return !used && !m.IsZero() && !m.IsMulticast() && m != p.MAC
	}
	for n := range model.Each(v.Neighbors) {
		if n.State == "PERMANENT" && p.Has(n.Addr) && fits(n.MAC) {
			return n.MAC
		}
	}
	for r := range model.Each(v.FrameRules) {
		for _, m := range []model.AddrMatch{r.ARPDst, r.IPDst} {
			if p.Has(m.Addr()) && fits(r.MAC) {
				return r.MAC
			}
		}
	}
	return model.MAC{}
}

// free is a locally administered MAC close to m that is not taken.
func free(m model.MAC, taken map[model.MAC]string) model.MAC {
	m[0] = m[0]&^1 | 2
	for taken[m] != "" {
		m[5]++
		if m[5] == 0 {
			m[4]++
		}
	}
	return m
}
