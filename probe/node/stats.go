package node

import (
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// MaxBacklog is the setting that bounds each CPU's backlog. Only the machine's own namespace
// has it: in another one the CPUs' counts are of other namespaces too.
const MaxBacklog = "net.core.netdev_max_backlog"

// SoftnetOf sums up what the CPUs dropped and processed, and has those that dropped.
func (v *Index) SoftnetOf() (dropped, processed uint64, cpus []*model.Softnet) {
	for c := range model.Each(v.Softnet) {
		dropped, processed = dropped+c.DroppedDelta, processed+c.ProcessedDelta
		if c.DroppedDelta > 0 {
			cpus = append(cpus, c)
		}
	}
	return dropped, processed, cpus
}

// Limit is a setting that is a number; ok is false where it was not read.
func (v *Index) Limit(name string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(v.Settings[name], 10, 32)
	return n, err == nil
}

// countedShare is the part of a NIC's or a CPU's packets, one in so many, from which on what
// it loses is a fault: a burst that no queue holds loses fewer.
const countedShare = 100

// Notable reports whether so many of all packets are no bad luck.
func Notable(lost, passed uint64) bool {
	return lost >= ManyRefused && lost*countedShare >= passed+lost
}

// LinkDropped is a link's own counter of packets that came and were dropped. Those of
// protocols that the kernel does not take are among them.
const LinkDropped = "rx_dropped"

// Broken reports whether what a device's counter lost is more than a burst loses.
func Broken(d *model.Device, l *model.DeviceLoss) bool {
	switch l.Kind {
	case model.LossNoBuffer, model.LossReceived:
		return l.Name != LinkDropped && Notable(l.Delta, d.ReceivedDelta)
	case model.LossSent:
		return Notable(l.Delta, d.SentDelta)
	case model.LossTimeout:
		return l.Delta > 0
	case model.LossAllowance:
		// Beyond bandwidth and packets a second the cloud holds packets back at first. Beyond the others it drops.
		refused := strings.HasPrefix(l.Name, "conntrack_") || strings.HasPrefix(l.Name, "linklocal_")
		return refused && l.Delta >= ManyRefused || Notable(l.Delta, d.ReceivedDelta+d.SentDelta)
	}
	return false
}

// Counted is a counter of a device, or of the CPUs' backlogs without a link.
type Counted struct {
	*model.DeviceLoss
	Link string
}

// Below is what notably dies between a link's hooks and the network: no count at a hook shows
// it, so that silence may have that cause.
func (v *Index) Below(link string) []Counted {
	var out []Counted
	on := v.LinkByName[link]
	for d := range model.Each(v.Devices) {
		if l := v.ByIndex[d.IfIndex]; on == nil || l == nil || l != on && l.Master != on.Index {
			continue
		}
		for x := range model.Each(d.Losses) {
			if Broken(d, x) {
				out = append(out, Counted{x, d.Link})
			}
		}
	}
	_, own := v.Limit(MaxBacklog)
	if dropped, processed, _ := v.SoftnetOf(); own && Notable(dropped, processed) {
		out = append(out, Counted{&model.DeviceLoss{Delta: dropped}, ""})
	}
	return out
}
