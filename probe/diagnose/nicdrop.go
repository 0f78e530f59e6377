package diagnose

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// NICDrop is the code of this finding.
const NICDrop model.Code = "NICDrop"

var nicDrop = kind{
	code:     NICDrop,
	severity: model.Warning,
	find:     findNICDrop,
	ends:     []model.HopKind{model.HopLink, model.HopQueue},
}

func findNICDrop(v *view) []finding {
	var out []finding
	for d := range model.Each(v.Devices) {
		out = append(out, v.nicReceives(d)...)
		out = append(out, v.nicSends(d)...)
	}
	return out
}

// nicReceives is the finding on what came to a NIC and was lost before any hook counted it.
func (v *view) nicReceives(d *model.Device) []finding {
	n := d.Lost(model.LossNoBuffer, model.LossReceived)
	if n < minDrops {
		return nil
	}
	list, severe := risen(d, model.LossNoBuffer, model.LossReceived)
	// Most of these may be of no protocol that anybody here wants.
	unclear := !slices.ContainsFunc(list, func(c counted) bool { return c.Name != linkDropped && c.Delta >= minDrops })
	f := finding{facts: facts{
		"device": d, "moved": list, "window": v.Window.Duration(), "unclear": unclear,
		"full": d.Lost(model.LossNoBuffer) >= minDrops, "synthetic": d.VF > 0 && d.VFDelta == 0,
	}}
	f.Packets, f.Cause = n, v.Node.Name+" "+d.Link
	if !severe {
		f.Severity = model.Info
	}
	return []finding{f}
}

// nicSends is the finding on what passed the hook at a NIC's egress and was not sent.
func (v *view) nicSends(d *model.Device) []finding {
	n, hung := d.Lost(model.LossSent), d.Lost(model.LossTimeout)
	if n < minDrops && hung == 0 {
		return nil
	}
	l := v.lostTo(func(x *model.Drop) bool { return x.ByDriver() && x.IfIndex == d.IfIndex && !v.inPod(x).IsValid() })
	list, severe := risen(d, model.LossSent, model.LossTimeout)
	severe = severe || v.starve(l)
	others := n - min(n, l.packets)
	if severe && others > 0 {
		v.addMasqueraded(l, d.IfIndex)
	}
	f := finding{page: "NICDrop-sent", lost: l, facts: facts{
		"device": d, "moved": list, "window": v.Window.Duration(), "hung": hung, "others": others,
	}}
	f.Packets, f.Cause, f.LastHopAlive = n, v.Node.Name+" "+d.Link, v.place(d.Link, model.Egress)
	if !severe {
		f.Severity = model.Info
	}
	return []finding{f}
}

// starve reports whether drops are a notable part of what the pods that they concern sent
// and got.
func (v *view) starve(l *lost) bool {
	var carried uint64
	for a := range l.pods {
		var most uint64
		for _, h := range v.hops[a] {
			most = max(most, h.Packets)
		}
		carried += most
	}
	return l.lasting() && notable(l.packets, carried)
}
