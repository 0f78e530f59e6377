package diagnose

import (
	"fmt"

	"github.com/lasthop/lasthop/probe/model"
)

// NoListener is the code of this finding.
const NoListener model.Code = "NoListener"

var noListener = kind{
	page: Page{
		Code:     NoListener,
		Severity: model.Info,
		Title:    "packets reach a pod and nobody there listens",
		Meaning: "The packets were delivered into the pod, and no socket of it takes them: nothing listens on that port, or only on " +
			"another address. The pod answers TCP by a reset and UDP by an ICMP error. The network is not at fault.",
		Evidence: "drops for want of a socket (NO_SOCKET) in the pod's own namespace; the pod's resets and ICMP errors.",
		Fix:      "look at the application: its port, the address that it listens on, the target port of the service.",
	},
	find:  findNoListener,
	after: []model.Code{DuplicatePodIP},
	ends:  []model.HopKind{model.HopPod, model.HopLocal},
}

func findNoListener(v *view) []finding {
	samples := v.dropSamples()
	return v.atSockets(func(d *model.Drop) bool { return d.NoSocket() && v.drops.Lost(d) && !late(samples[keyOfDrop(d)]) }, v.unheard)
}

// late reports whether a sample is a segment of a connection that its socket has
// closed already, not a request to a closed port. A SYN and ACK is a reply too.
func late(s *model.Sample) bool {
	if s == nil || headProto(s.Head) != tcp {
		return false
	}
	const flags, syn, ack = 13, 0x02, 0x10
	t := transport(s.Head)
	return len(t) > flags && t[flags]&(syn|ack) != syn
}

func (v *view) unheard(p *model.Pod, l *lost) model.Finding {
	f, at := l.finding(), v.sampledPorts(l)
	f.Title = "nobody listens at " + at
	f.Why = fmt.Sprintf("The packets reached %s and no socket took them: nobody listens at %s. The network is not at fault.", podName(p), at)
	f.Evidence = dropEvidence(l.drops)
	var resets, errors uint64
	for h := range each(v.Traffic.Hops) {
		if h.Addr == f.Pods[0] && h.IfIndex == p.LinkIndex && h.Direction == model.Ingress && h.Side == model.AsSource {
			resets, errors = resets+h.RST, errors+h.ICMPErrors
		}
	}
	if resets+errors > 0 {
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceTC, Text: fmt.Sprintf(
			"%s ingress: the pod answered with %s and %s", p.Link, count(resets, "reset"), count(errors, "ICMP error"))})
	}
	f.Fix = []string{inside(p) + "ss -lntu # compare with the port and address that the clients use"}
	return f
}
