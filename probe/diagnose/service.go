package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
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

// asks are the flows that others began towards a service, as connection tracking
// holds them.
type asks struct {
	// unreplied and replied flows began in the window.
	unreplied, replied []*model.Flow
	// before are the clients of flows from before the window that were replied to.
	before map[netip.Addr]bool
}

// wants reports whether what is sent to the service must be answered: connections
// and echo requests, questions to a name server, and datagrams of a kind that was
// answered before. Any others may go to a sink.
func (s service) wants(a *asks) bool {
	return s.proto != udp || s.port == dnsPort || len(a.before) > 0
}

// unanswered reports whether the flows die steadily: several of the window had no
// reply, and no fewer than those that had one.
func (s service) unanswered(a *asks) bool {
	return s.wants(a) && len(a.unreplied) >= minAsks && len(a.unreplied) >= len(a.replied)
}

// asksOf are the flows towards local pods by service, after translation.
func (v *view) asksOf() map[service]*asks {
	out := map[service]*asks{}
	for f := range model.Each(v.Flows) {
		if len(v.pods[f.Reply.Src]) == 0 {
			continue
		}
		a := entry(out, service{f.Reply.Src, f.Proto, f.Reply.SrcPort})
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
	return addrsOf(flows, func(f *model.Flow) netip.Addr { return f.Original.Src })
}

func destinations(flows []*model.Flow) []netip.Addr {
	return addrsOf(flows, func(f *model.Flow) netip.Addr { return f.Original.Dst })
}

func servers(flows []*model.Flow) []netip.Addr {
	return addrsOf(flows, func(f *model.Flow) netip.Addr { return f.Reply.Src })
}

// addrsOf are addresses of flows, each once.
func addrsOf(flows []*model.Flow, of func(*model.Flow) netip.Addr) []netip.Addr {
	set := map[netip.Addr]bool{}
	for _, f := range flows {
		set[of(f)] = true
	}
	return sorted(set)
}

// translated are the single addresses that rules translate.
func translated(rules []*model.PacketRule) []netip.Addr {
	var out []netip.Addr
	for _, r := range rules {
		if a := r.Dst.Addr(); a.IsValid() {
			out = append(out, a)
		}
	}
	return out
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

// name is the protocol and port.
func (s service) name() string {
	if s.port == 0 {
		return model.ProtoName(s.proto)
	}
	return protoPort{s.proto, s.port}.String()
}
