package collect

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

// setGiven sets the addresses that the node's tables give to each pod while no interface has them: a pod whose
// interface lost its address is known by these. They are what the node routes to the pod's link alone, what its
// neighbour entries and bridge rules resolve to the pod's MAC, and the address of its bridge's network that this
// MAC is made of, as bridge plugins make it.
func (v *view) setGiven(pods []model.Pod) {
	taken := addressesOf(pods)
	maps.Copy(taken, nodeAddresses(v.links))
	give := func(p *model.Pod, a netip.Addr) {
		if a.IsGlobalUnicast() && !taken[a] && !slices.Contains(p.Given, a) {
			p.Given = append(p.Given, a)
		}
	}
	byLink, byMAC := map[int]*model.Pod{}, map[model.MAC]*model.Pod{}
	for p := range model.Each(pods) {
		byLink[p.LinkIndex] = p
		if !p.MAC.IsZero() {
			byMAC[p.MAC] = p
		}
	}
	for _, r := range v.routes {
		if p := byLink[r.IfIndex]; p != nil && r.Type == "unicast" && r.Dst.IsValid() && r.Dst.IsSingleIP() && !r.Gateway.IsValid() {
			give(p, r.Dst.Addr())
		}
	}
	for _, n := range v.neighbors {
		p := byMAC[n.MAC]
		if p == nil || n.Proxy {
			continue
		}
		if l := v.link(p.LinkIndex); l != nil && (n.IfIndex == l.Index || n.IfIndex == l.Master) {
			give(p, n.Addr)
		}
	}
	for p := range model.Each(pods) {
		a := netip.AddrFrom4([4]byte(p.MAC[2:]))
		if l := v.link(p.LinkIndex); l != nil && v.inNetworkOf(l.Master, a) {
			give(p, a)
		}
	}
	for _, r := range v.frames {
		p := byMAC[r.MAC]
		if p == nil {
			continue
		}
		for _, m := range []model.AddrMatch{r.ARPDst, r.IPDst} {
			if !m.IsZero() && !m.Not && m.Prefix.IsSingleIP() {
				give(p, m.Prefix.Addr())
			}
		}
	}
}

// inNetworkOf reports whether an address is in a network of the link's.
func (v *view) inNetworkOf(index int, a netip.Addr) bool {
	l := v.link(index)
	return l != nil && slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(a) })
}

func addressesOf(pods []model.Pod) map[netip.Addr]bool {
	return model.SetOf(model.Flat(pods, func(p model.Pod) []netip.Addr { return model.Map(p.Addresses, netip.Prefix.Addr) }))
}

// giveFiled adds the addresses that the plugin's files give: those that name the pod's link and, where one pod
// alone has no address, the only one that is in use and that no interface has.
func giveFiled(pods []model.Pod, f files.Files) {
	taken := addressesOf(pods)
	for a, o := range f.Owners {
		for p := range model.Each(pods) {
			if o.Link != "" && o.Link == p.Link && !taken[a] && !slices.Contains(p.Given, a) {
				p.Given = append(p.Given, a)
			}
		}
	}
	var bare []*model.Pod
	for p := range model.Each(pods) {
		for _, a := range p.Given {
			taken[a] = true
		}
		if len(p.Addresses)+len(p.Given) == 0 {
			bare = append(bare, p)
		}
		slices.SortFunc(p.Given, netip.Addr.Compare)
	}
	if len(bare) != 1 {
		return
	}
	left := slices.DeleteFunc(slices.Clone(f.Config.Taken), func(a netip.Addr) bool { return taken[a] })
	if len(left) == 1 || len(left) == 2 && left[0].Is4() != left[1].Is4() {
		bare[0].Given = left
	}
}
