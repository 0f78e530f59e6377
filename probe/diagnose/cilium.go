package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// ownersAt are the owners of the programs at each hook of a link, empty for those that nobody
// is known to own.
type ownersAt map[hookPlace]map[string]bool

type hookPlace struct {
	netns     uint32
	ifindex   int
	direction model.Direction
}

func (v *view) owners() ownersAt {
	out := ownersAt{}
	for p := range model.Each(v.Programs) {
		k := hookPlace{p.Netns, p.IfIndex, p.Direction}
		if out[k] == nil {
			out[k] = map[string]bool{}
		}
		out[k][p.Owner()] = true
	}
	return out
}

// ciliumReason is why Cilium's program at a hook dropped a packet, 0 where it did not say, or
// where programs of others alone are there. One that is gone by now may have been Cilium's.
func (o ownersAt) ciliumReason(h *hook, d *model.Drop) model.CiliumReason {
	if at := o[hookPlace{h.netns, h.ifindex, h.direction()}]; len(at) > 0 && !at[model.OwnerCilium] {
		return 0
	}
	return d.Cilium.Reason
}

// ciliumEnd is a security identity with what is known of it.
type ciliumEnd struct {
	ID     model.CiliumIdentity
	Name   string
	Labels []string
}

// ciliumSaid is what Cilium's program said of some drops.
type ciliumSaid struct {
	model.CiliumDrop
	From, To ciliumEnd
	// Of is the endpoint that the packets were for, or whose program dropped what it sent.
	Of      *model.CiliumEndpoint
	Ports   []string
	Packets uint64
}

// Number is the reason's.
func (s ciliumSaid) Number() int { return int(s.Reason) }

// ciliumFacts are what Cilium's reason for drops means, by its page.
func (v *view) ciliumFacts(h *hook, l *lost) facts {
	byKind := map[model.CiliumDrop]*lost{}
	var from, to bool
	world, maybe := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, d := range l.drops {
		entry(byKind, d.Cilium).add(v, d)
		from, to = from || l.pods[d.Src], to || l.pods[d.Dst]
		ends := map[netip.Addr]model.CiliumIdentity{d.Src: d.Cilium.SrcIdentity, d.Dst: d.Cilium.DstIdentity}
		for a, id := range ends {
			switch {
			case !id.World() || v.nodeAddrs[a]:
			case v.ofAnyPod(a):
				world[a] = true
			case inAny(v.ranges.cluster, a):
				maybe[a] = true
			}
		}
	}
	kinds := slices.SortedFunc(maps.Keys(byKind), func(a, b model.CiliumDrop) int {
		return cmp.Or(cmp.Compare(byKind[b].packets, byKind[a].packets), a.Compare(b))
	})
	var said []ciliumSaid
	for _, c := range kinds[:min(len(kinds), mostSaid)] {
		x := ciliumSaid{
			CiliumDrop: c, From: v.ciliumEnd(c.SrcIdentity), To: v.ciliumEnd(c.DstIdentity), Of: v.Cilium.Numbered(c.Endpoint),
			Packets: byKind[c].packets, Ports: v.sampledPorts(byKind[c]),
		}
		if c.Endpoint == 0 && h.direction() == model.Ingress && h.netns == v.Node.Netns {
			x.Of = model.First(v.Cilium.Endpoints, func(e *model.CiliumEndpoint) bool { return e.IfIndex == h.ifindex })
		}
		said = append(said, x)
	}
	counted := chosen(v.Cilium.Counts, func(c *model.CiliumCount) bool { return c.Reason == h.cilium && c.Delta > 0 })
	unmanaged, forgotten := v.takenForWorld(world)
	return facts{
		"code": h.cilium, "said": said, "from": from && !to, "to": to && !from, "counted": counted,
		"world": sorted(world), "maybe": sorted(maybe), "unmanaged": unmanaged, "forgotten": forgotten,
		"denied": h.cilium.Denied(), "error": said[0].Error, "endpoint": said[0].Of,
	}
}

// mostSaid is how many kinds of drops are shown.
const mostSaid = 4

func (v *view) ciliumEnd(id model.CiliumIdentity) ciliumEnd {
	return ciliumEnd{id, id.Reserved(), v.Cilium.Labels(id)}
}

// ofAnyPod reports whether an address is a pod's, here or on another node.
func (v *view) ofAnyPod(a netip.Addr) bool {
	return len(v.pods[a]) > 0 || inAny(v.Cluster.PodCIDRs, a) || v.ranges.nodeAt(a).IsValid()
}

// takenForWorld are the pods among addresses that Cilium takes for the outside: those of this
// node of which it has no endpoint, and the addresses that its programs do not know.
func (v *view) takenForWorld(world map[netip.Addr]bool) (unmanaged []*model.Pod, forgotten []netip.Addr) {
	known, managed := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	if len(world) > 0 {
		for _, x := range v.Cilium.Known {
			known[x.Prefix.Addr()] = x.Prefix.IsSingleIP()
		}
		for e := range model.Each(v.Cilium.Endpoints) {
			maps.Copy(managed, setOf(e.Addresses))
		}
	}
	for _, a := range sorted(world) {
		switch pods := v.pods[a]; {
		case len(pods) > 0 && len(managed) > 0 && v.Has(model.SourceCilium) && !managed[a]:
			unmanaged = append(unmanaged, pods[0])
		case len(known) > 0 && !known[a]:
			forgotten = append(forgotten, a)
		}
	}
	return unmanaged, forgotten
}

// ciliumEndpoint is the endpoint with an address, nil where the agent has none.
func (v *view) ciliumEndpoint(a netip.Addr) *model.CiliumEndpoint {
	return model.First(v.Cilium.Endpoints, func(e *model.CiliumEndpoint) bool { return slices.Contains(e.Addresses, a) })
}

// ciliumDelivers reports whether Cilium's programs have the address as a local pod's.
func (v *view) ciliumDelivers(a netip.Addr) bool {
	return slices.ContainsFunc(v.Cilium.Local, func(x model.CiliumAddress) bool { return x.Prefix.Addr() == a })
}
