package path

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// hasCilium reports whether a program of Cilium's is at a hook of a link of the node's.
func (t *tracer) hasCilium(l *model.Link, d model.Direction) bool {
	return slices.ContainsFunc(t.Programs, func(p model.Program) bool {
		return p.IfIndex == l.Index && p.Netns == t.Node.Netns && p.Direction == d && p.Owner() == model.OwnerCilium
	})
}

// byCilium follows a packet that Cilium's program takes at a link, in place of the node's
// tables: where these lead to its own link, it hands packets to the pods that it knows, and
// sends others off the node by a tunnel. It reports whether it does.
func (j *journey) byCilium(in *model.Link) bool {
	if !j.hasCilium(in, model.Ingress) {
		return false
	}
	if x := j.Cilium.Service(j.dst, j.dstPort, j.ends.Proto); x != nil && !j.reply {
		j.steps[len(j.steps)-1].say("cilium-balances", words.Facts{"service": x, "n": len(x.Backends)})
		j.over = true
		return true
	}
	d := j.Routing().Lookup(Query{Src: j.src, Dst: j.dst, In: in.Name})
	if len(d.Hops) != 1 || j.ByIndex[d.Hops[0].IfIndex] == nil || j.ByIndex[d.Hops[0].IfIndex].Role != model.RoleRouter {
		return false
	}
	s := j.steps[len(j.steps)-1]
	if l := j.delivers(); l != nil {
		s.say("cilium-delivers", words.Facts{"link": l.Name})
		j.srcMAC, j.dstMAC = model.MAC{}, model.MAC{}
		j.toPort(l)
		return true
	}
	if j.pods[j.dst] != nil || len(j.Cilium.Local) == 0 {
		return false
	}
	s.say("cilium-sends", nil)
	j.add(model.PathHop{Kind: model.HopBeyond}).say("not-visible", words.Facts{"tunnel": true})
	j.over = true
	return true
}

// delivers is the link that Cilium's programs hand packets for the destination to, nil where they know of none.
func (j *journey) delivers() *model.Link {
	x := model.First(j.Cilium.Local, func(x *model.CiliumAddress) bool { return x.Prefix.Addr() == j.dst })
	if x == nil {
		return nil
	}
	return j.ByIndex[x.IfIndex]
}

// translation is what Cilium's program makes of the destination where a process connects: all
// packets have the backend's address.
type translation struct {
	asked   Ends
	service *model.CiliumService
}

// atSocket are the ends of the packets to a service of Cilium's: they go to the backend to which most were
// counted. The ends stay, and the translation is nil, where packets have the service's address.
func (st *State) atSocket(e Ends) (Ends, *translation) {
	service := st.Cilium.Service(e.To, e.Port, e.Proto)
	if service == nil || len(st.Owners[e.Pod]) == 0 || st.sent(e.Pod, e.To) > 0 {
		return e, nil
	}
	t := &translation{e, service}
	var most uint64
	for i, b := range service.Backends {
		n := st.sent(e.Pod, b.Addr())
		if i > 0 && n <= most {
			continue
		}
		most, e.To = n, b.Addr()
		if t.asked.Port != 0 {
			e.Port = b.Port()
		}
	}
	return e, t
}

// sent is how many packets were counted or dropped from one address to another, at all places.
func (st *State) sent(src, dst netip.Addr) (n uint64) {
	for _, c := range st.Traffic.Pairs {
		if c.Src == src && c.Dst == dst {
			n += c.Packets
		}
	}
	for _, d := range st.Traffic.Drops {
		if d.Src == src && d.Dst == dst {
			n += d.Packets
		}
	}
	for _, p := range st.Traffic.Peers {
		if p.Local == src && p.Remote == dst {
			n += p.Out.Packets
		}
	}
	return n
}

// connect says where the process connects what its packets are for, and reports whether it cannot.
func (j *journey) connect(s *step) (refused bool) {
	switch t := j.socket; {
	case t == nil || j.reply:
	case len(t.service.Backends) == 0:
		j.die(s, "cilium-no-backend", words.Facts{"dst": t.asked.To, "port": t.asked.Port, "local": t.service.Local})
	default:
		s.say("cilium-becomes", words.Facts{"from": words.AddrPort(t.asked.To, t.asked.Port), "to": words.AddrPort(j.dst,
			j.dstPort), "n": len(t.service.Backends)})
	}
	return j.over
}

// noteCilium says at a link with Cilium's program whose endpoint is behind it, and why the
// program dropped such packets.
func (j *journey) noteCilium(s *step) {
	l := model.First(j.Links, func(l *model.Link) bool { return l.Name == s.Link })
	if s.Kind != model.HopLink || l == nil || !j.hasCilium(l, s.direction) {
		return
	}
	if e := model.First(j.Cilium.Endpoints, func(e *model.CiliumEndpoint) bool { return e.IfIndex == l.Index }); e != nil {
		at := slices.IndexFunc(s.says, func(x said) bool { return strings.HasPrefix(x.name, "cilium-") })
		if at < 0 {
			at = len(s.says)
		}
		s.says = slices.Insert(s.says, at, said{"cilium", words.Facts{"endpoint": e}})
	}
	hook := model.Either(s.direction == model.Ingress, model.AtIngress, model.AtEgress)
	dropped := map[model.CiliumReason]uint64{}
	for d := range model.Each(j.Traffic.Drops) {
		if d.Cilium.Reason != 0 && d.Is(hook) && d.IfIndex == l.Index && d.Netns == j.Node.Netns &&
			d.Src == s.src && d.Dst == s.dst {
			dropped[d.Cilium.Reason] += d.Packets
		}
	}
	for _, r := range slices.Sorted(maps.Keys(dropped)) {
		closed := r == model.CiliumNoBackend && j.Cilium.ClosedPort(s.dst, j.dstPort, j.ends.Proto)
		s.say("cilium-dropped", words.Facts{"packets": dropped[r], "reason": r, "closed": closed, "port": j.dstPort})
	}
}
