package pod

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// NoListener reports ports of pods that are asked and on which no socket listens.
var NoListener = fault.Kind{Code: "NoListener", Severity: model.Info, Find: noListener,
	Ends: fault.Hops{model.HopPod, model.HopLocal}, Objects: fault.Objects{"pod.Link f.Pods"},
	Else: fault.Else{"NoListener-loopback !rule"}}

func noListener(v *fault.Input) {
	nobody := func(d *model.Drop) bool {
		return d.Is(model.NoSocket) && v.Classifier.Lost(d) && (d.Reason != "" || v.Classifier.Samples.Of(d) != nil)
	}
	atSockets(v, nobody, func(pod netip.Addr, l *node.Lost) fault.Fault { return unheard(v.Index, pod, l) })
	atNode(v, nobody)
	atLoopback(v, nobody)
}

// unheard is the finding on what reached a pod where nobody listens. It may have said so.
func unheard(v *node.Index, pod netip.Addr, l *node.Lost) fault.Fault {
	f := atSocket(v, "", l)
	var resets, errors uint64
	for _, h := range v.HopsOf[pod] {
		if h.IfIndex == v.Owners[pod][0].LinkIndex && h.Direction == model.Ingress && h.Side == model.AsSource {
			resets, errors = resets+h.RST, errors+h.ICMPErrors
		}
	}
	f.Facts["resets"], f.Facts["errors"], f.Facts["loopback"] = resets, errors, atLoopbackOnly(v, v.Owners[pod][0], l)
	if in := v.Owners[pod][0].Inside; in != nil {
		if r := redirecting(v, in.PacketRules, l); r != nil {
			f.Facts["rule"], f.Severity = r, model.Warning
		}
	}
	if r := redirecting(v, v.PacketRules, l); r != nil {
		f.Facts["served"], f.Severity = r, model.Warning
	}
	return f
}

// atLoopbackOnly are the sockets of the pod's loopback address for the ports that drops were sampled at.
func atLoopbackOnly(v *node.Index, pod *model.Pod, l *node.Lost) []string {
	var out []string
	if pod.Inside == nil {
		return nil
	}
	asked := v.SampledServices(l)
	for _, s := range pod.Inside.Loopback {
		if slices.ContainsFunc(asked, func(a node.Service) bool { return a.Proto == s.Proto && a.Port == s.Addr.Port() }) {
			out = append(out, s.Addr.Addr().String()+" "+node.ProtoPort{Proto: s.Proto, Number: s.Addr.Port()}.String())
		}
	}
	return out
}

// atLoopback are the findings on pods that send what is for others to their own loopback
// address, as by a rule in the pod that leads it to a proxy (REDIRECT), where nobody listens.
func atLoopback(v *fault.Input, match func(*model.Drop) bool) {
	fault.ReportBy(v, func(d *model.Drop) (netns uint32, pod netip.Addr) {
		if d.Dst.IsLoopback() && match(d) && v.InPod(d).IsValid() {
			return d.Netns, d.Src
		}
		return netns, pod
	}, func(_ uint32, l *node.Lost) fault.Fault {
		f := atSocket(v.Index, "NoListener-loopback", l)
		pod := v.Owners[node.Sorted(l.Pods)[0]][0]
		f.Facts["pod"] = pod
		if pod.Inside != nil {
			f.Facts["rule"] = redirecting(v.Index, pod.Inside.PacketRules, l)
		}
		l.Peers = nil // The loopback address is no other end.
		f.Severity, f.LastHopAlive = model.Warning, model.Place{Link: "lo", Role: model.RolePod, Direction: model.Ingress}
		return f
	})
}

// atNode are the findings on what pods send to addresses of the node where nobody listens.
func atNode(v *fault.Input, match func(*model.Drop) bool) {
	fault.ReportBy(v, func(d *model.Drop) (_, pod netip.Addr) {
		if !match(d) || len(v.Owners[d.Src]) == 0 || d.Netns != 0 && d.Netns != v.Node.Netns {
			return pod, pod
		}
		// A route of type local, to which a rule leads, makes the node take what is for others.
		if v.Own[d.Dst] != nil || v.Routing().Lookup(v.Arrived(d)).Type == "local" {
			return d.Dst, d.Src
		}
		return pod, pod
	}, func(own netip.Addr, l *node.Lost) fault.Fault {
		f := atSocket(v.Index, "NoListener-node", l)
		ports, rule := f.Facts["ports"].([]string), redirecting(v.Index, v.PacketRules, l)
		dns := slices.Contains(ports, "udp/53") || slices.Contains(ports, "tcp/53")
		other := announcedBeyond(v.Index, own)
		if f.Facts["dns"], f.Facts["rule"], f.Facts["other"] = dns, rule, other; dns || rule != nil || other != nil {
			f.Severity = model.Warning
		}
		if l := v.Own[own]; l != nil {
			f.Facts["own"] = l.Name
			// Nothing tells that the address is this node's rather than one that was left here.
			if f.Facts["held"] = model.Public(own) && !model.InAny(v.OnLink, own) && !accepts(v.Index, own); f.Facts["held"] == true {
				f.Severity = model.Warning
			}
		}
		if q := v.Arrived(l.Drops[0]); v.Own[own] == nil {
			by := v.Routing().Lookup(q)
			f.Severity, f.Facts["taken"] = model.Warning, v.Shown(by.Route)
			f.Facts["led"], f.Facts["marks"] = node.ShowRule(by.Rule), q.MarkedBy
		}
		f.Cause, f.LastHopAlive = strings.Join(ports, " "), v.Place(node.MostDropped(l.Drops)[0].Link, model.Ingress)
		f.Pods, f.Peers = node.Sorted(l.Pods), model.Hosts(node.Sorted(l.Peers))
		f.Silences = node.SilencesPeers(&f.Finding)
		return f
	})
}

// accepts reports whether anything of the node took a connection or datagram for an address in the window.
func accepts(v *node.Index, own netip.Addr) bool {
	return slices.ContainsFunc(v.Flows, func(f model.Flow) bool {
		return f.Original.Dst == own && !f.Start.IsZero() && (f.Reply.Src != own || f.Established() || f.Proto == model.UDP && f.Replied)
	})
}

// announcedBeyond is an answer for an address of the node by a machine beyond its uplink; nil where there is none.
func announcedBeyond(v *node.Index, own netip.Addr) *model.ARPCount {
	return model.First(v.Traffic.ARP, func(a *model.ARPCount) bool {
		_, known := v.MACNames[a.MAC]
		return a.Addr == own && a.Reply && a.Direction == model.Ingress && v.IsUplink(a.IfIndex) &&
			!a.MAC.IsZero() && !known && !v.IsGatewayMAC(a.MAC)
	})
}

// redirecting is a rule that leads packets to a port of its own namespace, at which drops were sampled; nil where none
// does. DNAT to an address there is that by another name.
func redirecting(v *node.Index, rules []model.PacketRule, l *node.Lost) *model.PacketRule {
	asked := v.SampledServices(l)
	return model.First(rules, func(r *model.PacketRule) bool {
		ports, at := r.ToPorts, r.To.Addr()
		switch {
		case r.Counter.Unused(r.Native):
			return false
		case r.Target == "DNAT" && at.IsValid() && slices.ContainsFunc(l.Drops, func(d *model.Drop) bool { return d.Dst == at }):
			ports = model.PortRange{First: r.To.Port(), Last: cmp.Or(r.To.Port(), math.MaxUint16)}
		case r.Target != "REDIRECT":
			return false
		}
		return slices.ContainsFunc(asked, func(s node.Service) bool { return ports.Has(s.Port) })
	})
}
