package loss_test

import (
	"fmt"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// A Classifier tells drops that lost packets from those of ordinary life.
func ExampleClassifier() {
	s := &model.Snapshot{Traffic: model.Traffic{Drops: []model.Drop{
		{Reason: "NETFILTER_DROP", Location: "nf_hook_slow", Packets: 12},
		{Reason: model.Consumed, Location: "icmpv6_rcv", Packets: 3},
	}}}
	classifier := loss.NewClassifier(s)
	for d := range model.Each(s.Traffic.Drops) {
		fmt.Printf("%d %s: lost %t %q\n", d.Packets, d.Reason, classifier.Lost(d), classifier.Class(d))
	}
	// Output:
	// 12 NETFILTER_DROP: lost true ""
	// 3 CONSUMED: lost false "delivered"
}
