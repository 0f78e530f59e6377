package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// BPFDrop is the code of this finding.
const BPFDrop model.Code = "BPFDrop"

var bpfDrop = kind{
	code:     BPFDrop,
	severity: model.Warning,
	find:     findBPFDrop,
	ends:     []model.HopKind{model.HopLink},
}

// hookReasons are those with which the kernel drops what a program says. A netkit pair's
// have none, so that they have names of their own: what the other end sends, and what the
// primary sends.
var hookReasons = []model.Reason{"TC_INGRESS", "TC_EGRESS", "XDP", "BPF_CGROUP_EGRESS", netkitPeer, netkitPrimary}

const netkitPeer, netkitPrimary model.Reason = "NETKIT_PEER", "NETKIT_PRIMARY"

// hook is one place where programs are attached.
type hook struct {
	reason  model.Reason
	netns   uint32
	ifindex int
	link    string
	// cilium is why Cilium's program there dropped the packets, where it said so.
	cilium model.CiliumReason
}

// ofCgroup reports whether the hook is a cgroup's, whatever link packets are for.
func (h *hook) ofCgroup() bool { return h.reason == "BPF_CGROUP_EGRESS" }

func (h *hook) direction() model.Direction {
	if h.reason == "TC_EGRESS" || h.reason == netkitPrimary || h.ofCgroup() {
		return model.Egress
	}
	return model.Ingress
}

func findBPFDrop(v *view) []finding {
	var out []finding
	owners := v.owners()
	of := func(d *model.Drop) (hook, netip.Addr) {
		k, pod := v.hookOf(d)
		k.cilium = owners.ciliumReason(&k, d)
		return k, pod
	}
	for k, l := range lostBy(v, of) {
		out = append(out, v.droppedByProgram(k, l))
	}
	return out
}

// hookOf is the hook whose program dropped a packet, and the pod that it concerns: that whose
// link the program is on, where one is.
func (v *view) hookOf(d *model.Drop) (k hook, _ netip.Addr) {
	k = hook{reason: d.Reason, netns: d.Netns, ifindex: d.IfIndex, link: d.Link}
	switch {
	case d.XDP():
		k.reason = "XDP"
	case d.Location == "netkit_xmit":
		k = v.netkitHook(k, d)
	}
	if !slices.Contains(hookReasons, k.reason) {
		return k, netip.Addr{}
	}
	if k.ofCgroup() {
		k.ifindex, k.link = 0, ""
	}
	for _, a := range []netip.Addr{d.Src, d.Dst} {
		for _, p := range v.pods[a] {
			if k.ifindex != 0 && p.LinkIndex == k.ifindex && k.netns == v.Node.Netns || p.Netns == k.netns && v.inside(&k) {
				return k, a
			}
		}
	}
	return k, v.pod(d)
}

// netkitHook is the hook of a netkit pair that a packet was dropped at. By then it is
// the receiving end's, whose programs have their place at the primary.
func (v *view) netkitHook(k hook, d *model.Drop) hook {
	k.reason = netkitPeer
	for _, a := range []netip.Addr{d.Dst, d.Src} {
		for _, p := range v.pods[a] {
			if k.netns != v.Node.Netns && p.Netns == k.netns {
				return hook{reason: netkitPrimary, netns: v.Node.Netns, ifindex: p.LinkIndex, link: p.Link}
			}
		}
	}
	return k
}

// inside reports whether the hook is in a pod's own namespace.
func (v *view) inside(h *hook) bool { return h.netns != 0 && h.netns != v.Node.Netns }

// ownedProgram is a program with its owner, empty where that is not known, and its place among
// those of the hook.
type ownedProgram struct {
	*model.Program
	Owner  string
	Number int
}

// anyLink stands for a link whose name is not known.
const anyLink = "a link"

func (v *view) droppedByProgram(h hook, l *lost) finding {
	pods := v.pods[sorted(l.pods)[0]]
	// A packet meets the programs of its process's cgroup and of those above it: they are all
	// shown, and none is to be detached, since any may be of no concern to the pod.
	cgroup, owners := h.ofCgroup(), map[string]bool{}
	f := finding{lost: l, facts: facts{
		"reason": h.reason, "cgroup": cgroup, "netkit": h.reason == netkitPeer || h.reason == netkitPrimary, "xdp": h.reason == "XDP",
		"direction": h.direction(), "inside": v.inside(&h), "owners": owners, "read": v.Has(model.SourcePrograms), "enter": "",
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
		f.facts["enter"] = words.Inside(pods[0]) // The link is inside of it.
		if link = cmp.Or(link, pods[0].Interface); !cgroup {
			link = cmp.Or(link, anyLink)
		}
	}
	h.link = link
	if len(programs) == 1 && owners[""] {
		f.facts["detach"] = programs[0]
	}
	f.facts["link"], f.facts["programs"], f.facts["several"] = h.link, programs, len(programs) > 1
	f.Confidence, f.LastHopAlive = model.Proven, v.before(&h, pods)
	if cgroup && len(programs) > 0 {
		f.Confidence = model.Likely
	}
	if owners[model.OwnerCilium] && h.cilium == 0 {
		f.facts["quiet"] = slices.ContainsFunc(v.Cilium.Endpoints, func(e model.CiliumEndpoint) bool { return e.Quiet })
		f.facts["counted"] = chosen(v.Cilium.Counts, func(c *model.CiliumCount) bool { return c.Delta > 0 })
	}
	if h.cilium != 0 {
		f.page = "BPFDrop-cilium"
		maps.Copy(f.facts, v.ciliumFacts(&h, l))
	}
	return f
}

// before is where packets were last counted before the hook. XDP runs before the
// programs that count at its link, so that this is the pod's own end where the link
// is a pod's.
func (v *view) before(h *hook, pods []*model.Pod) model.Place {
	switch {
	case v.inside(h):
		return model.Place{Link: h.link, Role: model.RolePod, Direction: h.direction()}
	case h.ofCgroup():
		return model.Place{Direction: h.direction()}
	case h.reason == "XDP" && h.netns == v.Node.Netns:
		for _, p := range pods {
			if p.LinkIndex == h.ifindex {
				return model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
			}
		}
	}
	return v.place(h.link, h.direction())
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
	switch h.reason {
	case "XDP":
		return p.Kind == model.ProgramXDP
	case netkitPeer, netkitPrimary:
		return p.Kind == model.ProgramNetkit
	}
	return p.Kind == model.ProgramTCX || p.Kind == model.ProgramTC
}
