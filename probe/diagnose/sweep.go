package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

const (
	// sweep is more addresses than are wanted of machines that went away: who asks for
	// so many that nobody answers for, on more ports each than one application has, looks
	// for whoever is there. What reads metrics asks for as many on one port or two.
	sweep, fewPorts = 16, 2
	// mostPods is how many pods a node has at most, unless it is told otherwise. Who
	// asks in vain for more addresses of one range knows none of them.
	mostPods = 110
)

// scan is what one pod asked of a range in vain, without knowing who is there.
type scan struct {
	pod     netip.Addr
	network netip.Prefix
	remotes []netip.Addr
}

// findScans finds the pods that look for whoever is there. Silence of what only they
// ask proves nothing: perhaps nobody has these addresses. v.swept gets these pairs, as
// uplinks show them.
func (v *view) findScans() {
	type key struct {
		pod     netip.Addr
		network netip.Prefix
	}
	type port struct {
		proto  uint8
		number uint16
	}
	asked, askers := map[key]map[netip.Addr]map[port]bool{}, map[netip.Addr]map[netip.Addr]bool{}
	shown := map[pair]netip.Addr{}
	for f := range model.Each(v.Flows) {
		pod, remote := f.Original.Src, f.Reply.Src
		if f.Replied || f.Start.IsZero() || f.Proto != tcp && f.Proto != udp || len(v.pods[pod]) == 0 || len(v.pods[remote]) > 0 || remote != f.Original.Dst {
			continue
		}
		if askers[remote] == nil {
			askers[remote] = map[netip.Addr]bool{}
		}
		askers[remote][pod] = true
		shown[pair{pod, remote}] = f.Reply.Dst
		k := key{pod, v.networkOf(remote)}
		if asked[k] == nil {
			asked[k] = map[netip.Addr]map[port]bool{}
		}
		if asked[k][remote] == nil {
			asked[k][remote] = map[port]bool{}
		}
		asked[k][remote][port{f.Proto, f.Reply.SrcPort}] = true
	}
	for k, remotes := range asked {
		if v.nodeOf(k.network) != nil {
			continue // There are pods.
		}
		several := 0
		s := scan{pod: k.pod, network: k.network}
		for a, ports := range remotes {
			if len(ports) > fewPorts {
				several++
			}
			if len(askers[a]) == 1 {
				s.remotes = append(s.remotes, a)
			}
		}
		if several <= sweep && len(remotes) <= mostPods {
			continue
		}
		slices.SortFunc(s.remotes, netip.Addr.Compare)
		for _, a := range s.remotes {
			v.swept[pair{k.pod, a}], v.swept[pair{shown[pair{k.pod, a}], a}] = true, true
		}
		v.scans = append(v.scans, s)
	}
	slices.SortFunc(v.scans, func(a, b scan) int {
		if c := a.pod.Compare(b.pod); c != 0 {
			return c
		}
		return comparePrefix(a.network, b.network)
	})
}

// networkOf is the pod range of another node that an address is in, or else the
// network that is taken for one where nothing tells: a /24 or /64.
func (v *view) networkOf(a netip.Addr) netip.Prefix {
	if p := v.remote(a); p.IsValid() {
		return p
	}
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// scanned tells of what pods looked for in vain.
func (v *view) scanned() []finding {
	var out []finding
	for _, s := range v.scans {
		var silent []netip.Addr
		f := model.Finding{Severity: model.Info, Confidence: model.Likely, Pods: []netip.Addr{s.pod}}
		for p := range model.Each(v.peers) {
			if v.swept[pair{p.Local, p.Remote}] && slices.Contains(s.remotes, p.Remote) && v.unanswered(p) {
				silent = append(silent, p.Remote)
				f.Packets += p.Out.Packets
				f.LastHopAlive = v.place(v.linkName(p.IfIndex), model.Egress)
			}
		}
		if len(silent) == 0 {
			continue
		}
		slices.SortFunc(silent, netip.Addr.Compare)
		silent = slices.Compact(silent)
		f.Peers = hosts(silent)
		f.Title = fmt.Sprintf("%s asks for %d addresses of %s that do not reply", s.pod, len(silent), s.network)
		f.Why = fmt.Sprintf("%s asks for many addresses of %s, which no other pod asks for, as a scan does. Perhaps nobody has them: their silence tells nothing of the network.",
			podName(v.pods[s.pod][0]), s.network)
		observe(&f, model.SourceConntrack, "flows to %d addresses of %s UNREPLIED that began in the window, on many ports each or of more addresses than a node has pods",
			len(s.remotes), s.network)
		f.Unseen = []string{"who has these addresses"}
		f.Alternatives = []string{"the pod knows them all, and all are silent: then look at one of them alone, lasthop explain " + s.pod.String() + " --to " + silent[0].String()}
		f.Fix = []string{"look at what runs in " + podName(v.pods[s.pod][0]) + ": a scan that is meant needs no cure"}
		out = append(out, finding{Finding: f})
	}
	return out
}
