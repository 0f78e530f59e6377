package diagnose

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

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
}

// ofCgroup reports whether the hook is a cgroup's, whatever link packets are for.
func (h *hook) ofCgroup() bool { return h.reason == "BPF_CGROUP_EGRESS" }

func findBPFDrop(v *view) []finding {
	var hooks groups[hook, lost]
	for d := range model.Each(v.Traffic.Drops) {
		k := hook{d.Reason, d.Netns, d.IfIndex, d.Link}
		switch {
		case d.XDP():
			k.reason = "XDP"
		case d.Location == "netkit_xmit":
			k = v.netkitHook(k, d)
		}
		if !slices.Contains(hookReasons, k.reason) || !v.ofPod(d) || v.explained(d) {
			continue
		}
		if k.ofCgroup() {
			k.ifindex, k.link = 0, ""
		}
		hooks.of(k).addFor(v.hookedPod(k, d), d)
	}
	var out []finding
	for k, l := range hooks.all() {
		if l.packets >= minDrops {
			out = append(out, v.droppedByProgram(k, l))
		}
	}
	return out
}

// netkitHook is the hook of a netkit pair that a packet was dropped at. By then it is
// the receiving end's, whose programs have their place at the primary.
func (v *view) netkitHook(k hook, d *model.Drop) hook {
	k.reason = netkitPeer
	for _, a := range []netip.Addr{d.Dst, d.Src} {
		for _, p := range v.pods[a] {
			if k.netns != v.Node.Netns && p.Netns == k.netns {
				return hook{netkitPrimary, v.Node.Netns, p.LinkIndex, p.Link}
			}
		}
	}
	return k
}

func (v *view) droppedByProgram(k hook, l *lost) finding {
	pod := sorted(l.pods)[0]
	h := v.hooked(k, pod)
	// A packet meets the programs of its process's cgroup and of those above it: they are all
	// shown, and none is to be detached, since any may be of no concern to the pod.
	cgroup, owners := h.ofCgroup(), map[string]bool{}
	f := finding{lost: l, facts: facts{
		"reason": h.reason, "cgroup": cgroup, "netkit": h.reason == netkitPeer || h.reason == netkitPrimary, "xdp": h.reason == "XDP",
		"link": h.link, "direction": h.direction, "inside": v.inside(h), "enter": h.enter, "programs": h.programs, "owners": owners,
		"read": v.Has(model.SourcePrograms), "several": len(h.programs) > 1,
	}}
	for _, p := range h.programs {
		owners[p.Owner] = !cgroup
	}
	if len(h.programs) == 1 && owners[""] {
		f.facts["detach"] = h.programs[0]
	}
	f.Confidence, f.LastHopAlive = model.Proven, v.before(h, pod)
	if cgroup && len(h.programs) > 0 {
		f.Confidence = model.Likely
	}
	return f
}

// before is where packets were last counted before the hook. XDP runs before the
// programs that count at its link, so that this is the pod's own end where the link
// is a pod's.
func (v *view) before(h hookPlace, pod netip.Addr) model.Place {
	switch {
	case v.inside(h):
		return model.Place{Link: h.link, Role: model.RolePod, Direction: h.direction}
	case h.ofCgroup():
		return model.Place{Direction: h.direction}
	}
	if h.reason == "XDP" && h.netns == v.Node.Netns {
		for _, p := range v.pods[pod] {
			if p.LinkIndex == h.ifindex {
				return model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
			}
		}
	}
	return v.place(h.link, h.direction)
}

// inside reports whether the hook is in a pod's own namespace.
func (v *view) inside(h hookPlace) bool { return h.netns != 0 && h.netns != v.Node.Netns }

// hookPlace is a hook with what was found there.
type hookPlace struct {
	hook
	direction model.Direction
	// enter is what goes before a command to run it in the hook's namespace.
	enter    string
	programs []ownedProgram
}

// ownedProgram is a program with its owner, empty where that is not known.
type ownedProgram struct {
	*model.Program
	Owner string
}

// anyLink stands for a link whose name is not known.
const anyLink = "a link"

// hooked looks a hook up for a pod that lost packets there.
func (v *view) hooked(k hook, pod netip.Addr) hookPlace {
	h := hookPlace{hook: k, direction: model.Ingress}
	if k.reason == "TC_EGRESS" || k.reason == netkitPrimary || k.ofCgroup() {
		h.direction = model.Egress
	}
	for p := range model.Each(v.Programs) {
		if h.holds(p) {
			h.programs = append(h.programs, ownedProgram{p, programOwner(p)})
			h.link = cmp.Or(h.link, p.Link)
		}
	}
	if k.link == "" {
		// The link is inside of the pod.
		p := v.pods[pod][0]
		if h.link = cmp.Or(h.link, p.Interface); !h.ofCgroup() {
			h.link = cmp.Or(h.link, anyLink)
		}
		h.enter = words.Inside(p)
	}
	return h
}

// holds reports whether packets meet the program at the hook, or may meet it on a
// cgroup: which cgroup the sending process is in is not known.
func (h *hookPlace) holds(p *model.Program) bool {
	if h.ofCgroup() {
		return p.Kind == model.ProgramCgroup && p.Direction == model.Egress
	}
	if p.Netns != h.netns || p.IfIndex != h.ifindex || p.Direction != h.direction {
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

// programOwners are recognised by how their programs' names begin; tc's own names
// put a section's name after a file's.
var programOwners = map[string][]string{
	"Calico":  {"cali_", "calico_"},
	"Cilium":  {"cil_", "bpf_lxc.o", "bpf_netdev", "bpf_host.o", "bpf_overlay.o"},
	"systemd": {"sd_fw_"},
}

// programOwner is whose program it is, empty where that is not known.
func programOwner(p *model.Program) string {
	for name, prefixes := range programOwners {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }) {
			return name
		}
	}
	return ""
}

// hookedPod is the end of a drop whose link the program is on, where one is.
func (v *view) hookedPod(k hook, d *model.Drop) netip.Addr {
	for _, a := range []netip.Addr{d.Src, d.Dst} {
		for _, p := range v.pods[a] {
			if k.ifindex != 0 && p.LinkIndex == k.ifindex && k.netns == v.Node.Netns || p.Netns == k.netns && k.netns != 0 && k.netns != v.Node.Netns {
				return a
			}
		}
	}
	return v.pod(d)
}
