// Package silence finds what no other kind explains: pairs without a reply, pods that do not reply, drops without a cause.
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

// routesProven reports whether replies, probes or files show that the network has
// the route to another node's pods, and the one back from that node.
func routesProven(v *node.Index, cidr netip.Prefix) (there, back bool) {
	for _, r := range v.RemoteRanges() {
		if r.CIDR == cidr {
			there, back = r.Answers || r.There == node.ReachWorks, r.Back == node.ReachWorks || v.BackShared(r)
		}
	}
	there = there || v.RouteTo(cidr, v.NodeOf(cidr), v.Self()).State == node.RouteCorrect
	return there, back || v.RouteBack(cidr).State == node.RouteCorrect
}

// ofNode reports whether the node itself asked, which it does for names.
func ofNode(v *node.Index, senders []netip.Addr) bool {
	return !slices.ContainsFunc(senders, func(a netip.Addr) bool { return v.Own[a] == nil })
}

// untranslatedServices are those of silent destinations that seem to be services' addresses
// and that no rule translates: their packets leave the node, where nobody has them.
type untranslatedServices struct {
	List []node.UntranslatedService
	// Except: the rules there are, of the last of List; gone: none for any service; cilium: Cilium has the service, on other ports.
	Except string
	// All: no destination is another. Then what else may lose requests is none of their causes.
	All bool
}

func findUntranslated(v *node.Index, remotes []netip.Addr) *untranslatedServices {
	u := untranslatedServices{Except: "whole"}
	to := model.Grouped(v.Peers, func(p *model.Peer) netip.Addr { return p.Remote })
	for _, a := range remotes {
		if v.Remote(a).IsValid() || !v.Elsewhere(a) {
			continue
		}
		sent, found := untranslated(v, to[a])
		s := node.UntranslatedService{Addr: a}
		switch {
		case v.Cilium.Service(a, 0, 0) != nil:
			x := v.Leaving(to[a][0])[0]
			s.Port, u.Except = node.ProtoPort{Proto: x.Proto, Number: x.DstPort}, "cilium"
		case len(found.Beside) > 0:
			s.Port, s.Beside, u.Except = node.ProtoPort{Proto: sent.Proto, Number: sent.DstPort}, found.Beside[0], "beside"
		case len(found.Others) > 0:
			s.Others, u.Except = found.Others, "others"
		case len(found.Rules) > 0:
			s.Rule = found.Rules[0]
		case v.ByDefaultRoute(a) && v.Untended(a):
			u.Except = "gone"
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
func untranslated(v *node.Index, to []*model.Peer) (path.Packet, path.Untranslated) {
	for _, p := range to {
		for _, sent := range v.Leaving(p) {
			if found := v.Tables().Untranslated(sent); found.Is() {
				return sent, found
			}
		}
	}
	return path.Packet{}, path.Untranslated{}
}

// reportScans reports addresses that pods asked and that do not answer.
func reportScans(v *fault.Input) {
	for _, s := range v.Scans {
		var silent []netip.Addr
		f := fault.Fault{Page: "NoReply-scan"}
		f.Facts = words.Facts{"pod": v.Owners[s.Pod][0], "asked": len(s.Remotes), "ports": s.Ports}
		f.Severity, f.Pods = model.Info, []netip.Addr{s.Pod}
		for p := range model.Each(v.Peers) {
			if _, found := slices.BinarySearchFunc(s.Remotes, p.Remote, netip.Addr.Compare); found &&
				v.Swept[node.Pair{Local: p.Local, Remote: p.Remote}] && v.Unanswered(p) {
				silent = append(silent, p.Remote)
				f.Packets += p.Out.Packets
				f.LastHopAlive = v.Place(v.LinkName(p.IfIndex), model.Egress)
			}
		}
		if s.Network.IsValid() {
			f.Facts["network"] = s.Network
		}
		if f.Peers = model.Hosts(model.Unique(silent)); len(silent) > 0 {
			v.Report(f)
		}
	}
}
