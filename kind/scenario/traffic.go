package scenario

import (
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"
)

// routes are those of the file or, when it says nothing of them, what the
// cloud provider makes for kubenet: one for each podCIDR that the fabric does
// not know by itself. On a switch the nodes have them.
func (r *resolver) routes(raw rawScenario) {
	s := &r.s
	if !raw.Routes.set() {
		for _, n := range s.Topology.Nodes {
			if n.Plugin.routedByUDR() && !s.Topology.Switched && s.Topology.Overlay == "" {
				s.Routes = append(s.Routes, Route{n.PodCIDR, n.IP})
				if s.Topology.IPv6 != nil {
					s.Routes = append(s.Routes, Route{n.PodCIDR6, n.IP6})
				}
			}
		}
		return
	}
	if len(raw.Routes.v) > maxRoutes {
		r.errorf(raw.Routes.v[maxRoutes].at, "more than %d routes", maxRoutes)
		return
	}
	for _, route := range raw.Routes.v {
		if !route.Prefix.set() || !route.Via.set() {
			r.errorf(route.at, "route wants prefix and via")
			continue
		}
		p := route.Prefix.v
		if slices.ContainsFunc(s.Routes, func(o Route) bool { return o.Prefix == p }) {
			r.errorf(route.Prefix.at, "prefix %s has a route already", p)
		}
		if t := s.Topology; p.Overlaps(t.VNet) || slices.ContainsFunc(t.Outside, p.Contains) || p.Contains(t.Edge) {
			r.errorf(route.Prefix.at, "route %s overlaps the vnet or the outside", p)
		}
		if e, ok := r.endpoint(route.Via); ok {
			s.Routes = append(s.Routes, Route{p, e.Addr})
		}
	}
}

// traffic is what the file says or, when it says nothing, some of each kind
// in both directions: within the node, across nodes and to the outside.
func (r *resolver) traffic(raw rawScenario) {
	if !raw.Traffic.set() {
		for _, t := range r.s.Topology.Families() {
			r.s.Traffic = append(r.s.Traffic, defaultTraffic(t)...)
		}
	}
	for _, t := range raw.Traffic.v {
		r.flows(t)
		if len(r.s.Traffic) > maxFlows {
			r.errorf(t.at, "traffic has more than %d flows", maxFlows)
			return
		}
	}
	total := 0.0
	for _, f := range r.s.Traffic {
		total += f.Rate
	}
	if total > maxTotal {
		r.errorf(raw.Traffic.where(raw.at), "traffic has %.0f requests per second, more than %d", total, maxTotal)
	}
}

// flows expands one entry to a flow for each pair of its ends and protocol.
// An end that meets itself is left out.
func (r *resolver) flows(raw rawTraffic) {
	froms, to := r.ends(raw.at, "from", raw.From), r.ends(raw.at, "to", raw.To)
	protos := []Proto{TCP}
	if len(raw.Proto) > 0 {
		protos = nil
		for _, p := range raw.Proto {
			if slices.Contains(protos, p.v) {
				r.errorf(p.at, "proto %s is named twice", p.v)
			}
			protos = append(protos, p.v)
		}
	}
	if raw.Port.set() && !slices.ContainsFunc(protos, func(p Proto) bool { return p != ICMP }) {
		r.errorf(raw.Port.at, "icmp has no port")
	}
	if raw.OneWay.v && !slices.Equal(protos, []Proto{UDP}) {
		r.errorf(raw.OneWay.at, "oneWay wants proto: udp")
	}
	if raw.Keep.v && !slices.Equal(protos, []Proto{TCP}) {
		r.errorf(raw.Keep.at, "keep wants proto: tcp")
	}
	if other := slices.Contains(protos, ICMP); other && (raw.Slow.v || raw.Ports.set()) {
		r.errorf(raw.Slow.where(raw.Ports.at), "slow and ports are for tcp and udp")
	}
	if len(froms)*len(to)*len(protos) > maxFlows {
		r.errorf(raw.at, "traffic has more than %d flows", maxFlows)
		return
	}
	made := false
	for _, from := range froms {
		for _, to := range to {
			for _, p := range protos {
				if from.Place == to.Place || from.Addr.Is4() != to.Addr.Is4() {
					continue
				}
				f := Flow{From: from, To: to, Proto: p, Rate: raw.Rate.or(defaultRate), Size: raw.Size.v, OneWay: raw.OneWay.v,
					Denied: raw.Denied.v, Slow: raw.Slow.v, Keep: raw.Keep.v, Ports: raw.Ports.v}
				if p != ICMP {
					f.Port = uint16(raw.Port.or(defaultPort))
				}
				r.s.Traffic = append(r.s.Traffic, f)
				made = true
			}
		}
	}
	if !made && len(froms) > 0 && len(to) > 0 {
		r.errorf(raw.at, "traffic goes from a place to itself")
	}
}

func (r *resolver) ends(at *yaml.Node, field string, refs []value[string]) []Endpoint {
	if len(refs) == 0 {
		r.errorf(at, "traffic has no %q", field)
	}
	var out []Endpoint
	for _, ref := range refs {
		e, ok := r.endpoint(ref)
		if !ok {
			return nil
		}
		if field == "from" && e.Place == "" {
			r.errorf(ref.at, "from: %s is nobody's address", e)
			return nil
		}
		out = append(out, e)
		if r.v6 != nil {
			if e6, err := r.v6.Resolve(ref.v); err == nil && e6.Addr != e.Addr {
				out = append(out, e6)
			}
		}
	}
	return out
}

// defaultTraffic lets some pods of each node ask another on it, the first pod
// of other nodes, and the outside, by every protocol; and each node one of its
// own pods and other nodes. "Some" and "other" are all of a small cluster.
func defaultTraffic(t *Topology) []Flow {
	const rate, somePods, otherNodes = 2, 4, 3
	var flows []Flow
	add := func(from, to Endpoint, protos ...Proto) {
		for _, p := range protos {
			f := Flow{From: from, To: to, Proto: p, Rate: rate}
			if p != ICMP {
				f.Port = defaultPort
			}
			flows = append(flows, f)
		}
	}
	outside := Endpoint{OutsideName, t.Outside[0]}
	for i := range t.Nodes {
		node := Endpoint{t.Nodes[i].Name, t.Nodes[i].IP}
		own := t.Nodes[i].live()
		own = own[:min(len(own), somePods)]
		var others []*Node
		for j := 1; j < len(t.Nodes) && j <= otherNodes; j++ {
			others = append(others, &t.Nodes[(i+j)%len(t.Nodes)])
		}
		for k, pod := range own {
			if len(own) > 1 {
				add(pod, own[(k+1)%len(own)], TCP, UDP, ICMP)
			}
			for _, n := range others {
				if theirs := n.live(); len(theirs) > 0 {
					add(pod, theirs[0], TCP, UDP, ICMP)
				}
			}
			add(pod, outside, TCP, UDP, ICMP)
		}
		if len(own) > 0 {
			add(node, own[0], TCP, ICMP)
		}
		for _, n := range others {
			add(node, Endpoint{n.Name, n.IP}, TCP, ICMP)
		}
	}
	return flows
}

// live are the node's pods that are there.
func (n *Node) live() []Endpoint {
	var out []Endpoint
	for p := range n.AllPods() {
		if !p.Gone {
			out = append(out, Endpoint{n.Name + "/" + p.Name, p.IP})
		}
	}
	return out
}

// Addresses are those that the node's network card owns in the fabric.
func (n *Node) Addresses() []netip.Addr {
	out := []netip.Addr{n.IP}
	if n.Plugin.routedByUDR() {
		return out
	}
	if n.Router.IsValid() && !n.Router.IsLinkLocalUnicast() {
		out = append(out, n.Router)
	}
	for p := range n.AllPods() {
		out = append(out, p.IP)
	}
	return out
}
