package below

import (
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// NICDrop reports NICs that drop packets before the hooks see them, or after.
var NICDrop = fault.Kind{Code: "NICDrop", Severity: model.Warning, Find: nicDrop,
	Ends: fault.Hops{model.HopLink, model.HopQueue}, Else: fault.Else{"NICDrop-sent", "unclear"}}

func nicDrop(v *fault.Input) {
	for d := range model.Each(v.Devices) {
		nicReceives(v, d)
		nicSends(v, d)
	}
}

// nicReceives reports what came to a NIC and was lost before any hook counted it.
func nicReceives(v *fault.Input, d *model.Device) {
	n := d.Lost(model.LossNoBuffer, model.LossReceived)
	if n < node.MinDrops {
		return
	}
	list, severe := risen(d, model.LossNoBuffer, model.LossReceived)
	// Most of these may be of no protocol that anybody here wants.
	unclear := !slices.ContainsFunc(list, func(c node.Counted) bool { return c.Name != node.LinkDropped && c.Delta >= node.MinDrops })
	f := fault.Fault{Facts: words.Facts{
		"device": d, "moved": list, "window": v.Window.Duration(), "unclear": unclear,
		"full": d.Lost(model.LossNoBuffer) >= node.MinDrops, "synthetic": d.VF > 0 && d.VFDelta == 0,
	}}
	f.Packets, f.Cause = n, v.Node.Name+" "+d.Link
	f.InfoUnless(severe)
	v.Report(f)
}

// nicSends reports what passed the hook at a NIC's egress and was not sent.
func nicSends(v *fault.Input, d *model.Device) {
	n, hung := d.Lost(model.LossSent), d.Lost(model.LossTimeout)
	if n < node.MinDrops && hung == 0 || v.Unconnected(d.IfIndex) {
		return
	}
	l := v.LostTo(func(x *model.Drop) bool {
		return x.Is(model.ByDriver) && x.IfIndex == d.IfIndex && !v.InPod(x).IsValid()
	})
	list, severe := risen(d, model.LossSent, model.LossTimeout)
	severe = severe || starve(v.Index, l)
	others := n - min(n, l.Packets)
	if severe && others > 0 {
		addMasqueraded(v.Index, l, d.IfIndex)
	}
	f := fault.Fault{Page: "NICDrop-sent", Lost: l, Facts: words.Facts{
		"device": d, "moved": list, "window": v.Window.Duration(), "hung": hung, "others": others,
	}}
	f.Packets, f.Cause, f.LastHopAlive = n, v.Node.Name+" "+d.Link+" sent", v.Place(d.Link, model.Egress)
	f.InfoUnless(severe)
	v.Report(f)
}

// starve reports whether drops are a notable part of what the pods that they concern sent and got.
func starve(v *node.Index, l *node.Lost) bool {
	var carried uint64
	for a := range l.Pods {
		var most uint64
		for _, h := range v.HopsOf[a] {
			most = max(most, h.Packets)
		}
		carried += most
	}
	return l.Lasting() && node.Notable(l.Packets, carried)
}

// risen are the counters of a device that are of these kinds and counted in the window.
func risen(d *model.Device, kinds ...model.LossKind) (out []node.Counted, severe bool) {
	for l := range model.Each(d.Losses) {
		if slices.Contains(kinds, l.Kind) && l.Delta > 0 {
			out = append(out, node.Counted{DeviceLoss: l, Link: d.Link})
			severe = severe || node.Broken(d, l)
		}
	}
	return out, severe
}
