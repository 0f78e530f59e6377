package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

const (
	// Sweep is more addresses than are wanted of machines that went away: who asks for
	// so many that nobody answers for, on more ports each than one application has, looks
	// for whoever is there. What reads metrics asks for as many on one port or two.
	Sweep, fewPorts = 16, 2
	// mostPods is how many pods a node has at most, unless it is told otherwise. Who
	// asks for more addresses of one range without an answer knows none of them.
	mostPods = 110
)

// Scan is what one pod asked without an answer, as it does not know who is there: of a range or, where that is not valid, of
// machines all over the internet, on ports that others there reply on.
type Scan struct {
	Pod     netip.Addr
	Network netip.Prefix
	Ports   []string
	Remotes []netip.Addr
}

// findScans finds the pods that look for whoever is there: those that scan a range, and those that ask machines in many
// networks of the internet on a port on which some reply, as peers of a peer-to-peer network do. Silence of what only
// they ask proves nothing: perhaps nobody has these addresses. v.swept gets these pairs, as uplinks show them.
func (v *Index) findScans() {
	type key struct {
		pod     netip.Addr
		network netip.Prefix
	}
	asked, askers := map[key]map[netip.Addr]bool{}, map[netip.Addr]map[netip.Addr]bool{}
	ports, shown := map[Pair]map[ProtoPort]bool{}, map[Pair]netip.Addr{}
	strangers, replied := map[spread]map[netip.Addr]bool{}, map[spread]bool{}
	for f := range model.Each(v.Flows) {
		pod, remote, at := f.Original.Src, f.Reply.Src, ProtoPort{Proto: f.Proto, Number: f.Reply.SrcPort}
		if f.Replied && model.Public(remote) {
			replied[spread{pod, at}] = true
		}
		if f.Replied || f.Proto != model.TCP && f.Proto != model.UDP || remote != f.Original.Dst || len(v.Owners[pod]) == 0 ||
			len(v.Owners[remote]) > 0 {
			continue
		}
		model.Include(askers, remote, pod, true)
		shown[Pair{pod, remote}] = f.Reply.Dst
		if model.Public(remote) {
			model.Include(strangers, spread{pod, at}, remote, true)
		}
		if !f.Start.IsZero() {
			model.Include(asked, key{pod, v.networkOf(remote)}, remote, true)
			model.Include(ports, Pair{pod, remote}, at, true)
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
			if len(ports[Pair{k.pod, a}]) > fewPorts {
				several++
			}
		}
		// In a node's range there are pods.
		if v.NodeOf(k.network) == nil && (several > Sweep || len(remotes) > mostPods) {
			v.Scans = append(v.Scans, Scan{Pod: k.pod, Network: k.network, Remotes: alone(remotes)})
		}
	}
	public := map[netip.Addr]*Scan{}
	for of, remotes := range strangers {
		networks := map[netip.Prefix]bool{}
		for a := range remotes {
			networks[v.networkOf(a)] = true
		}
		if s := model.GetOrInsert(public, of.pod); replied[of] && len(networks) > Sweep {
			s.Pod, s.Ports, s.Remotes = of.pod, append(s.Ports, of.port.String()), append(s.Remotes, alone(remotes)...)
		}
	}
	for _, s := range public {
		if s.Ports != nil {
			slices.Sort(s.Ports)
			v.Scans = append(v.Scans, *s)
		}
	}
	for i := range v.Scans {
		s := &v.Scans[i]
		s.Remotes = model.Unique(s.Remotes)
		for _, a := range s.Remotes {
			v.Swept[Pair{s.Pod, a}], v.Swept[Pair{shown[Pair{s.Pod, a}], a}] = true, true
		}
	}
	slices.SortFunc(v.Scans, func(a, b Scan) int {
		return cmp.Or(a.Pod.Compare(b.Pod), netip.Prefix.Compare(a.Network, b.Network))
	})
}

// spread is what a pod asks on one port, of any address.
type spread struct {
	pod  netip.Addr
	port ProtoPort
}

// ProtoPort is a protocol with a port.
type ProtoPort struct {
	Proto  uint8
	Number uint16
}

func (p ProtoPort) String() string {
	name := model.ProtoName(p.Proto)
	return model.Either(p.Number == 0, name, fmt.Sprintf("%s/%d", name, p.Number))
}

// networkOf is the pod range of another node that an address is in, or else the
// network that is taken for one where nothing tells: a /24 or /64.
func (v *Index) networkOf(a netip.Addr) netip.Prefix {
	if p := v.Remote(a); p.IsValid() {
		return p
	}
	return netip.PrefixFrom(a, model.Either(a.Is6(), podBits6, podBits4)).Masked()
}
