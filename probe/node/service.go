package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// QueueWasFull reports whether the full queue of a listener, which ReceiveOverflow reports, explains that
// connections to a service got no reply. Which listener it was is known only while its queue holds something; a
// server that is slow replies to some, and where one service alone is silent it is that one's queue.
func QueueWasFull(p *model.Pod, s Service, silent int, all map[Service]*Asks) bool {
	if p.Backlog == nil || p.Backlog.Delta < uint64(silent) {
		return false
	}
	full := func(l model.Listener) bool { return l.Addr.Port() == s.Port }
	others := func(o Service) bool { return o != s && o.Proto == model.TCP && len(all[o].Unreplied) > 0 }
	return len(all[s].Replied) > 0 || slices.ContainsFunc(p.Backlog.Waiting, full) ||
		!slices.ContainsFunc(Services(all, s.Pod), others)
}

// SampledServices are the destinations that samples of the drops were for.
func (v *Index) SampledServices(l *Lost) []Service {
	var out []Service
	for _, d := range l.Drops {
		if _, port, ok := v.Classifier.Samples.Of(d).Ports(); ok {
			out = append(out, Service{d.Dst, d.Proto, port})
		}
	}
	slices.SortFunc(out, Service.compare)
	return slices.Compact(out)
}

// Facts are what connection tracking holds of a service's requests.
func (s Service) Facts(a *Asks) words.Facts {
	return words.Facts{"addr": s.Pod, "port": s.Name(), "unreplied": len(a.Unreplied), "replied": len(a.Replied),
		"clients": Clients(a.Unreplied)}
}

// Service is a port of a local pod that others ask; of ICMP it has none.
type Service struct {
	Pod   netip.Addr
	Proto uint8
	Port  uint16
}

func (s Service) compare(o Service) int {
	return cmp.Or(s.Pod.Compare(o.Pod), cmp.Compare(s.Proto, o.Proto), cmp.Compare(s.Port, o.Port))
}

// Asks are the flows that others began towards a service, as connection tracking holds them.
type Asks struct {
	// Unreplied and replied flows began in the window.
	Unreplied, Replied []*model.Flow
	// Before are the clients of flows from before the window that were replied to.
	Before map[netip.Addr]bool
}

// Wants reports whether what is sent to the service must be answered: connections and echo requests, questions
// to a name server, and datagrams of a kind that was answered before. Any others may go to a sink.
func (s Service) Wants(a *Asks) bool {
	return s.Proto != model.UDP || s.Port == DNSPort || len(a.Before) > 0
}

// Unanswered reports whether the flows die steadily: several of the window had no
// reply, and no fewer than those that had one.
func (s Service) Unanswered(a *Asks) bool {
	return s.Wants(a) && len(a.Unreplied) >= MinAsks && len(a.Unreplied) >= len(a.Replied)
}

// AsksOf are the flows towards local pods by service, after translation.
func (v *Index) AsksOf() map[Service]*Asks {
	out := map[Service]*Asks{}
	for f := range model.Each(v.Flows) {
		if len(v.Owners[f.Reply.Src]) == 0 {
			continue
		}
		a := model.GetOrInsert(out, Service{f.Reply.Src, f.Proto, f.Reply.SrcPort})
		switch {
		case f.Start.IsZero() && !f.Replied:
		case f.Start.IsZero():
			if a.Before == nil {
				a.Before = map[netip.Addr]bool{}
			}
			a.Before[f.Original.Src] = true
		case f.Replied:
			a.Replied = append(a.Replied, f)
		default:
			a.Unreplied = append(a.Unreplied, f)
		}
	}
	return out
}

// Clients are the addresses that began the flows, destinations those that they were sent to, servers
// those that these were translated to.
func Clients(flows []*model.Flow) []netip.Addr {
	return model.Unique(model.Map(flows, func(f *model.Flow) netip.Addr { return f.Original.Src }))
}

// Destinations are the original destinations of flows, each once.
func Destinations(flows []*model.Flow) []netip.Addr {
	return model.Unique(model.Map(flows, func(f *model.Flow) netip.Addr { return f.Original.Dst }))
}

// Servers are the addresses that answer flows, each once.
func Servers(flows []*model.Flow) []netip.Addr {
	return model.Unique(model.Map(flows, func(f *model.Flow) netip.Addr { return f.Reply.Src }))
}

// Translated are the single addresses that rules translate.
func Translated(rules []*model.PacketRule) []netip.Addr {
	return model.Filter(model.Map(rules, func(r *model.PacketRule) netip.Addr { return r.Dst.Addr() }), netip.Addr.IsValid)
}

// Services are those of a pod's address, sorted.
func Services(all map[Service]*Asks, pod netip.Addr) []Service {
	var out []Service
	for s := range all {
		if s.Pod == pod {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, Service.compare)
	return out
}

// Name is the port and protocol, as a person writes them.
func (s Service) Name() string { return ProtoPort{Proto: s.Proto, Number: s.Port}.String() }

// UntranslatedService is a service's address, with the port where others are not meant: a rule translates
// Beside it for these, or Others of its range, or Rule is for it and leads to none that does.
type UntranslatedService struct {
	Addr         netip.Addr
	Port         ProtoPort
	Beside, Rule *model.PacketRule
	Others       []netip.Addr
}

func (s UntranslatedService) String() string {
	return model.Either(s.Port.Proto == 0, s.Addr.String(), fmt.Sprintf("%s for %s", s.Addr, s.Port))
}
