package path

import (
	"testing"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// TestQueueHop: what a link's queue drops was counted at its egress, and does not arrive.
func TestQueueHop(t *testing.T) {
	uplink := &model.Link{Index: 2, Name: "enp1", Role: model.RoleUplink, Up: true, Carrier: true}
	s := &model.Snapshot{Links: []model.Link{*uplink}, Queues: []model.Queue{{IfIndex: 2, Link: "enp1", Kind: "tbf", Handle: "1:", Rate: 125, DropsDelta: 12}}}
	s.Sources = []model.Source{{Name: model.SourceTC, Status: model.OK}, {Name: model.SourceDrops, Status: model.OK}}
	s.Traffic.Drops = []model.Drop{{Src: podA, Dst: far, IfIndex: 2, Link: "enp1", Reason: "QDISC_DROP", Location: "__dev_queue_xmit", Packets: 12}}
	look(s, row(podA, far, "enp1", 2, model.Egress, 20))
	j := &journey{tracer: newTracer(NewState(s), Ends{Pod: podA, To: far}), src: podA, dst: far}
	j.drops = loss.NewClassifier(s)
	j.toPort(&s.Links[0])
	j.measure()
	if hops := j.count(); len(hops) != 3 || hops[1].Kind != model.HopQueue || figures(hops) != "20/20/0 20/8/12 8/-/-" {
		t.Errorf("%s: %+v", figures(hops), hops)
	}
}
