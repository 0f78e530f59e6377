package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestQueueDrop: what a queue drops was counted at the link's egress, and was not sent.
func TestQueueDrop(t *testing.T) {
	const pod, far = "172.20.1.5", "192.0.2.7"
	limited := func(sent, drops uint64) *testNode {
		n := kubenet().with(model.SourceQueues)
		up := n.link(2)
		n.Queues = []model.Queue{{IfIndex: up.Index, Link: up.Name, Kind: "tbf", Handle: "1:", Rate: 1000, Burst: 1600, Limit: 3000, SentDelta: sent, DropsDelta: drops}}
		return n
	}
	for _, tt := range []struct {
		name     string
		n        *testNode
		packets  uint64
		local    string
		severity model.Severity
	}{
		{"all requests of a pod", limited(10, 40), 40, pod, model.Warning},
		{"a few of many packets", limited(100_000, 12), 12, pod, model.Info},
		{"all with the node's address", limited(10, 40), 0, "10.50.0.4", model.Warning},
	} {
		up := tt.n.link(2)
		tt.n.passes(pod, up.Index, model.Egress, model.AsSource, tt.packets+10, 1)
		if tt.severity == model.Info {
			tt.n.Traffic.Hops[len(tt.n.Traffic.Hops)-1].Packets = 100_000
		}
		tt.n.peer(tt.local, far, model.PeerCount{Packets: 12, Requests: 12}, none)
		if tt.local == "10.50.0.4" {
			tt.n.masked(pod, far, tcp, 12, false)
		}
		if tt.packets > 0 {
			d := tt.n.dropOn(up.Name, "QDISC_DROP", "__dev_queue_xmit", pod, far, tt.packets)
			d.First, d.Last = tt.n.Window.Start, tt.n.Window.End
		}
		got := Diagnose(&tt.n.Snapshot)
		if len(got) != 1 || got[0].Code != "QueueDrop" || got[0].Severity != tt.severity || len(got[0].Pods) != 1 {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// TestQueueDropsARP: a queue that drops the answers to what a pod asks for makes the packets die that wait for them.
func TestQueueDropsARP(t *testing.T) {
	const pod, far = "172.20.1.5", "192.0.2.7"
	n := kubenet().with(model.SourceQueues)
	n.Pods[0].Netns = 77
	link := n.link(n.Pods[0].LinkIndex)
	n.Queues = []model.Queue{{IfIndex: link.Index, Link: link.Name, Kind: "tbf", Handle: "1:", Rate: 1000, Burst: 1600, Limit: 3000, SentDelta: 10, DropsDelta: 40}}
	n.passes(pod, link.Index, model.Egress, model.AsDestination, 50, 1)
	n.passes(pod, link.Index, model.Ingress, model.AsSource, 10, 1)
	n.dropOn(link.Name, "QDISC_DROP", "__dev_queue_xmit", far, pod, 40)
	n.dropOn(link.Name, "NEIGH_FAILED", "neigh_invalidate", far, pod, 20)
	n.drop("NEIGH_FAILED", "neigh_invalidate", pod, far, 20).Netns = 77
	for d := range model.Each(n.Traffic.Drops) {
		d.First, d.Last = n.Window.Start, n.Window.End
	}
	if got := Diagnose(&n.Snapshot); len(got) != 1 || got[0].Code != "QueueDrop" || got[0].Packets != 40 {
		t.Errorf("%+v", got)
	}
}

// TestQueueInPod: what a queue inside a pod drops never came to the pod's link.
func TestQueueInPod(t *testing.T) {
	for sent, want := range map[uint64]model.Severity{20: model.Warning, 100_000: model.Info} {
		n := kubenet()
		n.Pods[0].Netns = 77
		n.Pods[0].Interface = "eth0"
		n.passes("172.20.1.5", n.Pods[0].LinkIndex, model.Ingress, model.AsSource, sent, 1)
		d := n.drop("QDISC_DROP", "__dev_queue_xmit", "172.20.1.5", "192.0.2.7", 40)
		d.Netns, d.First, d.Last = 77, n.Window.Start, n.Window.End
		got := Diagnose(&n.Snapshot)
		if len(got) != 1 || got[0].Code != "QueueDrop" || got[0].Severity != want || got[0].Title != "the queue of eth0 in the pod behind tap10 drops packets" {
			t.Errorf("sent %d: %+v", sent, got)
		}
	}
}
