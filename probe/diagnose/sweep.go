package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
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

// scan is what one pod asked in vain, without knowing who is there: of a range or, where
// that is not valid, of machines all over the internet, on ports that others there
// reply on.
type scan struct {
	pod     netip.Addr
	network netip.Prefix
	ports   []string
	remotes []netip.Addr
}

// findScans finds the pods that look for whoever is there: those that scan a range, and
// those that ask machines in many networks of the internet on a port on which some
// reply, as peers of a peer-to-peer network do. Silence of what only they ask proves
// nothing: perhaps nobody has these addresses. v.swept gets these pairs, as uplinks show
// them.
func (v *view) findScans() {
	type key struct {
		pod     netip.Addr
		network netip.Prefix
	}
	asked, askers := map[key]map[netip.Addr]map[protoPort]bool{}, map[netip.Addr]map[netip.Addr]bool{}
	shown := map[pair]netip.Addr{}
	strangers := map[spread]map[netip.Addr]bool{}
	replied := map[spread]bool{}
	for f := range model.Each(v.Flows) {
		pod, remote := f.Original.Src, f.Reply.Src
		if of := (spread{pod, protoPort{f.Proto, f.Reply.SrcPort}}); isPublic(remote) && f.Replied {
			replied[of] = true
		}
		if f.Replied || f.Proto != tcp && f.Proto != udp || len(v.pods[pod]) == 0 || len(v.pods[remote]) > 0 || remote != f.Original.Dst {
			continue
		}
		if askers[remote] == nil {
			askers[remote] = map[netip.Addr]bool{}
		}
		askers[remote][pod] = true
		shown[pair{pod, remote}] = f.Reply.Dst
		at := protoPort{f.Proto, f.Reply.SrcPort}
		if of := (spread{pod, at}); isPublic(remote) {
			if strangers[of] == nil {
				strangers[of] = map[netip.Addr]bool{}
			}
			strangers[of][remote] = true
		}
		if f.Start.IsZero() {
			continue
		}
		k := key{pod, v.networkOf(remote)}
		if asked[k] == nil {
			asked[k] = map[netip.Addr]map[protoPort]bool{}
		}
		if asked[k][remote] == nil {
			asked[k][remote] = map[protoPort]bool{}
		}
		asked[k][remote][at] = true
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
		v.scans = append(v.scans, s)
	}
	ports, gone := map[netip.Addr][]string{}, map[netip.Addr]map[netip.Addr]bool{}
	for of, remotes := range strangers {
		networks := map[netip.Prefix]bool{}
		for a := range remotes {
			networks[v.networkOf(a)] = true
		}
		if replied[of] && len(networks) > sweep {
			ports[of.pod] = append(ports[of.pod], of.port.String())
			maps.DeleteFunc(remotes, func(a netip.Addr, _ bool) bool { return len(askers[a]) > 1 })
			if gone[of.pod] == nil {
				gone[of.pod] = map[netip.Addr]bool{}
			}
			maps.Copy(gone[of.pod], remotes)
		}
	}
	for pod, remotes := range gone {
		slices.Sort(ports[pod])
		v.scans = append(v.scans, scan{pod: pod, ports: ports[pod], remotes: sorted(remotes)})
	}
	for _, s := range v.scans {
		slices.SortFunc(s.remotes, netip.Addr.Compare)
		for _, a := range s.remotes {
			v.swept[pair{s.pod, a}], v.swept[pair{shown[pair{s.pod, a}], a}] = true, true
		}
	}
	slices.SortFunc(v.scans, func(a, b scan) int {
		return cmp.Or(a.pod.Compare(b.pod), comparePrefix(a.network, b.network))
	})
}

// spread is what a pod asks on one port, of whoever.
type spread struct {
	pod  netip.Addr
	port protoPort
}

type protoPort struct {
	proto  uint8
	number uint16
}

func (p protoPort) String() string {
	return fmt.Sprintf("%s/%d", model.ProtoName(p.proto), p.number)
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
			if _, found := slices.BinarySearchFunc(s.remotes, p.Remote, netip.Addr.Compare); found && v.swept[pair{p.Local, p.Remote}] && v.unanswered(p) {
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
			words.PodName(v.pods[s.pod][0]), s.network)
		observe(&f, model.SourceConntrack, "flows to %d addresses of %s UNREPLIED that began in the window, on many ports each or of more addresses than a node has pods",
			len(s.remotes), s.network)
		if !s.network.IsValid() {
			f.Title = fmt.Sprintf("%s asks for %d addresses of the internet that do not reply on %s", s.pod, len(silent), strings.Join(s.ports, ", "))
			f.Why = fmt.Sprintf("%s asks for addresses of many networks on %s, on which others reply, as peers of a peer-to-peer network do. "+
				"Those that do not reply are gone, or let nobody in.", words.PodName(v.pods[s.pod][0]), strings.Join(s.ports, ", "))
			f.Evidence = []model.Evidence{seen(model.SourceConntrack, "flows to %d addresses on %s UNREPLIED; others on that port replied to",
				len(s.remotes), strings.Join(s.ports, ", "))}
		}
		f.Unseen = []string{"who has these addresses"}
		f.Alternatives = []string{"the pod knows them all, and all are silent: then look at one of them alone, lasthop explain " + s.pod.String() + " --to " + silent[0].String()}
		f.Fix = []string{"look at what runs in " + words.PodName(v.pods[s.pod][0]) + ": a scan that is meant needs no cure"}
		out = append(out, finding{Finding: f})
	}
	return out
}
