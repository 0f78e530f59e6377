package diagnose

import (
	"cmp"
	"fmt"
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

// hookWords are the hooks whose programs the kernel drops with a reason for.
var hookWords = map[model.Reason]string{
	"TC_INGRESS":        "the ingress hook of tc",
	"TC_EGRESS":         "the egress hook of tc",
	"XDP":               "XDP",
	"BPF_CGROUP_EGRESS": "a cgroup's egress hook",
	netkitPeer:          "the hook of netkit behind the other end",
	netkitPrimary:       "the hook of netkit behind this end",
}

// The hooks of a netkit pair, which the kernel gives no reasons: what the other end
// sends, and what the primary sends.
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
	hooks := map[hook]*lost{}
	var order []hook
	for d := range model.Each(v.Traffic.Drops) {
		k := hook{d.Reason, d.Netns, d.IfIndex, d.Link}
		switch {
		case d.XDP():
			k.reason = "XDP"
		case d.Location == "netkit_xmit":
			k = v.netkitHook(k, d)
		}
		if hookWords[k.reason] == "" || !v.ofPod(d) || v.explained(d) {
			continue
		}
		if k.ofCgroup() {
			k.ifindex, k.link = 0, ""
		}
		if hooks[k] == nil {
			hooks[k] = &lost{}
			order = append(order, k)
		}
		hooks[k].addFor(v.hookedPod(k, d), d)
	}
	var out []finding
	for _, k := range order {
		if l := hooks[k]; l.packets >= minDrops {
			out = append(out, finding{Finding: v.droppedByProgram(k, l), claims: sameDrops(l.drops)})
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

func (v *view) droppedByProgram(k hook, l *lost) model.Finding {
	f := l.finding()
	h := v.hooked(k, f.Pods[0])
	f.LastHopAlive = v.before(h, f.Pods[0])
	where := h.link
	if v.inside(h) {
		where += " inside of the pod"
	}
	place := hookWords[k.reason] + " of " + where
	if k.ofCgroup() {
		where, place = "a cgroup", hookWords[k.reason]
	}
	f.Title = fmt.Sprintf("a program on %s drops packets of %s", where, words.Addrs(f.Pods))
	f.Why = fmt.Sprintf("A program at %s told the kernel to drop %s.", place, words.Count(f.Packets, "packet"))
	f.Evidence = append(dropEvidence(l.drops), h.evidence()...)
	v.weighPrograms(&f, h)
	f.Fix = h.fix()
	return f
}

// evidence are the programs on the hook, in the order in which packets meet them.
// For a cgroup's hook they are those of all cgroups: a packet meets the programs of
// its process's cgroup and of those above it.
func (h *hookPlace) evidence() []model.Evidence {
	const most = 8
	var out []model.Evidence
	for i, p := range h.programs {
		if h.ofCgroup() && i == most {
			return append(out, model.Evidence{Source: model.SourcePrograms, Text: fmt.Sprintf("and %d more on cgroups", len(h.programs)-most)})
		}
		text := p.String()
		if !h.ofCgroup() {
			number := ""
			if len(h.programs) > 1 {
				number = fmt.Sprintf(", number %d of %d", i+1, len(h.programs))
			}
			text = fmt.Sprintf("on %s %s%s: %s", h.link, h.direction, number, p)
		}
		if owner := programOwner(p); owner != "" {
			text += " — owner: " + owner
		}
		out = append(out, model.Evidence{Source: model.SourcePrograms, Text: text})
	}
	return out
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

// hookPlace is a hook in words, with what was found there.
type hookPlace struct {
	hook
	link      string
	direction model.Direction
	// enter is what goes before a command to run it in the hook's namespace.
	enter    string
	programs []*model.Program
}

// hooked looks a hook up for a pod that lost packets there.
func (v *view) hooked(k hook, pod netip.Addr) hookPlace {
	h := hookPlace{hook: k, link: k.link, direction: model.Ingress}
	if k.reason == "TC_EGRESS" || k.reason == netkitPrimary || k.ofCgroup() {
		h.direction = model.Egress
	}
	for i := range v.Programs {
		if p := &v.Programs[i]; h.holds(p) {
			h.programs = append(h.programs, p)
			h.link = cmp.Or(h.link, p.Link)
		}
	}
	if k.link == "" {
		// The link is inside of the pod.
		p := v.pods[pod][0]
		h.link = cmp.Or(h.link, p.Interface)
		if h.link == "" && !h.ofCgroup() {
			h.link = "a link"
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

// weighPrograms adds what is not known of the program.
func (v *view) weighPrograms(f *model.Finding, h hookPlace) {
	switch {
	case h.ofCgroup() && len(h.programs) > 0:
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "the cgroup of the process that sent the packets: one of the programs on it, or on those above it, dropped them")
	case len(h.programs) == 0 && !v.Has(model.SourcePrograms):
		f.Unseen = append(f.Unseen, "the program's name and id: what is attached could not be read whole")
	case len(h.programs) == 0 && (h.reason == netkitPeer || h.reason == netkitPrimary):
		f.Alternatives = append(f.Alternatives, "the pair drops what no program passes, or its other end is down: ip -details link show dev "+words.Quote(h.link))
	case len(h.programs) == 0:
		f.Unseen = append(f.Unseen, "the program's name and id: nothing was attached there any more when the window ended")
	case len(h.programs) > 1:
		f.Unseen = append(f.Unseen, fmt.Sprintf("which of the %d dropped: a packet meets them in this order until one does", len(h.programs)))
	}
}

// fix are the commands that show what is on the hook, and the one that detaches a
// program without a known owner.
func (h *hookPlace) fix() []string {
	link := words.Quote(h.link)
	show := fmt.Sprintf("%sbpftool net show dev %s; %stc filter show dev %s %s", h.enter, link, h.enter, link, h.direction)
	switch h.reason {
	case netkitPeer, netkitPrimary:
		show = fmt.Sprintf("%sbpftool net show dev %s", h.enter, link)
	case "XDP":
		show = fmt.Sprintf("%sip -details link show dev %s", h.enter, link)
	case "BPF_CGROUP_EGRESS":
		// Any of them may be of no concern to the pod: none is to be detached.
		return []string{"bpftool cgroup tree; cat /proc/PID/cgroup for a process of the pod: the programs on that cgroup and those above it count"}
	}
	out := []string{show}
	owners := map[string]bool{}
	for _, p := range h.programs {
		owners[programOwner(p)] = true
	}
	for _, o := range programOwners {
		if owners[o.name] {
			out = append(out, o.advice...)
		}
	}
	if len(h.programs) != 1 || !owners[""] {
		return out
	}
	detach := ""
	switch p := h.programs[0]; p.Kind {
	case model.ProgramTC:
		detach = fmt.Sprintf("%stc filter del dev %s %s pref %d handle %s %s", h.enter, link, h.direction, p.Priority, p.TCHandle(), words.Quote(p.Filter))
	case model.ProgramXDP:
		// Without a mode, only the driver's own is meant.
		detach = fmt.Sprintf("%[1]sip link set dev %[2]s xdp off; %[1]sip link set dev %[2]s xdpgeneric off", h.enter, link)
	case model.ProgramNetkit:
		detach = fmt.Sprintf("end the process that holds its link: bpftool link show id %d", p.BPFLink)
	case model.ProgramTCX:
		detach = fmt.Sprintf("%sbpftool net detach tcx_%s dev %s # bpftool of Linux 6.12 or newer", h.enter, h.direction, link)
		if p.BPFLink != 0 {
			detach = fmt.Sprintf("end the process that holds its link: bpftool link show id %d", p.BPFLink)
		}
	}
	return append(out, "if nobody owns it: "+detach)
}

// programOwners are recognised by how their programs' names begin; tc's own names
// put a section's name after a file's. advice are commands that show why they drop.
var programOwners = []struct {
	name             string
	prefixes, advice []string
}{
	{"Calico", []string{"cali_", "calico_"}, []string{
		"owner: Calico; kubectl get networkpolicies -A; kubectl get globalnetworkpolicies.crd.projectcalico.org",
	}},
	{"Cilium", []string{"cil_", "bpf_lxc.o", "bpf_netdev", "bpf_host.o", "bpf_overlay.o"}, []string{
		"owner: Cilium; what it drops and why: kubectl -n kube-system exec ds/cilium -- cilium-dbg monitor --type drop",
		"kubectl get networkpolicies,ciliumnetworkpolicies -A; kubectl get ciliumclusterwidenetworkpolicies",
	}},
	{"systemd", []string{"sd_fw_"}, []string{
		"owner: systemd; systemctl show '*' -p Id,IPAddressAllow,IPAddressDeny",
	}},
}

// programOwner is whose program it is, empty where that is not known.
func programOwner(p *model.Program) string {
	for _, o := range programOwners {
		if slices.ContainsFunc(o.prefixes, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }) {
			return o.name
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
