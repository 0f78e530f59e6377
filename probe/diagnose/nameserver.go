package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// nodeLocalDNS is the address that NodeLocal DNSCache has on each node.
var nodeLocalDNS = netip.AddrFrom4([4]byte{169, 254, 20, 10})

// nameServer is one that pods have in a resolv.conf of the same author.
type nameServer struct {
	Server netip.Addr
	By     model.ResolverBy
	Pods   []netip.Addr
	// Leads are the addresses that questions to it are translated to. Local: it is the node's own.
	Leads []netip.Addr
	Local bool
	// others are all servers of these pods.
	others []netip.Addr
}

func (v *index) findNameServers() []*nameServer {
	type key struct {
		server netip.Addr
		by     model.ResolverBy
	}
	var of groups[key, nameServer]
	leads := map[netip.Addr]*addrSet{}
	for p := range model.Each(v.Pods) {
		if p.Resolver == nil {
			continue
		}
		for _, s := range p.Resolver.Servers {
			x := of.of(key{s, p.Resolver.By})
			x.Server, x.By, x.Local = s, p.Resolver.By, s == nodeLocalDNS || v.nodeAddrs[s]
			x.Pods, x.others = append(x.Pods, podAddrs(p)...), model.With(x.others, p.Resolver.Servers...)
			model.GetOrInsert(leads, s)
		}
	}
	for f := range model.Each(v.Flows) {
		if to := leads[f.Original.Dst]; to != nil && f.Original.DstPort == dnsPort && f.Reply.Src != f.Original.Dst {
			to.add(f.Reply.Src)
		}
	}
	var out []*nameServer
	for _, s := range of.all() {
		for _, x := range v.namesOfCilium(s.Server) {
			for _, b := range x.Backends {
				leads[s.Server].add(b.Addr())
			}
		}
		s.Leads = sorted(*leads[s.Server])
		out = append(out, s)
	}
	return out
}

// namesOfCilium are Cilium's services of an address for names.
func (v *index) namesOfCilium(a netip.Addr) []*model.CiliumService {
	of := netip.AddrPortFrom(a, dnsPort)
	return model.Chosen(v.Cilium.Services, func(s *model.CiliumService) bool { return s.Addr == of })
}

// unserved reports whether Cilium refuses what is sent to the name server, since it has no backend.
func (v *index) unserved(server netip.Addr) bool {
	services := v.namesOfCilium(server)
	served := func(s *model.CiliumService) bool { return len(s.Backends) > 0 }
	return len(services) > 0 && !slices.ContainsFunc(services, served)
}

// askedInVain are the name servers that a finding's pods, or those of its peers, have in their
// resolv.conf and do not reach because of it.
func (v *index) askedInVain(f *finding) []*nameServer {
	concerns := f.silences
	if concerns == nil {
		concerns = silencesPeers(&f.Finding)
	}
	var out []*nameServer
	for _, s := range v.nameServers() {
		x := *s
		x.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(pod netip.Addr) bool {
			asks := func(to netip.Addr) bool { return to.Is4() == pod.Is4() && concerns(pod, model.Host(to)) }
			// A range that holds the server's own address says nothing of what that leads to.
			own := len(s.Leads) == 0 || slices.Contains(f.Peers, model.Host(s.Server))
			return !(own && asks(s.Server)) && !slices.ContainsFunc(s.Leads, asks)
		})
		if len(x.Pods) > 0 {
			out = append(out, &x)
		}
	}
	return out
}
