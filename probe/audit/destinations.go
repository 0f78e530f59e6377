package audit

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// destination is where a pod connects to.
type destination struct {
	kind  model.AuditKind
	addr  netip.Addr
	port  uint16
	proto uint8
	name  string
	// supposed is the range of the node's own beside which another node may have this one; not valid where it is known.
	supposed netip.Prefix
}

// Each pod connects to so many others of the node: in a ring, so that each is asked by as many.
const neighbors = 4

// Outside stand for all addresses outside the cluster and its network. They are reserved for documentation (RFC 5737 and
// 3849), so that no host has them.
var outside = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// destinations are those of all pods: the services that pods need, one address of each range of another node's pods, and one
// outside.
func (a *audit) destinations() []destination {
	out := a.services()
	add := func(p, supposed netip.Prefix) {
		to := p.Addr()
		for range 2 { // The first addresses of a range are the network's, and the gateway's.
			if next := to.Next(); p.Contains(next) {
				to = next
			}
		}
		out = append(out, destination{kind: model.AuditNode, addr: to, name: p.String(), supposed: supposed})
	}
	for _, p := range a.remotes() {
		add(p, netip.Prefix{})
	}
	for _, p := range a.Ranges.Local {
		beside := model.BroadcastOf(p).Next()
		if r := a.Remote(beside); len(a.Ranges.Nodes) == 0 && r.IsValid() && a.SurelyPods(beside) {
			add(r, p)
		}
	}
	protos := []uint8{model.TCP}
	if model.First(a.PacketRules, func(r *model.PacketRule) bool { return r.Target == "MASQUERADE" && r.Proto != 0 }) != nil {
		protos = append(protos, model.UDP)
	}
	for _, proto := range protos {
		for _, to := range outside {
			out = append(out, destination{kind: model.AuditOutside, addr: to, port: 443, proto: proto})
		}
	}
	return out
}

// named follows a pod's packets to ranges outside that the node's own routes and rules that drop name, a few.
func (a *audit) named() {
	const most = 16
	seen := map[netip.Prefix]bool{}
	follow := func(p netip.Prefix, src model.AddrMatch, proto uint8, ports []model.PortRange) {
		to := p.Addr()
		if !p.IsSingleIP() {
			to = to.Next()
		}
		if p.Bits() == 0 || seen[p] || len(seen) == most || node.OfCloud(to) || !node.Outside(a.Index, to) {
			return
		}
		d := destination{kind: model.AuditOutside, addr: to, port: 443, proto: cmp.Or(proto, model.TCP), name: p.String()}
		if len(ports) > 0 {
			d.port = ports[0].First
		}
		for x := range model.Each(a.Pods) {
			from := model.Find(node.PodAddrs(x), func(from netip.Addr) bool { return from.Is4() == to.Is4() && src.Matches(from) })
			if from.IsValid() && a.chosen(from) {
				seen[p] = true
				a.pair(from, d)
				return
			}
		}
	}
	for r := range model.Each(a.Routes) {
		if r.Type == "unicast" && r.Dst.IsValid() && r.Protocol != "kernel" {
			follow(r.Dst, model.AddrMatch{}, 0, nil)
		}
	}
	for r := range model.Each(a.PacketRules) {
		drops := (r.Target == "DROP" || r.Target == "REJECT") && r.Keeper() == ""
		switch {
		case drops && !r.Dst.IsZero() && !r.Dst.Not:
			follow(r.Dst.Prefix, r.Src, r.Proto, r.DstPorts)
		case drops && !r.Src.IsZero() && !r.Src.Not:
			follow(r.Src.Prefix, model.AddrMatch{}, r.Proto, r.SrcPorts)
		}
	}
}

// served follows what pods ask of services that lead to one pod of the node: that pod itself, and another.
func (a *audit) served() {
	for _, x := range a.Tables().Served() {
		askers := model.Filter(a.Pods, func(p model.Pod) bool { return !p.Has(x.Pod) })
		for _, p := range append(askers[:min(1, len(askers))], *a.Owners[x.Pod][0]) {
			from := model.Find(node.PodAddrs(&p), func(from netip.Addr) bool { return from.Is4() == x.To.Is4() })
			if from.IsValid() && a.chosen(from) {
				a.pair(from, destination{kind: model.AuditService, addr: x.To, port: x.Port, proto: x.Proto})
			}
		}
	}
}

// destinationsOf are those of one address of a pod.
func (a *audit) destinationsOf(pod int, from netip.Addr, all []destination) []destination {
	var out []destination
	add := func(kind model.AuditKind, to netip.Addr) {
		d := destination{kind: kind, addr: to}
		if kind == model.AuditNames {
			d.port, d.proto = node.DNSPort, model.UDP
		}
		like := func(x destination) bool { return x.addr == to }
		known := slices.ContainsFunc(out, like) || kind == model.AuditNames && slices.ContainsFunc(all, like)
		if to.Is4() == from.Is4() && to != from && model.Unicast(to) && !known {
			out = append(out, d)
		}
	}
	p := &a.Pods[pod]
	for _, n := range p.NextHops() {
		if a.Own[n.Addr] != nil {
			add(model.AuditGateway, n.Addr)
		}
	}
	if p.Resolver != nil {
		for _, s := range p.Resolver.Servers {
			add(model.AuditNames, s)
		}
	}
	for i := 1; i <= neighbors && i < len(a.Pods); i++ {
		for _, to := range node.PodAddrs(&a.Pods[(pod+i)%len(a.Pods)]) {
			add(model.AuditPod, to)
		}
	}
	return append(out, model.Filter(all, func(d destination) bool {
		return d.addr.Is4() == from.Is4() && (!d.supposed.IsValid() || d.supposed.Contains(from))
	})...)
}

// remotes are the ranges of other nodes' pods: those of known nodes, and those that the node has routes for.
func (a *audit) remotes() []netip.Prefix {
	seen := map[netip.Prefix]bool{}
	var out []netip.Prefix
	add := func(p netip.Prefix) {
		if p = p.Masked(); !seen[p] && p.Bits() > 0 && !p.IsSingleIP() {
			seen[p], out = true, append(out, p)
		}
	}
	for _, r := range a.Ranges.Nodes {
		add(r.Prefix)
	}
	for r := range model.Each(a.Routes) {
		known := a.Remote(r.Dst.Addr()).IsValid() || a.Outer[r.IfIndex] && r.Protocol != "kernel" // it makes all on link
		if r.Dst.Bits() > 0 && known && a.SurelyPods(r.Dst.Addr()) && !model.InAny(a.Ranges.Local, r.Dst.Addr()) {
			add(r.Dst)
		}
	}
	return out
}

// services are the API server's and those for names, by what kube-proxy writes beside its rules.
func (a *audit) services() []destination {
	var out []destination
	add := func(name string, addr netip.Addr, port uint16, proto uint8, refused bool) {
		kind := model.AuditKind("")
		switch service, of, _ := strings.Cut(name, ":"); {
		case service == "default/kubernetes":
			kind = model.AuditAPI
		case strings.HasPrefix(service, "kube-system/") && strings.HasPrefix(of, "dns") && proto == model.UDP:
			kind = model.AuditNames
		}
		d := destination{kind: kind, addr: addr, port: port, proto: proto, name: name}
		switch {
		case !addr.IsValid() || port == 0:
		case kind != "" && !slices.Contains(out, d):
			out = append(out, d)
		case kind == "" && refused:
			d.kind = model.AuditService
			a.unserved = append(a.unserved, d)
		}
	}
	for r := range model.Each(a.PacketRules) {
		if name, _, found := strings.Cut(r.Comment, " "); found && r.Dst.Addr().IsValid() && len(r.DstPorts) == 1 && strings.Contains(name, "/") {
			add(name, r.Dst.Addr(), r.DstPorts[0].First, r.Proto, r.Target == "REJECT" && r.Keeper() == "kube-proxy")
		}
	}
	for x := range model.Each(a.Snapshot.Sets) {
		for _, e := range x.Elements {
			// The chain of a service is named so: service-2QRHZV4L-default/kubernetes/tcp/https. One without endpoints has a comment.
			key, chain := strings.Split(e.Key, " . "), strings.SplitN(e.Value, "-", 3)
			refused := x.Name == "no-endpoint-services" && strings.Contains(e.Comment, "/")
			if len(key) != 3 || !refused && (len(chain) != 3 || chain[0] != "goto service") {
				continue
			}
			addr, err := netip.ParseAddr(key[0])
			port, err2 := strconv.ParseUint(key[2], 10, 16)
			name := e.Comment
			if parts := strings.Split(chain[len(chain)-1], "/"); len(parts) == 4 {
				name = parts[0] + "/" + parts[1] + ":" + parts[3]
			}
			if err == nil && err2 == nil && name != "" {
				add(name, addr, uint16(port), model.Either[uint8](key[1] == "udp", model.UDP, model.TCP), refused)
			}
		}
	}
	names := model.Filter(a.Cilium.Services, func(s model.CiliumService) bool { return s.Addr.Port() == node.DNSPort && s.Proto == model.UDP })
	return append(out, model.Map(names, func(s model.CiliumService) destination {
		return destination{kind: model.AuditNames, addr: s.Addr.Addr(), port: node.DNSPort, proto: model.UDP}
	})...)
}
