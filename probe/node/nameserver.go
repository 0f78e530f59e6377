package node

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// nodeLocalDNS is the address that NodeLocal DNSCache has on each node.
var nodeLocalDNS = netip.AddrFrom4([4]byte{169, 254, 20, 10})

// NameServer is one that pods have in a resolv.conf of the same author.
type NameServer struct {
	Server netip.Addr
	By     model.ResolverBy
	Pods   []netip.Addr
	// Leads are the addresses that questions to it are translated to. Local: it is the node's own.
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
			x.Server, x.By, x.Local = s, p.Resolver.By, s == nodeLocalDNS || v.NodeAddrs[s]
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

// NamesOfCilium are Cilium's services of an address for names.
func (v *Index) NamesOfCilium(a netip.Addr) []*model.CiliumService {
	of := netip.AddrPortFrom(a, DNSPort)
	return model.Chosen(v.Cilium.Services, func(s *model.CiliumService) bool { return s.Addr == of })
}
