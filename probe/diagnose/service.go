package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// service is a port of a local pod that others ask; of ICMP it has none.
type service struct {
	pod   netip.Addr
	proto uint8
	port  uint16
}

func (s service) compare(o service) int {
	return cmp.Or(s.pod.Compare(o.pod), cmp.Compare(s.proto, o.proto), cmp.Compare(s.port, o.port))
}

// asks are the flows that others began towards a service, as connection tracking holds them.
type asks struct {
	// unreplied and replied flows began in the window.
	unreplied, replied []*model.Flow
	// before are the clients of flows from before the window that were replied to.
	before map[netip.Addr]bool
}

// wants reports whether what is sent to the service must be answered: connections and echo requests, questions
// to a name server, and datagrams of a kind that was answered before. Any others may go to a sink.
func (s service) wants(a *asks) bool { return s.proto != udp || s.port == dnsPort || len(a.before) > 0 }

// unanswered reports whether the flows die steadily: several of the window had no
// reply, and no fewer than those that had one.
func (s service) unanswered(a *asks) bool {
	return s.wants(a) && len(a.unreplied) >= minAsks && len(a.unreplied) >= len(a.replied)
}

// asksOf are the flows towards local pods by service, after translation.
func (v *index) asksOf() map[service]*asks {
	out := map[service]*asks{}
	for f := range model.Each(v.Flows) {
		if len(v.Owners[f.Reply.Src]) == 0 {
			continue
		}
		a := model.GetOrInsert(out, service{f.Reply.Src, f.Proto, f.Reply.SrcPort})
		switch {
		case f.Start.IsZero() && !f.Replied:
		case f.Start.IsZero():
			if a.before == nil {
				a.before = map[netip.Addr]bool{}
			}
			a.before[f.Original.Src] = true
		case f.Replied:
			a.replied = append(a.replied, f)
		default:
			a.unreplied = append(a.unreplied, f)
		}
	}
	return out
}

// clients are the addresses that began the flows, destinations those that they were sent to, servers
// those that these were translated to.
func clients(flows []*model.Flow) []netip.Addr {
	return model.Unique(model.Map(flows, func(f *model.Flow) netip.Addr { return f.Original.Src }))
}

func destinations(flows []*model.Flow) []netip.Addr {
	return model.Unique(model.Map(flows, func(f *model.Flow) netip.Addr { return f.Original.Dst }))
}

func servers(flows []*model.Flow) []netip.Addr {
	return model.Unique(model.Map(flows, func(f *model.Flow) netip.Addr { return f.Reply.Src }))
}

// translated are the single addresses that rules translate.
func translated(rules []*model.PacketRule) []netip.Addr {
	return model.Filter(model.Map(rules, func(r *model.PacketRule) netip.Addr { return r.Dst.Addr() }), netip.Addr.IsValid)
}

// services are those of a pod's address, sorted.
func services(all map[service]*asks, pod netip.Addr) []service {
	var out []service
	for s := range all {
		if s.pod == pod {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, service.compare)
	return out
}

func (s service) name() string { return protoPort{proto: s.proto, number: s.port}.String() }

// untranslatedServices are those of silent destinations that seem to be services' addresses
// and that no rule translates: their packets leave the node, where nobody has them.
type untranslatedServices struct {
	List []untranslatedService
	// Except: the rules there are, of the last of List.
	Except string
	// All: no destination is another. Then what else may lose requests is none of their causes.
	All bool
}

// untranslatedService is a service's address, with the port where others are not meant: a rule translates
// Beside it for these, or Others of its range, or Rule is for it and leads to none that does.
type untranslatedService struct {
	Addr         netip.Addr
	port         protoPort
	Beside, Rule *model.PacketRule
	Others       []netip.Addr
}

func (s untranslatedService) String() string {
	return model.Either(s.port.proto == 0, s.Addr.String(), fmt.Sprintf("%s for %s", s.Addr, s.port))
}

func (v *index) findUntranslated(remotes []netip.Addr) *untranslatedServices {
	u := untranslatedServices{Except: "whole"}
	to := map[netip.Addr][]*model.Peer{}
	for p := range model.Each(v.peers) {
		to[p.Remote] = append(to[p.Remote], p)
	}
	for _, a := range remotes {
		if v.remote(a).IsValid() || !v.elsewhere(a) {
			continue
		}
		sent, found := v.untranslated(to[a])
		s := untranslatedService{Addr: a}
		switch {
		case len(found.Beside) > 0:
			s.port, s.Beside, u.Except = protoPort{proto: sent.Proto, number: sent.DstPort}, found.Beside[0], "beside"
		case len(found.Others) > 0:
			s.Others, u.Except = found.Others, "others"
		case len(found.Rules) > 0:
			s.Rule = found.Rules[0]
		default:
			continue
		}
		u.List = append(u.List, s)
	}
	if len(u.List) == 0 {
		return nil
	}
	u.All = len(u.List) == len(remotes)
	return &u
}

// untranslated is a packet that was sent to an address by these pairs, and why the address looks like a
// service's that no rule translates for such packets.
func (v *index) untranslated(to []*model.Peer) (path.Packet, path.Untranslated) {
	for _, p := range to {
		for _, sent := range v.leaving(p) {
			if found := v.Tables().Untranslated(sent); found.Is() {
				return sent, found
			}
		}
	}
	return path.Packet{}, path.Untranslated{}
}
