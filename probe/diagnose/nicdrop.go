package diagnose

import (
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

func findNICDrop(v *view) {
	for d := range model.Each(v.Devices) {
		v.nicReceives(d)
		v.nicSends(d)
	}
}

// nicReceives reports what came to a NIC and was lost before any hook counted it.
func (v *view) nicReceives(d *model.Device) {
	n := d.Lost(model.LossNoBuffer, model.LossReceived)
	if n < minDrops {
		return
	}
	list, severe := risen(d, model.LossNoBuffer, model.LossReceived)
	// Most of these may be of no protocol that anybody here wants.
	unclear := !slices.ContainsFunc(list, func(c counted) bool { return c.Name != linkDropped && c.Delta >= minDrops })
	f := finding{facts: facts{
		"device": d, "moved": list, "window": v.Window.Duration(), "unclear": unclear,
		"full": d.Lost(model.LossNoBuffer) >= minDrops, "synthetic": d.VF > 0 && d.VFDelta == 0,
	}}
	f.Packets, f.Cause = n, v.Node.Name+" "+d.Link
	f.infoUnless(severe)
	v.report(f)
}

// nicSends reports what passed the hook at a NIC's egress and was not sent.
func (v *view) nicSends(d *model.Device) {
	n, hung := d.Lost(model.LossSent), d.Lost(model.LossTimeout)
	if n < minDrops && hung == 0 {
		return
	}
	l := v.lostTo(func(x *model.Drop) bool {
		return x.Is(model.ByDriver) && x.IfIndex == d.IfIndex && !v.inPod(x).IsValid()
	})
	list, severe := risen(d, model.LossSent, model.LossTimeout)
	severe = severe || v.starve(l)
	others := n - min(n, l.packets)
	if severe && others > 0 {
		v.addMasqueraded(l, d.IfIndex)
	}
	f := finding{page: "NICDrop-sent", lost: l, facts: facts{
		"device": d, "moved": list, "window": v.Window.Duration(), "hung": hung, "others": others,
	}}
	f.Packets, f.Cause, f.LastHopAlive = n, v.Node.Name+" "+d.Link+" sent", v.place(d.Link, model.Egress)
	f.infoUnless(severe)
	v.report(f)
}

// starve reports whether drops are a notable part of what the pods that they concern sent and got.
func (v *index) starve(l *lost) bool {
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

// countedShare is the part of a NIC's or a CPU's packets, one in so many, from which on what
// it loses is a fault: a burst that no queue holds loses fewer.
const countedShare = 100

// notable reports whether so many of all packets are no bad luck.
func notable(lost, passed uint64) bool {
	return lost >= manyRefused && lost*countedShare >= passed+lost
}

// linkDropped is a link's own counter of packets that came and were dropped. Those of
// protocols that the kernel does not take are among them.
const linkDropped = "rx_dropped"

// broken reports whether what a device's counter lost is more than a burst loses.
func broken(d *model.Device, l *model.DeviceLoss) bool {
	switch l.Kind {
	case model.LossNoBuffer, model.LossReceived:
		return l.Name != linkDropped && notable(l.Delta, d.ReceivedDelta)
	case model.LossSent:
		return notable(l.Delta, d.SentDelta)
	case model.LossTimeout:
		return l.Delta > 0
	case model.LossAllowance:
		// Beyond bandwidth and packets a second the cloud holds packets back at first. Beyond the others it drops.
		refused := strings.HasPrefix(l.Name, "conntrack_") || strings.HasPrefix(l.Name, "linklocal_")
		return refused && l.Delta >= manyRefused || notable(l.Delta, d.ReceivedDelta+d.SentDelta)
	}
	return false
}

// risen are the counters of a device that are of these kinds and counted in the window.
func risen(d *model.Device, kinds ...model.LossKind) (out []counted, severe bool) {
	for l := range model.Each(d.Losses) {
		if slices.Contains(kinds, l.Kind) && l.Delta > 0 {
			out = append(out, counted{l, d.Link})
			severe = severe || broken(d, l)
		}
	}
	return out, severe
}

// counted is a counter of a device, or of the CPUs' backlogs without a link.
type counted struct {
	*model.DeviceLoss
	Link string
}

// below is what notably dies between a link's hooks and the network: no count at a hook shows
// it, so that silence may have that cause.
func (v *index) below(link string) []counted {
	var out []counted
	on := v.byName[link]
	for d := range model.Each(v.Devices) {
		l := v.ByIndex[d.IfIndex]
		if on == nil || l == nil || l != on && l.Master != on.Index {
			continue
		}
		for x := range model.Each(d.Losses) {
			if broken(d, x) {
				out = append(out, counted{x, d.Link})
			}
		}
	}
	_, own := v.limit(maxBacklog)
	if dropped, processed, _ := v.softnetOf(); own && notable(dropped, processed) {
		out = append(out, counted{&model.DeviceLoss{Delta: dropped}, ""})
	}
	return out
}
