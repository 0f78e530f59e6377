package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// hooks are the kinds of hooks. The first that a drop may be of is meant.
var hooks = []model.DropKind{model.AtXDP, model.AtNetkit, model.AtIngress, model.AtEgress, model.AtCgroup}

// hook is one place where programs are attached.
type hook struct {
	kind model.DropKind
	// out: programs at it see what leaves its device. Of a netkit pair that is what the primary sends, and not what the
	// other end does.
	out     bool
	netns   uint32
	ifindex int
	link    string
	// cilium is why Cilium's program there dropped the packets, where it said so.
	cilium model.CiliumReason
}

// ofCgroup reports whether the hook is a cgroup's, whatever link packets are for.
func (h *hook) ofCgroup() bool { return h.kind == model.AtCgroup }

func (h *hook) direction() model.Direction { return model.Either(h.out, model.Egress, model.Ingress) }

// BPFDrop reports BPF programs that drop pods' packets.
var BPFDrop = fault.Kind{Code: "BPFDrop", Severity: model.Warning, Find: bpfDrop, Decides: true, Ends: fault.Hops{model.HopLink},
	Objects: fault.Objects{"inside f.Pods", "code", "xdp link", "netkit link", "link direction"},
	Else:    fault.Else{"BPFDrop read netkit !programs", "cgroup programs"}}

func bpfDrop(v *fault.Input) {
	fault.ReportBy(v, func(d *model.Drop) (hook, netip.Addr) {
		k, pod := hookOf(v.Index, d)
		k.cilium = ciliumReason(v.Index, &k, d)
		return k, pod
	}, func(k hook, l *node.Lost) fault.Fault { return droppedByProgram(v.Index, k, l) })
}

// hookOf is the hook whose program dropped a packet, and the pod that it concerns: that whose
// link the program is on, where one is.
func hookOf(v *node.Index, d *model.Drop) (k hook, _ netip.Addr) {
	k = hook{kind: model.Find(hooks, d.Is), netns: d.Netns, ifindex: d.IfIndex, link: d.Link}
	switch k.kind {
	case 0:
		return k, netip.Addr{}
	case model.AtNetkit:
		k = netkitHook(v, k, d)
	case model.AtEgress:
		k.out = true
	case model.AtCgroup:
		k.out, k.ifindex, k.link = true, 0, ""
	}
	for _, a := range []netip.Addr{d.Src, d.Dst} {
		for _, p := range v.Owners[a] {
			if k.ifindex != 0 && p.LinkIndex == k.ifindex && k.netns == v.Node.Netns || p.Netns == k.netns && inside(v, &k) {
				return k, a
			}
		}
	}
	return k, v.Pod(d)
}

// netkitHook is the hook of a netkit pair that a packet was dropped at. By then it is
// the receiving end's, whose programs have their place at the primary.
func netkitHook(v *node.Index, k hook, d *model.Drop) hook {
	for _, a := range []netip.Addr{d.Dst, d.Src} {
		for _, p := range v.Owners[a] {
			if k.netns != v.Node.Netns && p.Netns == k.netns {
				return hook{kind: k.kind, out: true, netns: v.Node.Netns, ifindex: p.LinkIndex, link: p.Link}
			}
		}
	}
	return k
}

// inside reports whether the hook is in a pod's own namespace.
func inside(v *node.Index, h *hook) bool { return h.netns != 0 && h.netns != v.Node.Netns }

// ownedProgram is a program with its owner, empty where that is not known, and its place among those of the hook.
type ownedProgram struct {
	*model.Program
	Owner  string
	Number int
}

func droppedByProgram(v *node.Index, h hook, l *node.Lost) fault.Fault {
	pods := v.Owners[node.Sorted(l.Pods)[0]]
	// A packet meets the programs of its process's cgroup and of those above it: they are all
	// shown, and none is to be detached, since any may be of no concern to the pod.
	cgroup, owners := h.ofCgroup(), map[string]bool{}
	f := fault.Fault{Lost: l, Facts: words.Facts{
		"cgroup": cgroup, "xdp": h.kind == model.AtXDP, "inside": inside(v, &h), "owners": owners, "enter": words.Command(""),
		"netkit":    h.kind == model.AtNetkit,
		"direction": h.direction(), "read": v.Has(model.SourcePrograms),
	}}
	link, programs := h.link, []ownedProgram(nil)
	for p := range model.Each(v.Programs) {
		if h.holds(p) {
			programs = append(programs, ownedProgram{p, p.Owner(), len(programs) + 1})
			owners[p.Owner()] = !cgroup
			link = cmp.Or(link, p.Link)
		}
	}
	if h.link == "" {
		f.Facts["enter"] = words.Inside(pods[0]) // The link is inside of it.
		if link = cmp.Or(link, pods[0].Interface); !cgroup {
			link = cmp.Or(link, "a link")
		}
	}
	h.link = link
	if len(programs) == 1 && owners[""] {
		f.Facts["detach"], f.Facts["filter"] = programs[0], programs[0].Kind == model.ProgramTC && programs[0].ID == 0 && !programs[0].Classic
	}
	f.Facts["link"], f.Facts["programs"], f.Facts["several"] = h.link, programs, len(programs) > 1
	f.LastHopAlive = before(v, &h, pods)
	if owners[model.OwnerCilium] && h.cilium == 0 {
		f.Facts["quiet"] = slices.ContainsFunc(v.Cilium.Endpoints, func(e model.CiliumEndpoint) bool { return e.Quiet })
		f.Facts["counted"] = model.Chosen(v.Cilium.Counts, func(c *model.CiliumCount) bool { return c.Delta > 0 })
	}
	if h.cilium != 0 {
		f.Page = "BPFDrop-cilium"
		maps.Copy(f.Facts, ciliumFacts(v, &h, l))
	}
	return f
}

// before is where packets were last counted before the hook. XDP runs before the programs that count at its
// link, so that this is the pod's own end where the link is a pod's.
func before(v *node.Index, h *hook, pods []*model.Pod) model.Place {
	switch {
	case inside(v, h):
		return model.Place{Link: h.link, Role: model.RolePod, Direction: h.direction()}
	case h.ofCgroup():
		return model.Place{Direction: h.direction()}
	case h.kind == model.AtXDP && h.netns == v.Node.Netns:
		for _, p := range pods {
			if p.LinkIndex == h.ifindex {
				return model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
			}
		}
	}
	return v.Place(h.link, h.direction())
}

// holds reports whether packets meet the program at the hook, or may meet it on a
// cgroup: which cgroup the sending process is in is not known.
func (h *hook) holds(p *model.Program) bool {
	if h.ofCgroup() {
		return p.Kind == model.ProgramCgroup && p.Direction == model.Egress
	}
	if p.Netns != h.netns || p.IfIndex != h.ifindex || p.Direction != h.direction() {
		return false
	}
	switch h.kind {
	case model.AtXDP:
		return p.Kind == model.ProgramXDP
	case model.AtNetkit:
		return p.Kind == model.ProgramNetkit
	}
	return p.Kind == model.ProgramTCX || p.Kind == model.ProgramTC
}

// ciliumReason is why Cilium's program at a hook dropped a packet, 0 where it did not say, or
// where programs of others alone are there. One that is gone by now may have been Cilium's.
func ciliumReason(v *node.Index, h *hook, d *model.Drop) model.CiliumReason {
	if d.Cilium.Reason != 0 {
		at := model.Chosen(v.Programs, func(p *model.Program) bool {
			return p.Netns == h.netns && p.IfIndex == h.ifindex && p.Direction == h.direction()
		})
		if len(at) > 0 && !slices.ContainsFunc(at, func(p *model.Program) bool { return p.Owner() == model.OwnerCilium }) {
			return 0
		}
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
func ciliumFacts(v *node.Index, h *hook, l *node.Lost) words.Facts {
	byKind := map[model.CiliumDrop]*node.Lost{}
	var from, to bool
	world, maybe := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, d := range l.Drops {
		model.GetOrInsert(byKind, d.Cilium).Add(v, d)
		from, to = from || l.Pods[d.Src], to || l.Pods[d.Dst]
		ends := map[netip.Addr]model.CiliumIdentity{d.Src: d.Cilium.SrcIdentity, d.Dst: d.Cilium.DstIdentity}
		for a, id := range ends {
			switch {
			case !id.World() || v.Own[a] != nil:
			case len(v.Owners[a]) > 0 || model.InAny(v.Cluster.PodCIDRs, a) || v.Ranges.NodeAt(a).IsValid():
				world[a] = true
			case model.InAny(v.Ranges.Cluster, a):
				maybe[a] = true
			}
		}
	}
	kinds := slices.SortedFunc(maps.Keys(byKind), func(a, b model.CiliumDrop) int {
		return cmp.Or(cmp.Compare(byKind[b].Packets, byKind[a].Packets), a.Compare(b))
	})
	var said []ciliumSaid
	for _, c := range kinds[:min(len(kinds), mostSaid)] {
		x := ciliumSaid{
			CiliumDrop: c, From: endOf(v, c.SrcIdentity), To: endOf(v, c.DstIdentity), Of: v.Cilium.Numbered(c.Endpoint),
			Packets: byKind[c].Packets, Ports: v.SampledPorts(byKind[c]),
		}
		if c.Endpoint == 0 && h.direction() == model.Ingress && h.netns == v.Node.Netns {
			x.Of = model.First(v.Cilium.Endpoints, func(e *model.CiliumEndpoint) bool { return e.IfIndex == h.ifindex })
		}
		said = append(said, x)
	}
	counted := model.Chosen(v.Cilium.Counts, func(c *model.CiliumCount) bool { return c.Reason == h.cilium && c.Delta > 0 })
	closed := model.Filter(v.SampledServices(l), func(s node.Service) bool {
		return h.cilium == model.CiliumNoBackend && v.Cilium.ClosedPort(s.Pod, s.Port, s.Proto)
	})
	unmanaged, forgotten := takenForWorld(v, world)
	return words.Facts{
		"code": h.cilium, "said": said, "from": from && !to, "to": to && !from, "counted": counted,
		"world": node.Sorted(world), "maybe": node.Sorted(maybe), "unmanaged": unmanaged, "forgotten": forgotten,
		"closed": model.Map(closed, func(s node.Service) string { return netip.AddrPortFrom(s.Pod, s.Port).String() }),
		"served": model.Chosen(v.Cilium.Services, func(x *model.CiliumService) bool {
			return slices.ContainsFunc(closed, func(s node.Service) bool { return s.Pod == x.Addr.Addr() })
		}),
		"denied": h.cilium.Denied(), "error": said[0].Error, "endpoint": said[0].Of,
	}
}

// mostSaid is how many kinds of drops are shown.
const mostSaid = 4

func endOf(v *node.Index, id model.CiliumIdentity) ciliumEnd {
	return ciliumEnd{id, id.Reserved(), v.Cilium.Labels(id)}
}

// takenForWorld are the pods among addresses that Cilium takes for the outside: those of this
// node of which it has no endpoint, and the addresses that its programs do not know.
func takenForWorld(v *node.Index, world map[netip.Addr]bool) (unmanaged []*model.Pod, forgotten []netip.Addr) {
	known, managed := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	if len(world) > 0 {
		for _, x := range v.Cilium.Known {
			known[x.Prefix.Addr()] = x.Prefix.IsSingleIP()
		}
		for e := range model.Each(v.Cilium.Endpoints) {
			maps.Copy(managed, node.SetOf(e.Addresses))
		}
	}
	for _, a := range node.Sorted(world) {
		switch pods := v.Owners[a]; {
		case len(pods) > 0 && len(managed) > 0 && v.Has(model.SourceCilium) && !managed[a]:
			unmanaged = append(unmanaged, pods[0])
		case len(known) > 0 && !known[a]:
			forgotten = append(forgotten, a)
		}
	}
	return unmanaged, forgotten
}
