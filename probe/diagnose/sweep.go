package diagnose

import (
	"cmp"
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

// scan is what one pod asked in vain, without knowing who is there: of a range or, where that is not valid, of
// machines all over the internet, on ports that others there reply on.
type scan struct {
	pod     netip.Addr
	network netip.Prefix
	ports   []string
	remotes []netip.Addr
}

// findScans finds the pods that look for whoever is there: those that scan a range, and those that ask machines in many
// networks of the internet on a port on which some reply, as peers of a peer-to-peer network do. Silence of what only
// they ask proves nothing: perhaps nobody has these addresses. v.swept gets these pairs, as uplinks show them.
func (v *index) findScans() {
	type key struct {
		pod     netip.Addr
		network netip.Prefix
	}
	asked, askers := map[key]map[netip.Addr]bool{}, map[netip.Addr]map[netip.Addr]bool{}
	ports, shown := map[pair]map[protoPort]bool{}, map[pair]netip.Addr{}
	strangers, replied := map[spread]map[netip.Addr]bool{}, map[spread]bool{}
	for f := range model.Each(v.Flows) {
		pod, remote, at := f.Original.Src, f.Reply.Src, protoPort{proto: f.Proto, number: f.Reply.SrcPort}
		if f.Replied && model.Public(remote) {
			replied[spread{pod, at}] = true
		}
		if f.Replied || f.Proto != tcp && f.Proto != udp || remote != f.Original.Dst || len(v.Owners[pod]) == 0 ||
			len(v.Owners[remote]) > 0 {
			continue
		}
		include(askers, remote, pod, true)
		shown[pair{pod, remote}] = f.Reply.Dst
		if model.Public(remote) {
			include(strangers, spread{pod, at}, remote, true)
		}
		if !f.Start.IsZero() {
			include(asked, key{pod, v.networkOf(remote)}, remote, true)
			include(ports, pair{pod, remote}, at, true)
		}
	}
	alone := func(remotes map[netip.Addr]bool) (out []netip.Addr) {
		for a := range remotes {
			if len(askers[a]) == 1 {
				out = append(out, a)
			}
		}
		return out
	}
	for k, remotes := range asked {
		several := 0
		for a := range remotes {
			if len(ports[pair{k.pod, a}]) > fewPorts {
				several++
			}
		}
		// In a node's range there are pods.
		if v.nodeOf(k.network) == nil && (several > sweep || len(remotes) > mostPods) {
			v.scans = append(v.scans, scan{pod: k.pod, network: k.network, remotes: alone(remotes)})
		}
	}
	public := map[netip.Addr]*scan{}
	for of, remotes := range strangers {
		networks := map[netip.Prefix]bool{}
		for a := range remotes {
			networks[v.networkOf(a)] = true
		}
		if s := model.GetOrInsert(public, of.pod); replied[of] && len(networks) > sweep {
			s.pod, s.ports, s.remotes = of.pod, append(s.ports, of.port.String()), append(s.remotes, alone(remotes)...)
		}
	}
	for _, s := range public {
		if s.ports != nil {
			slices.Sort(s.ports)
			v.scans = append(v.scans, *s)
		}
	}
	for i := range v.scans {
		s := &v.scans[i]
		s.remotes = model.Unique(s.remotes)
		for _, a := range s.remotes {
			v.swept[pair{s.pod, a}], v.swept[pair{shown[pair{s.pod, a}], a}] = true, true
		}
	}
	slices.SortFunc(v.scans, func(a, b scan) int {
		return cmp.Or(a.pod.Compare(b.pod), netip.Prefix.Compare(a.network, b.network))
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
	name := model.ProtoName(p.proto)
	return model.Either(p.number == 0, name, fmt.Sprintf("%s/%d", name, p.number))
}

// networkOf is the pod range of another node that an address is in, or else the
// network that is taken for one where nothing tells: a /24 or /64.
func (v *index) networkOf(a netip.Addr) netip.Prefix {
	if p := v.remote(a); p.IsValid() {
		return p
	}
	return netip.PrefixFrom(a, model.Either(a.Is6(), podBits6, podBits4)).Masked()
}

// scanned tells of what pods looked for in vain.
func (v *view) reportScans() {
	for _, s := range v.scans {
		var silent []netip.Addr
		f := finding{page: "NoReply-scan"}
		f.facts = facts{"pod": v.Owners[s.pod][0], "asked": len(s.remotes), "ports": s.ports}
		f.Severity, f.Pods = model.Info, []netip.Addr{s.pod}
		for p := range model.Each(v.peers) {
			if _, found := slices.BinarySearchFunc(s.remotes, p.Remote, netip.Addr.Compare); found &&
				v.swept[pair{p.Local, p.Remote}] && v.unanswered(p) {
				silent = append(silent, p.Remote)
				f.Packets += p.Out.Packets
				f.LastHopAlive = v.place(v.linkName(p.IfIndex), model.Egress)
			}
		}
		if s.network.IsValid() {
			f.facts["network"] = s.network
		}
		if f.Peers = model.Hosts(model.Unique(silent)); len(silent) > 0 {
			v.report(f)
		}
	}
}
