package timeline

import (
	"reflect"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestStats: what was counted below IP in a window is the difference of its edges. Of what was
// not there when it began that is not known; a counter that is lower was reset.
func TestStats(t *testing.T) {
	device := func(driver string, received uint64, losses ...model.DeviceLoss) model.Device {
		return model.Device{IfIndex: 2, Link: "eth0", Driver: driver, Received: received, Losses: losses}
	}
	loss := func(name string, total uint64) model.DeviceLoss { return model.DeviceLoss{Name: name, Total: total} }
	first := model.Snapshot{
		Devices:        []model.Device{device("ena", 100, loss("rx_dropped", 7), loss("tx_dropped", 9))},
		Softnet:        []model.Softnet{{CPU: 1, Processed: 50, Dropped: 5, Squeezed: 1}},
		NeighborTables: []model.NeighborTable{{Name: model.NeighborTable4, Fulls: 3}},
	}
	last := model.Snapshot{
		Devices:        []model.Device{device("ena", 160, loss("rx_dropped", 17), loss("tx_dropped", 2), loss("tx_timeout", 4)), {IfIndex: 3, Received: 1 << 40}},
		Softnet:        []model.Softnet{{CPU: 0, Dropped: 1 << 20}, {CPU: 1, Processed: 80, Dropped: 6, Squeezed: 1}},
		NeighborTables: []model.NeighborTable{{Name: model.NeighborTable4, Fulls: 13}, {Name: model.NeighborTable6, Fulls: 99}},
	}
	before := last.Devices[0].Losses[0]
	got := last
	(&mark{totals: totalsOf(&first)}).compare(&got)
	if d := got.Devices[0]; d.ReceivedDelta != 60 || d.Losses[0].Delta != 10 || d.Losses[1].Delta != 2 || d.Losses[2].Delta != 0 || got.Devices[1].ReceivedDelta != 0 {
		t.Errorf("devices %+v", got.Devices)
	}
	if c := got.Softnet; c[0].DroppedDelta != 0 || c[1].ProcessedDelta != 30 || c[1].DroppedDelta != 1 || c[1].SqueezedDelta != 0 {
		t.Errorf("softnet %+v", c)
	}
	if n := got.NeighborTables; n[0].FullsDelta != 10 || n[1].FullsDelta != 0 {
		t.Errorf("tables %+v", n)
	}
	if !reflect.DeepEqual(last.Devices[0].Losses[0], before) {
		t.Errorf("the reading itself was changed: %+v", last.Devices[0].Losses[0])
	}
	// Another driver's counters are others.
	got = last
	first.Devices[0].Driver = "mlx5_core"
	if (&mark{totals: totalsOf(&first)}).compare(&got); got.Devices[0].ReceivedDelta != 0 {
		t.Errorf("after another driver: %+v", got.Devices[0])
	}
}
