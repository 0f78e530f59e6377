package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

var bpfDrop = kind{
	page: Page{
		Code:     "BPFDrop",
		Severity: model.Warning,
		Title:    "a program on a link drops packets of pods",
		Meaning: "A program that is attached to a link (tc ingress or egress, XDP) or to a cgroup tells the kernel to drop. That is how " +
			"Cilium and others enforce policies; a program that somebody left behind drops as well. No iptables rule shows it.",
		Evidence: "the drops with the reason TC_INGRESS, TC_EGRESS, XDP or BPF_CGROUP_EGRESS, and the link.",
		Fix:      "list what is attached to that link (bpftool net show, tc filter show) and ask its owner.",
		Verify:   "lasthop check --only BPFDrop",
	},
	find: findBPFDrop,
}

// hookWords say where a program that drops with a reason is attached.
var hookWords = map[model.Reason]string{
	"TC_INGRESS":        "the ingress hook of tc",
	"TC_EGRESS":         "the egress hook of tc",
	"XDP":               "XDP",
	"BPF_CGROUP_EGRESS": "a cgroup's egress hook",
}

// hook is one place where programs are attached.
type hook struct {
	reason  model.Reason
	netns   uint32
	ifindex int
	link    string
}

func findBPFDrop(v *view) []verdict {
	hooks := map[hook][]*model.Drop{}
	var order []hook
	for i := range v.Traffic.Drops {
		d := &v.Traffic.Drops[i]
		if hookWords[d.Reason] == "" || v.pod(d) == (netip.Addr{}) || v.explained(d) {
			continue
		}
		k := hook{d.Reason, d.Netns, d.IfIndex, d.Link}
		if hooks[k] == nil {
			order = append(order, k)
		}
		hooks[k] = append(hooks[k], d)
	}
	var out []verdict
	for _, k := range order {
		if f, ok := v.droppedByProgram(k, hooks[k]); ok {
			out = append(out, verdict{Finding: f, explains: sameDrops(hooks[k])})
		}
	}
	return out
}

func (v *view) droppedByProgram(k hook, drops []*model.Drop) (model.Finding, bool) {
	f := model.Finding{Confidence: model.Proven}
	pods, peers := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, d := range drops {
		f.Packets += d.Packets
		pod := v.hookedPod(k, d)
		pods[pod], peers[otherEnd(d, pod)] = true, true
	}
	if f.Packets < minDrops {
		return f, false
	}
	f.Pods = slices.SortedFunc(maps.Keys(pods), netip.Addr.Compare)
	for _, a := range slices.SortedFunc(maps.Keys(peers), netip.Addr.Compare) {
		f.Peers = append(f.Peers, host(a))
	}
	link, enter := k.link, ""
	if link == "" {
		// The link is inside of the pod, whose names are not known here.
		p := v.pods[f.Pods[0]][0]
		link = p.Interface
		if p.NetnsName != "" {
			enter = fmt.Sprintf("nsenter --net=%s ", p.NetnsName)
		}
	}
	if link == "" {
		link = "a link"
	}
	direction := model.Ingress
	if k.reason == "TC_EGRESS" {
		direction = model.Egress
	}
	f.LastHopAlive = v.place(link, direction)
	f.Title = fmt.Sprintf("a program on %s drops packets of %s", link, addrs(f.Pods))
	f.Why = fmt.Sprintf("A program at %s of %s told the kernel to drop %s.", hookWords[k.reason], link, count(f.Packets, "packet"))
	f.Evidence = dropEvidence(drops)
	f.Unseen = []string{"the program's name and id"}
	f.Fix = []string{fmt.Sprintf("%sbpftool net show dev %s; %stc filter show dev %s %s", enter, link, enter, link, direction)}
	return f, true
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
