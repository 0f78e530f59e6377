package record_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

// A recording is written reading by reading, and read back as the snapshot of any
// window: what was counted between its ends.
func Example() {
	var file bytes.Buffer
	w, err := record.NewWriter(&file, record.Head{Writer: "example", Node: "worker-7", Window: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	start := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	pod := netip.MustParseAddr("10.244.1.7")
	for n := range 31 {
		s := &model.Snapshot{Window: model.Window{Start: start, End: start.Add(time.Duration(n) * time.Second)}}
		// Counts only grow: they are those since the observation began.
		s.Traffic.Hops = []model.HopCount{{
			Addr: pod, Link: "veth7", Direction: model.Ingress, Side: model.AsSource, Packets: uint64(100 * n),
		}}
		if err := w.Write(model.Reading{At: s.Window.End, Point: model.Point{Snapshot: s, Whole: true}}); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
		return
	}

	f, err := record.Open(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	s, err := f.Window(10 * time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(f.Head.Node, f.Len(), "readings")
	fmt.Println(s.Traffic.Hops[0].Packets, "packets of", s.Traffic.Hops[0].Addr, "in", s.Window.Duration())
	// Output:
	// worker-7 31 readings
	// 1000 packets of 10.244.1.7 in 10s
}
