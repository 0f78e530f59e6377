package stats

import (
	"regexp"
	"strings"

	"github.com/safchain/ethtool"

	"github.com/lasthop/lasthop/probe/model"
)

// readDriver sets what the driver says of itself, and adds what it counts.
func readDriver(e *ethtool.Ethtool, d *model.Device) (err error) {
	if d.Driver, err = e.DriverName(d.Link); err != nil {
		return err
	}
	if r, err := e.GetRing(d.Link); err == nil { // not every driver tells them
		d.RxRing, d.RxRingMax = uint64(r.RxPending), uint64(r.RxMaxPending)
		d.TxRing, d.TxRingMax = uint64(r.TxPending), uint64(r.TxMaxPending)
	}
	counters, err := e.Stats(d.Link)
	addCounters(d, counters)
	return err
}

// numbers are those of queues and CPUs in the names of counters.
var numbers = regexp.MustCompile(`[0-9]+`)

// addCounters adds the driver's counters of losses to a device. A counter that the link has as well is the driver's.
func addCounters(d *model.Device, counters map[string]uint64) {
	sums := map[string]uint64{}
	for name, value := range counters {
		name = numbers.ReplaceAllString(strings.TrimSpace(name), "*")
		if name == "vf_rx_packets" || name == "vf_tx_packets" {
			d.VF += value
		} else if kindOf(name) != "" {
			sums[name] += value
		}
	}
	for l := range model.Each(d.Losses) {
		delete(sums, l.Name)
	}
	for name, n := range sums {
		d.Losses = append(d.Losses, model.DeviceLoss{Name: name, Kind: kindOf(name), Total: n})
	}
}
