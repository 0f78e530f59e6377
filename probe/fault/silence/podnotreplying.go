package silence

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// silentReceiver is a pod's address with the services that do not reply.
type silentReceiver struct {
	pod      *model.Pod
	addr     netip.Addr
	services []node.Service
	// flows are those without a reply, silent how many SYNs went in for which no SYN-ACK came out.
	flows  []*model.Flow
	silent uint64
	in     *model.HopCount
	// partly: a service replies to other clients.
	partly bool
}

// PodNotReplying reports pods of this node that do not reply to requests which were delivered to them.
var PodNotReplying = fault.Kind{Code: "PodNotReplying", Severity: model.Warning, Find: podNotReplying,
	Needs: fault.Sources{model.SourceTC, model.SourcePods}, Ends: fault.Hops{model.HopPod, model.HopLocal},
	Objects: fault.Objects{"f.Pods"}, Else: fault.Else{"PodNotReplying", "PodNotReplying-joined", "PodNotReplying-led", "PodNotReplying-ruled"}}

func podNotReplying(v *fault.Input) {
	all := v.AsksOf()
	for p := range model.Each(v.Pods) {
		if !v.PresentWholeWindow(p) {
			continue
		}
		for _, a := range node.PodAddrs(p) {
			in := v.Hop(a, p.LinkIndex, model.Egress, model.AsDestination)
			if in == nil || len(v.Owners[a]) != 1 {
				continue
			}
			d := silentReceiver{pod: p, addr: a, in: in, silent: in.SYN - min(in.SYN, synAcks(v.Index, a))}
			for _, s := range node.Services(all, a) {
				if silentTo(v, s, all, &d) {
					d.services = append(d.services, s)
				}
			}
			if len(d.services) > 0 || untrackedSilence(v, &d, all) {
				v.Report(notReplying(v, &d))
			}
		}
	}
}

func synAcks(v *node.Index, a netip.Addr) (most uint64) {
	for _, h := range v.HopsOf[a] {
		if h.Direction == model.Ingress && h.Side == model.AsSource {
			most = max(most, h.SYNACK)
		}
	}
	return most
}

// silentTo reports whether requests of the window to a service were not replied to, and no other finding says
// why: none at all, or none of certain clients, each of which asked several times. It adds these flows to d.
func silentTo(v *fault.Input, s node.Service, all map[node.Service]*node.Asks, d *silentReceiver) bool {
	a := all[s]
	if s.Proto != model.TCP && s.Proto != model.UDP || !s.Wants(a) {
		return false
	}
	replied, asked := node.SetOf(node.Clients(a.Replied)), map[netip.Addr]int{}
	for _, f := range a.Unreplied {
		asked[f.Original.Src]++
	}
	flows := slices.DeleteFunc(slices.Clone(a.Unreplied), func(f *model.Flow) bool {
		client := f.Original.Src
		return replied[client] || s.Proto == model.UDP && s.Port != node.DNSPort && !a.Before[client] ||
			len(replied) > 0 && asked[client] < node.MinAsks || settledFor(v, s.Pod, f)
	})
	if len(flows) < node.MinAsks || s.Proto == model.TCP && (d.silent < node.MinAsks || node.QueueWasFull(d.pod, s, len(flows), all)) {
		return false
	}
	d.partly = d.partly || len(replied) > 0
	d.flows = append(d.flows, flows...)
	return true
}

// settledFor reports whether a flow to a pod has a finding already: it claims the silence, for
// the pod or the service's address that the client asked, or a drop between both. What a pod asks
// of itself comes back with its own address, which the kernel refuses.
func settledFor(v *fault.Input, pod netip.Addr, flow *model.Flow) bool {
	client, to := flow.Original.Src, flow.Original.Dst
	if client == pod || v.SilencedBy(client, model.Host(pod), flow) != "" ||
		v.SilencedBy(client, model.Host(to), flow) != "" || v.SilencedBy(to, model.Host(pod), flow) != "" {
		return true
	}
	// A rule may keep its datagrams from connection tracking. Its replies may wait in the pod for a MAC: the kernel
	// keeps them for seconds before it drops them.
	if flow.Proto == model.UDP && len(v.OneSided(flow)) > 0 || awaitsMAC(v.Index, pod, client) {
		return true
	}
	// What left the node by an uplink, and did not come back, was not delivered.
	out, in := v.FlowStates[node.Pair{Local: client, Remote: pod}], v.FlowStates[node.Pair{Local: pod, Remote: client}]
	if len(v.Owners[client]) > 0 && out != nil && out.Peer.Out.Packets > 0 && (in == nil || in.Peer.In.Packets == 0) {
		return true
	}
	// Nor does connection tracking see a reply of which a rule drops the node's copy, while a bridge forwards it.
	for d := range model.Each(v.Traffic.Drops) {
		if by := v.ByDrop[d]; d.Proto != 0 && d.Proto != flow.Proto || !by.Concerns(flow) {
			continue
		}
		if d.Src == pod && d.Dst == client && d.Is(model.Netfilter) && d.Packets >= node.MinDrops || (d.Src == pod && d.Dst == client || d.Src == client && d.Dst == pod) && v.Classifier.Lost(d) &&
			(v.Explained(d) || refused(d)) {
			return true
		}
	}
	return false
}

// awaitsMAC reports whether a pod asks for the MAC of its next hop to a client, and gets no reply.
func awaitsMAC(v *node.Index, pod, client netip.Addr) bool {
	return slices.ContainsFunc(v.Owners[pod], func(p *model.Pod) bool {
		hop := client
		if r := path.PodRoute(p, client); r != nil && r.Gateway.IsValid() {
			hop = r.Gateway
		}
		t := v.Resolutions(model.Ingress)[node.Question{Ifindex: p.LinkIndex, Addr: hop}]
		return t.Requests > 0 && t.Replies == 0
	})
}

// manySYNs is more than one connection attempt sends in a window.
const manySYNs = 9

// untrackedSilence reports whether a pod replies to no connection at all, where
// connection tracking has no flow to it to tell them apart.
func untrackedSilence(v *fault.Input, d *silentReceiver, all map[node.Service]*node.Asks) bool {
	if d.silent < manySYNs || d.silent < d.in.SYN || !model.Lasted(d.in.First, d.in.Last) {
		return false
	}
	tracked := slices.ContainsFunc(node.Services(all, d.addr), func(s node.Service) bool { return s.Proto == model.TCP })
	spoilt := slices.ContainsFunc(v.Traffic.Drops, func(x model.Drop) bool {
		return x.Dst == d.addr && x.Packets >= node.ManyRefused && refused(&x)
	})
	out := v.Hop(d.addr, d.pod.LinkIndex, model.Ingress, model.AsSource)
	return !tracked && !spoilt && !(out != nil && out.RST+out.ICMPErrors > 0) && !v.Silenced(netip.Addr{}, model.Host(d.addr))
}

func notReplying(v *fault.Input, d *silentReceiver) fault.Fault {
	watched, asking := v.Has(model.SourceDrops), node.Clients(d.flows)
	l := &node.Lost{Drops: model.Chosen(v.Traffic.Drops, func(x *model.Drop) bool {
		return (x.Dst == d.addr || x.Src == d.addr) && v.InPod(x).IsValid() && v.Classifier.Lost(x) && !v.Explained(x)
	})}
	translated := slices.DeleteFunc(slices.Clone(d.flows),
		func(f *model.Flow) bool { return f.Original.Dst == f.Reply.Src })
	ports := model.Map(d.services, node.Service.Name)
	astray := model.Filter(d.pod.Elsewhere, func(x netip.Prefix) bool {
		return x.IsValid() && x.Bits() > 0 && slices.ContainsFunc(asking, x.Contains)
	})
	f := fault.Fault{Lost: l, Facts: words.Facts{
		"pod": d.pod, "addr": d.addr, "ports": ports, "partly": d.partly, "clients": asking, "in": d.in,
		"astray": astray, "synAcks": synAcks(v.Index, d.addr), "flows": d.flows,
		"virtual": node.Destinations(translated), "clean": watched && len(l.Drops) == 0, "watched": watched,
		"accepting": d.pod.Backlog != nil && d.pod.Backlog.Delta == 0,
		// They come after lasthop's own count, and what they redirect is no drop.
		"behind": model.Chosen(v.Programs, func(x *model.Program) bool {
			return x.IfIndex == d.pod.LinkIndex && x.Netns == v.Node.Netns && x.Direction == model.Egress && x.Kind == model.ProgramTC && x.ID == 0
		}),
		"datagrams": slices.ContainsFunc(d.services, func(s node.Service) bool { return s.Proto == model.UDP }),
	}}
	if len(d.flows) > 0 {
		if rule, by := path.PodRuled(d.pod, node.ReplyPacket(d.flows[0])); by != nil && by.Link != d.pod.Interface {
			f.Page, f.Facts["rule"], f.Facts["route"], f.Facts["by"] = "PodNotReplying-ruled", node.ShowRule(rule), &node.ShownRoute{Route: by, Link: by.Link}, by.Link
		}
	}
	f.Pods, f.Peers, f.LastHopAlive = []netip.Addr{d.addr}, model.Hosts(asking), v.Place(d.pod.Link, model.Egress)
	if len(d.flows) > 0 {
		// Counts are of all that was delivered. Rules may lead these flows elsewhere by ports or marks, or take their replies.
		takers := forwards(v.Index, node.ReplyPacket(d.flows[0]))
		if f.Facts["takers"] = takers; len(takers) > 0 {
			f.Page = "PodNotReplying-led"
		}
		by := v.Routing().Lookup(v.Sent(node.FlowPacket(d.flows[0])))
		if len(by.Unsure) == 0 && by.Rule != nil && by.Type == "unicast" && v.Misses(&by, d.addr) {
			f.Page, f.Facts["led"], f.Facts["route"] = "PodNotReplying-led", node.ShowRule(by.Rule), v.Shown(by.Route)
			f.LastHopAlive = v.Place(by.Hops[0].Link, model.Egress)
		}
	}
	f.Packets = max(d.silent, uint64(len(d.flows)))
	if len(d.flows) == 0 || !watched {
		f.Confidence = model.Possible
	}
	return f
}
