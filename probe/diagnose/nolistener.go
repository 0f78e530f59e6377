package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

var noListener = kind{
	page: Page{
		Code:     "NoListener",
		Severity: model.Info,
		Title:    "packets reach a pod and nobody there listens",
		Meaning: "The packets were delivered into the pod, and no socket of it takes them: nothing listens on that port, or only on " +
			"another address. The pod answers TCP by a reset and UDP by an ICMP error. The network is not at fault.",
		Evidence: "drops for want of a socket (NO_SOCKET) in the pod's own namespace; the pod's resets and ICMP errors.",
		Fix:      "look at the application: its port, the address that it listens on, the target port of the service.",
		Verify:   "lasthop check --only NoListener",
	},
	find: findNoListener,
}

func findNoListener(v *view) []verdict {
	samples := v.dropSamples()
	return v.delivered(func(d *model.Drop) bool { return noSocket(d) && !v.harmless(d) && !late(samples[keyOfDrop(d)]) }, v.unheard)
}

// delivered groups the drops at sockets of living pods by pod.
func (v *view) delivered(of func(*model.Drop) bool, judge func(netip.Addr, []*model.Drop) model.Finding) []verdict {
	byPod := map[netip.Addr][]*model.Drop{}
	for i := range v.Traffic.Drops {
		d := &v.Traffic.Drops[i]
		if of(d) && len(v.pods[d.Dst]) > 0 && !v.explained(d) && (d.Netns == 0 || v.inPod(d) == d.Dst) {
			byPod[d.Dst] = append(byPod[d.Dst], d)
		}
	}
	var out []verdict
	for _, pod := range slices.SortedFunc(maps.Keys(byPod), netip.Addr.Compare) {
		f := judge(pod, byPod[pod])
		peers := map[netip.Addr]bool{}
		for _, d := range byPod[pod] {
			f.Packets += d.Packets
			peers[d.Src] = true
		}
		if f.Packets < minDrops {
			continue
		}
		f.Pods = []netip.Addr{pod}
		f.Peers = hosts(slices.SortedFunc(maps.Keys(peers), netip.Addr.Compare))
		p := v.pods[pod][0]
		f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
		out = append(out, verdict{Finding: f, explains: sameDrops(byPod[pod])})
	}
	return out
}

// noSocket reports whether a packet was dropped for want of a socket. Before
// Linux 5.17 the lookup's function alone tells, for UDP.
func noSocket(d *model.Drop) bool {
	return d.Reason == "NO_SOCKET" || d.Reason == "" && (d.Location == "__udp4_lib_rcv" || d.Location == "__udp6_lib_rcv")
}

// late reports whether a sample is a segment of a connection that its socket
// has left already, and no question to a closed port: an answer to a question
// is none either.
func late(s *model.Sample) bool {
	if s == nil || headProto(s.Head) != tcp {
		return false
	}
	const flags, syn, ack = 13, 0x02, 0x10
	t := transport(s.Head)
	return len(t) > flags && t[flags]&(syn|ack) != syn
}

// portsOf names the ports that the sampled packets went to.
func (v *view) portsOf(drops []*model.Drop) string {
	samples := v.dropSamples()
	seen := map[string]bool{}
	for _, d := range drops {
		s := samples[keyOfDrop(d)]
		if s == nil {
			continue
		}
		if _, port, ok := ports(s.Head); ok {
			seen[fmt.Sprintf("%s/%d", protoName(d.Proto), port)] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
}

func protoName(p uint8) string {
	switch p {
	case tcp:
		return "tcp"
	case udp:
		return "udp"
	case icmp4, icmp6:
		return "icmp"
	}
	return fmt.Sprintf("protocol %d", p)
}

func (v *view) unheard(pod netip.Addr, drops []*model.Drop) model.Finding {
	f := model.Finding{Confidence: model.Proven}
	p := v.pods[pod][0]
	at := pod.String()
	if s := v.portsOf(drops); s != "" {
		at += " " + s
	}
	f.Title = "nobody listens at " + at
	f.Why = fmt.Sprintf("The packets reached %s and no socket took them: nobody listens at %s. The network is not at fault.", podName(p), at)
	f.Evidence = dropEvidence(drops)
	var resets, errors uint64
	for i := range v.Traffic.Hops {
		h := &v.Traffic.Hops[i]
		if h.Addr == pod && h.IfIndex == p.LinkIndex && h.Direction == model.Ingress && h.Side == model.AsSource {
			resets, errors = resets+h.RST, errors+h.ICMPErrors
		}
	}
	if resets+errors > 0 {
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceTC, Text: fmt.Sprintf(
			"%s ingress: the pod answered with %s and %s", p.Link, count(resets, "reset"), count(errors, "ICMP error"))})
	}
	f.Fix = []string{inside(p) + "ss -lntu; compare with the port and address that the clients use"}
	return f
}
