package path

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/lasthop/lasthop/probe/model"
)

// State is what a node's links, pods and entries are to each other. Findings and paths ask it
// alone, so that they agree.
type State struct {
	*model.Snapshot
	Settings Settings
	// ByIndex and LinkByName are the links, Outer those that lead off the node: uplinks, and the bridges and bonds that hold them.
	ByIndex    map[int]*model.Link
	LinkByName map[string]*model.Link
	Outer      map[int]bool
	// Own are the links of the addresses that the node takes for its own: it has them, or routes of type local.
	Own map[netip.Addr]*model.Link
	// Owners are the running pods that have an address.
	Owners map[netip.Addr][]*model.Pod
	// GatewayAddrs are the next hops of the default routes, Gateways their entries.
	GatewayAddrs map[netip.Addr]bool
	Gateways     []model.Neighbor
	// Tunnel are the MACs that rules give to whatever pods send: the fabric's, in tunnel mode.
	Tunnel map[model.MAC]bool

	// Routing predicts the decisions of the node's routing, Tables and Frames what its chains do;
	// each is built when it is first asked for.
	Routing func() *Routing
	Tables  func() *Tables
	Frames  func() *FrameTables

	// What is looked up for each packet, built when it is first asked for: holders are the pods that have an address, else
	// those that had it, else those that it was given to; entries are those of neighbours, behind the pods by their links,
	// hw who has a MAC.
	holders func() map[netip.Addr]*model.Pod
	entries func() map[place]*model.Neighbor
	behind  func() map[int]*model.Pod
	hw      func() owners
	// guards are the chains of the pods whose own were read, unless rules there translate: which packet they see then is not known.
	guards func() map[*model.Pod]*Tables
}

// owners are who has a MAC: forwarding entries, pods and links, in the snapshot's order.
type owners struct {
	fdb   map[model.MAC][]*model.FDBEntry
	pods  map[model.MAC][]*model.Pod
	links map[model.MAC][]*model.Link
}

// place is an address behind a link.
type place struct {
	addr    netip.Addr
	ifindex int
}

// NewState indexes a snapshot.
func NewState(s *model.Snapshot) *State {
	st := &State{
		Snapshot: s, Settings: Settings{}, ByIndex: map[int]*model.Link{}, LinkByName: map[string]*model.Link{}, Outer: map[int]bool{},
		Own: map[netip.Addr]*model.Link{}, Owners: map[netip.Addr][]*model.Pod{},
		GatewayAddrs: s.DefaultGateways(), Tunnel: map[model.MAC]bool{},
	}
	st.Routing = sync.OnceValue(func() *Routing { return newRouting(st) })
	st.Tables = sync.OnceValue(func() *Tables { return newTables(st) })
	st.Frames = sync.OnceValue(func() *FrameTables { return newFrameTables(s) })
	st.holders, st.entries, st.behind = sync.OnceValue(st.findHolders), sync.OnceValue(st.findEntries), sync.OnceValue(st.findBehind)
	st.hw, st.guards = sync.OnceValue(st.findMACs), sync.OnceValue(st.findGuards)
	for _, c := range s.Sysctls {
		st.Settings[c.Name] = c.Value
	}
	for l := range model.Each(s.Links) {
		if st.ByIndex[l.Index], st.LinkByName[l.Name] = l, l; l.Role == model.RoleUplink {
			st.Outer[l.Index], st.Outer[l.Master] = true, true
		}
		for _, a := range l.Addresses {
			st.Own[a.Addr()] = cmp.Or(st.Own[a.Addr()], l)
		}
	}
	delete(st.Outer, 0)
	for r := range model.Each(s.Routes) {
		if l := st.ByIndex[r.IfIndex]; l != nil && MakesOwn(r) {
			st.Own[r.Dst.Addr()] = cmp.Or(st.Own[r.Dst.Addr()], l)
		}
	}
	for p := range model.Each(s.Pods) {
		for _, a := range p.Addresses {
			st.Owners[a.Addr()] = append(st.Owners[a.Addr()], p)
		}
	}
	st.Gateways = slices.DeleteFunc(slices.Clone(s.Neighbors), func(n model.Neighbor) bool {
		return !st.GatewayAddrs[n.Addr] || n.MAC.IsZero()
	})
	for r := range model.Each(s.FrameRules) {
		if r.SendsToFabric() {
			st.Tunnel[r.MAC] = true
		}
	}
	for e := range model.Each(s.FDB) {
		// Rules that were not read may send to any MAC that is heard there.
		if !s.Has(model.SourceEbtables) && st.Outer[e.IfIndex] && !e.Local {
			st.Tunnel[e.MAC] = true
		}
	}
	return st
}

func (st *State) findGuards() map[*model.Pod]*Tables {
	out := map[*model.Pod]*Tables{}
	for p := range model.Each(st.Pods) {
		in := p.Inside
		if in != nil && !slices.ContainsFunc(in.PacketRules, func(r model.PacketRule) bool { return r.Target == "REDIRECT" || r.Target == "DNAT" }) {
			out[p] = NewState(&model.Snapshot{PacketRules: in.PacketRules, Chains: in.Chains, Sets: in.Sets}).Tables()
		}
	}
	return out
}

// Bridge is the bridge that holds a link, nil for none.
func (st *State) Bridge(l *model.Link) *model.Link {
	if l == nil || l.Master == 0 {
		return nil
	}
	if m := st.ByIndex[l.Master]; m != nil && m.Kind == "bridge" {
		return m
	}
	return nil
}

// Takes are the MACs of frames that the node takes for itself from a link: of what is for
// another port of a bridge it gets frames too, and frees them unread.
func (st *State) Takes(l *model.Link) []model.MAC {
	if b := st.Bridge(l); b != nil {
		return []model.MAC{b.MAC, l.MAC}
	}
	return []model.MAC{l.MAC}
}

// LostBridge is a pod's gateway with its network, if the bridge that had it is gone: the pod needs no router to reach it, nothing
// has it, and no pod of that network is routed. Else it is not valid.
func (st *State) LostBridge(p *model.Pod, gateway netip.Addr) (lost netip.Prefix) {
	l := st.ByIndex[p.LinkIndex]
	a := model.Find(p.Addresses, func(a netip.Prefix) bool { return a.Contains(gateway) && !a.IsSingleIP() })
	if l == nil || l.Master != 0 || len(l.Addresses) > 0 || st.Own[gateway] != nil || len(st.Owners[gateway]) > 0 || !a.IsValid() ||
		!p.PrefixRoute(a) || !st.Has(model.SourceRoutes) {
		return lost
	}
	for o := range model.Each(st.Pods) {
		for _, x := range o.Addresses {
			if d := st.Routing().Lookup(Query{Dst: x.Addr()}); x.Masked() == a.Masked() && d.Through(o.LinkIndex) {
				return lost
			}
		}
	}
	return netip.PrefixFrom(gateway, a.Bits())
}

// GatewayMACs are those that lead a pod's frames to its gateway, the one that a fix would
// write first, and whose they are. None: not known.
func (st *State) GatewayMACs(p *model.Pod, gateway netip.Addr) (right []model.MAC, who string) {
	link := st.ByIndex[p.LinkIndex]
	bridge := st.Bridge(link)
	switch {
	case link == nil || link.MAC.IsZero() || link.Master != 0 && (bridge == nil || bridge.MAC.IsZero()),
		st.LostBridge(p, gateway).IsValid():
		return nil, ""
	case link.Master == 0:
		return st.Takes(link), "its host link " + link.Name
	case st.Own[gateway] != nil:
		return st.Takes(link), "the bridge " + bridge.Name
	}
	if right, who = st.farGateway(gateway, bridge); len(right) == 0 {
		return nil, ""
	}
	return append(right, st.Takes(link)...), who
}

// farGateway is what is known of the MAC of a gateway behind a bridge's port: a pod's, the
// node's own entry for it, and the machines that were heard behind an uplink.
func (st *State) farGateway(gateway netip.Addr, bridge *model.Link) (right []model.MAC, who string) {
	if right = st.PodMACs(gateway); len(right) > 0 {
		return right, "the pod with " + gateway.String()
	}
	if !st.Has(model.SourceNeighbors, model.SourceBridge) {
		return nil, ""
	}
	who = "the gateway " + gateway.String()
	held := model.Chosen(st.Neighbors, func(n *model.Neighbor) bool {
		return n.Addr == gateway && n.IfIndex == bridge.Index && Resolved(n)
	})
	right = model.Map(held, func(n *model.Neighbor) model.MAC { return n.MAC })
	known := len(right) > 0
	for e := range model.Each(st.FDB) {
		if l := st.ByIndex[e.IfIndex]; e.Bridge == bridge.Index && !e.Local && l != nil && l.Role == model.RoleUplink {
			right = append(right, e.MAC)
		}
	}
	if !known && len(right) > 0 {
		who = "what is heard behind " + strings.Join(st.Node.Uplinks, ", ")
	}
	return right, who
}

// PodMACs are those of the running interfaces that hold an address.
func (st *State) PodMACs(a netip.Addr) []model.MAC {
	return slices.DeleteFunc(model.Map(st.Owners[a], func(p *model.Pod) model.MAC { return p.MAC }), model.MAC.IsZero)
}

// Resolved reports whether a neighbour entry holds a MAC that is used.
func Resolved(n *model.Neighbor) bool {
	return !slices.Contains([]string{"FAILED", "INCOMPLETE", "NONE"}, n.State) && !n.MAC.IsZero() && !n.Proxy
}

// NeighborAt is the node's entry for an address behind a link, nil for none.
func (st *State) NeighborAt(a netip.Addr, ifindex int) *model.Neighbor {
	return st.entries()[place{a, ifindex}]
}

func (st *State) findEntries() map[place]*model.Neighbor {
	out := map[place]*model.Neighbor{}
	for n := range model.Each(st.Neighbors) {
		if k := (place{n.Addr, n.IfIndex}); !n.Proxy {
			out[k] = cmp.Or(out[k], n)
		}
	}
	return out
}

func (st *State) findHolders() map[netip.Addr]*model.Pod {
	out := map[netip.Addr]*model.Pod{}
	for a, owners := range st.Owners {
		out[a] = owners[0]
	}
	for p := range model.Each(st.PastPods) {
		for _, a := range p.Addresses {
			out[a.Addr()] = cmp.Or(out[a.Addr()], p)
		}
	}
	for p := range model.Each(st.Pods) {
		for _, a := range p.Given {
			out[a] = cmp.Or(out[a], p)
		}
	}
	return out
}

// Forwarding are the entries of bridges and tunnels for a MAC.
func (st *State) Forwarding(m model.MAC) []*model.FDBEntry { return st.hw().fdb[m] }

func (st *State) findMACs() owners {
	return owners{
		model.Grouped(st.FDB, func(e *model.FDBEntry) model.MAC { return e.MAC }),
		model.Grouped(st.Pods, func(p *model.Pod) model.MAC { return p.MAC }),
		model.Grouped(st.Links, func(l *model.Link) model.MAC { return l.MAC }),
	}
}

func (st *State) findBehind() map[int]*model.Pod {
	out := map[int]*model.Pod{}
	for p := range model.Each(st.Pods) {
		out[p.LinkIndex] = cmp.Or(out[p.LinkIndex], p)
	}
	return out
}

// Behind are the pods that have an address and are reached by a link: it is the host side of
// theirs, or the bridge that holds that.
func (st *State) Behind(a netip.Addr, ifindex int) []*model.Pod {
	return slices.DeleteFunc(slices.Clone(st.Owners[a]), func(p *model.Pod) bool {
		l := st.ByIndex[p.LinkIndex]
		return l == nil || l.Index != ifindex && l.Master != ifindex
	})
}

// MissedPod is a pod behind an entry's link that has the entry's address and not its MAC, which no other pod
// with the address has either; nil where the MAC is right, the fabric's on a bridge, or not known.
func (st *State) MissedPod(n *model.Neighbor) *model.Pod {
	behind, l := st.Behind(n.Addr, n.IfIndex), st.ByIndex[n.IfIndex]
	switch {
	case len(behind) == 0 || !Resolved(n) || behind[0].MAC.IsZero(), l != nil && l.Kind == "bridge" && st.IsFabric(n.MAC),
		slices.ContainsFunc(st.Owners[n.Addr], func(p *model.Pod) bool { return p.MAC == n.MAC }):
		return nil
	}
	return behind[0]
}

// IsFabric reports whether the MAC is a default gateway's, or the one that tunnel mode sends all to.
func (st *State) IsFabric(m model.MAC) bool {
	return st.Tunnel[m] || slices.ContainsFunc(st.Gateways, func(n model.Neighbor) bool { return n.MAC == m })
}

// Settings are the kernel's settings that were read, by their names as of sysctl(8).
type Settings map[string]string

// The settings that turn forwarding on and off for all links.
const (
	Forward4 = "net.ipv4.ip_forward"
	Forward6 = "net.ipv6.conf.all.forwarding"
)

// MakesOwn reports whether a route makes one address the node's own. Rules lead some packets alone to further tables.
func MakesOwn(r *model.Route) bool {
	return r.Type == "local" && r.Dst.IsSingleIP() && (r.Table == tableLocal || r.Table == tableMain)
}

// LinkSetting names an IPv4 setting of a link's own.
func LinkSetting(link, name string) string { return linkSetting("ipv4", link, name) }

// LinkSetting6 names an IPv6 setting of a link's own.
func LinkSetting6(link, name string) string { return linkSetting("ipv6", link, name) }

func linkSetting(family, link, name string) string {
	return "net." + family + ".conf." + strings.ReplaceAll(link, ".", "/") + "." + name
}

// NotForwarding is the setting because of which the node does not forward what comes in by
// a link; empty where there is none. For IPv6 one counts for all links.
func (s Settings) NotForwarding(link string, isIPv6 bool) string {
	name := model.Either(isIPv6, Forward6, LinkSetting(link, "forwarding"))
	return model.Either(s[name] != "0", "", name)
}

// BridgeCalls names the setting by which bridged packets pass the IP layer's chains.
func BridgeCalls(isIPv6 bool) string {
	return model.Either(isIPv6, "net.bridge.bridge-nf-call-ip6tables", "net.bridge.bridge-nf-call-iptables")
}

// SourceMark is the setting because of which the reverse path filter heeds the marks of what comes by a link; empty for none.
func (s Settings) SourceMark(link string) string {
	names := []string{LinkSetting("all", "src_valid_mark"), LinkSetting(link, "src_valid_mark")}
	return model.Find(names, func(name string) bool { return s[name] == "1" })
}

// ReverseFilter is the mode of a link's reverse path filter, the higher of its own and that
// of all: 0 off, 1 strict, 2 loose, and empty where neither was read.
func (s Settings) ReverseFilter(link string) string {
	return max(s[LinkSetting("all", "rp_filter")], s[LinkSetting(link, "rp_filter")])
}
