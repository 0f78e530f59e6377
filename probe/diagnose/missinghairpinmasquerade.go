package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

var missingHairpinMasquerade = kind{
	page: Page{
		Code:     "MissingHairpinMasquerade",
		Severity: model.Warning,
		Title:    "a pod that a service leads to itself gets its packets back with its own address, and drops them",
		Meaning: "When a pod asks a service that it is a backend of, the translation may choose that very pod. The packet comes back " +
			"to it (a hairpin), and unless its source was translated too it bears the pod's own address, which no kernel takes " +
			"from outside. The requests to the other backends work, so that every n-th request of such a pod fails.",
		Evidence: "drops in the pod of packets from its own address to itself (IP_LOCAL_SOURCE); connection tracking, where a service " +
			"address leads back to who asked.",
		Fix:    "masquerade what a pod sends to itself: kube-proxy does so by its KUBE-MARK-MASQ rules for each endpoint.",
		Verify: "lasthop check --only MissingHairpinMasquerade",
	},
	find:  findMissingHairpinMasquerade,
	after: []string{"DuplicatePodIP"},
}

func findMissingHairpinMasquerade(v *view) []verdict {
	pods := map[netip.Addr]bool{}
	f := model.Finding{Confidence: model.Proven}
	var l lost
	for i := range v.Traffic.Drops {
		d := &v.Traffic.Drops[i]
		if ownSource(d) && len(v.pods[d.Src]) > 0 && !v.explained(d) {
			pods[d.Src] = true
			l.addFor(d.Src, d)
		}
	}
	if l.packets < minDrops {
		return nil
	}
	f.Packets = l.packets
	f.Pods = slices.SortedFunc(maps.Keys(pods), netip.Addr.Compare)
	f.Evidence = l.evidence()
	services := map[netip.Addr]bool{}
	for i := range v.Flows {
		w := &v.Flows[i]
		if a := w.Original.Src; pods[a] && w.Reply.Src == a && w.Reply.Dst == a && w.Original.Dst != a {
			services[w.Original.Dst] = true
		}
	}
	list := slices.SortedFunc(maps.Keys(services), netip.Addr.Compare)
	for _, a := range list {
		f.Peers = append(f.Peers, host(a))
	}
	f.Title = addrs(f.Pods) + " drop what a service leads back to them"
	f.Why = fmt.Sprintf("What %s ask of a service comes back to who asked, with the pod's own address as source: the pod drops it.", addrs(f.Pods))
	if len(list) > 0 {
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceConntrack, Text: fmt.Sprintf(
			"flows of %s to %s lead back to the same pod, the source is not translated", addrs(f.Pods), addrs(list))})
	} else {
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "a flow that a service address led back")
		f.Alternatives = append(f.Alternatives, "somebody else sends with the pod's address")
	}
	f.LastHopAlive = v.place(v.pods[f.Pods[0]][0].Link, model.Egress)
	for _, a := range f.Pods {
		f.Fix = append(f.Fix, fmt.Sprintf("iptables -t nat -I POSTROUTING -s %s -d %s -j MASQUERADE", a, a))
	}
	return []verdict{{Finding: f, explains: func(d *model.Drop) bool { return ownSource(d) && pods[d.Src] }}}
}

// ownSource reports whether a pod dropped a packet to itself that came from
// outside with its own address. IPv6 takes such packets. The reason has a name
// since Linux 6.15.
func ownSource(d *model.Drop) bool {
	return d.Src == d.Dst && d.Src.Is4() && (d.Reason == "IP_LOCAL_SOURCE" || d.Location == "ip_rcv_finish_core" && d.Reason != "IP_RPFILTER")
}
