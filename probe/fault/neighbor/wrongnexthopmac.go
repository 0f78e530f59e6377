package neighbor

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// WrongNextHopMAC reports frames that leave an uplink for a MAC that is not the next hop's.
var WrongNextHopMAC = fault.Kind{Code: "WrongNextHopMAC", Severity: model.Critical, Find: wrongNextHopMAC,
	Ends: fault.Hops{model.HopBeyond, model.HopLink}, Objects: fault.Objects{"entry.Addr link", "link.Name for"},
	Traits: model.Astray | model.OnlySent | model.ByNextHop, Else: fault.Else{"WrongNextHopMAC !sure"}}

func wrongNextHopMAC(v *fault.Input) {
	for _, w := range v.WrongHops() {
		v.Report(wrongEntry(v.Index, w))
	}
	// So do other nodes, whose frames for this node's pods then arrive for a MAC that the link does not have.
	// A drop names the link of arrival too where the node itself gave the frame that MAC later.
	for ifindex, l := range fault.LostBy(v, func(d *model.Drop) (at int, pod netip.Addr) {
		if d.Is(model.OtherHost) && (v.Outer[d.IfIndex] || v.IsTunnel(d.IfIndex)) && len(v.Owners[d.Dst]) > 0 &&
			v.FramesBetween(d.Dst, d.IfIndex, model.Ingress, model.AsDestination, d.DstMAC) > 0 && v.Classifier.Lost(d) {
			at, pod = d.IfIndex, d.Dst
		}
		return at, pod
	}) {
		if l.Lasting() {
			f := fault.Fault{Page: "WrongNextHopMAC-own", Lost: l, Facts: words.Facts{
				"link": v.ByIndex[ifindex], "for": node.MostDropped(l.Drops)[0].DstMAC, "drops": l.Evidence(),
			}}
			f.LastHopAlive = v.Place(v.LinkName(ifindex), model.Ingress)
			v.Report(f)
		}
	}
}

func wrongEntry(v *node.Index, w *node.WrongHop) fault.Fault {
	n, x := w.Entry, v.SumPeers(w.Silent)
	link, port, remotes := v.LinkName(n.IfIndex), v.LinkName(x.Link), node.Sorted(x.Peers)
	takenOver, shared := !w.Real.IsZero(), !w.Shared.IsZero()
	contradicted := !takenOver && len(w.Replies) > 0
	f := fault.Fault{Lost: x, Facts: words.Facts{
		"entry": n, "link": link, "port": port, "remotes": remotes, "replies": w.Replies, "told": contradicted,
		"gateway": v.GatewayAddrs[n.Addr], "others": w.Others, "pinned": node.Pinned(n),
		"answering": node.Answering(v, func(a netip.Addr) bool { return x.Peers[a] }),
		"sure":      contradicted || shared && node.Pinned(n) && (w.Arrives || len(remotes) > 1),
	}}
	f.LastHopAlive = v.Place(port, model.Egress)
	if takenOver {
		f.Facts["real"] = w.Real
	}
	if shared {
		f.Facts["shared"] = w.Shared
	}
	if w.Arrives {
		f.Facts["senders"] = slices.SortedFunc(maps.Keys(v.SendersOn(n.IfIndex)), model.MAC.Compare)
	}
	if !w.Arrives && !takenOver && !contradicted && !shared && len(remotes) == 1 {
		f.Severity = model.Warning
	}
	return f
}
