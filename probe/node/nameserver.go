package node

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// NameServer is one that pods have in a resolv.conf of the same author.
type NameServer struct {
	Server netip.Addr
	By     model.ResolverBy
	Pods   []netip.Addr
	// Leads are the addresses that questions to it are translated to. Local: it is the node's own, as those of its links
	// and all of a link, which no other machine of a cluster has, but the cloud.
	Leads []netip.Addr
	Local bool
	// Others are all servers of these pods.
	Others []netip.Addr
}

func (v *Index) findNameServers() []*NameServer {
	type key struct {
		server netip.Addr
		by     model.ResolverBy
	}
	var of Groups[key, NameServer]
	leads := map[netip.Addr]*AddrSet{}
	for p := range model.Each(v.Pods) {
		if p.Resolver == nil {
			continue
		}
		for _, s := range p.Resolver.Servers {
			x := of.Of(key{s, p.Resolver.By})
			x.Server, x.By, x.Local = s, p.Resolver.By, v.Own[s] != nil || s.IsLinkLocalUnicast() && !OfCloud(s)
			x.Pods, x.Others = append(x.Pods, PodAddrs(p)...), model.With(x.Others, p.Resolver.Servers...)
			model.GetOrInsert(leads, s)
		}
	}
	for f := range model.Each(v.Flows) {
		if to := leads[f.Original.Dst]; to != nil && f.Original.DstPort == DNSPort && f.Reply.Src != f.Original.Dst {
			to.Add(f.Reply.Src)
		}
	}
	var out []*NameServer
	for _, s := range of.All() {
		for _, x := range v.NamesOfCilium(s.Server) {
			for _, b := range x.Backends {
				leads[s.Server].Add(b.Addr())
			}
		}
		s.Leads = Sorted(*leads[s.Server])
		out = append(out, s)
	}
	return out
}

// Untended reports whether a private address is a service's, though nothing on the node translates that of any: pods have it
// for the cluster's name server, or connection tracking still holds flows that were translated for one beside it.
func (v *Index) Untended(a netip.Addr) bool {
	block, _ := a.Prefix(model.Either(a.Is6(), 64, 16))
	return a.IsPrivate() && v.Has(model.SourceNAT) && len(v.Cilium.Services) == 0 && !v.Proxied() &&
		(slices.ContainsFunc(v.NameServers(), func(s *NameServer) bool { return s.Server == a && s.By == model.ResolverCluster && !s.Local }) ||
			slices.ContainsFunc(v.Flows, func(f model.Flow) bool { return f.Original.Dst != f.Reply.Src && block.Contains(f.Original.Dst) }))
}

// NamesOfCilium are Cilium's services of an address for names.
func (v *Index) NamesOfCilium(a netip.Addr) []*model.CiliumService {
	of := netip.AddrPortFrom(a, DNSPort)
	return model.Chosen(v.Cilium.Services, func(s *model.CiliumService) bool { return s.Addr == of })
}
