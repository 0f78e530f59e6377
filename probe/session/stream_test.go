package session_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/timeline"
)

// TestStream breaks and mends a node while it is watched: each fault must open
// its finding and no other, and close it once it is mended; before, between and
// after them nothing is found.
func TestStream(t *testing.T) {
	t.Parallel()
	type fault struct {
		scenario.Fault
		code model.Code
	}
	pod := func(typ scenario.FaultType) scenario.Fault {
		return scenario.Fault{Type: typ, Node: "left", Pod: "left/one", MAC: model.MAC{0xa2, 0x5c, 3, 1, 4, 1}}
	}
	node := func(typ scenario.FaultType) scenario.Fault { return scenario.Fault{Type: typ, Node: "left"} }
	for plugin, faults := range map[string][]fault{
		"kubenet": {
			{pod(scenario.DropForward), "PolicyDrop"},
			{scenario.Fault{Type: scenario.DeleteUDR}, "MissingUDR"},
		},
		"cilium": {
			{pod(scenario.DeletePodRoute), "MissingPodRoute"},
			{node(scenario.ForwardingOff), "ForwardingDisabled"},
		},
	} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			l := upWithTraffic(t, `
topology:
  plugin: `+plugin+`
  nodes: [{name: left, pods: [one, two]}, {name: right, pods: [far, away]}]
traffic:
  - {from: [left/one, left/two, right/far], to: [left/one, left/two, right/far, right/away, outside], proto: [tcp, udp, icmp], rate: 10}
`)
			s := stream(t, l, timeline.Short)
			var w watcher
			w.until(t, s, "quiet", func(r model.Reading) bool { return !r.Judged.IsZero() })
			if testing.Short() {
				faults = faults[:1]
			}
			for _, f := range faults {
				began := time.Now()
				check(t, l.Inject(t.Context(), f.Fault))
				w.until(t, s, string(f.code), func(model.Reading) bool { return w.alone(f.code) })
				appeared := time.Since(began)
				w.until(t, s, string(f.code)+" judged on", func(r model.Reading) bool { return time.Since(began) > appeared+timeline.Short })
				mended := time.Now()
				check(t, l.Undo(t.Context(), f.Fault))
				w.until(t, s, string(f.code)+" closing", func(model.Reading) bool { return len(w.open) == 0 })
				t.Logf("%s: opened after %v, closed after %v", f.code, appeared.Round(time.Millisecond), time.Since(mended).Round(time.Millisecond))
				w.until(t, s, "quiet after "+string(f.code), func(r model.Reading) bool { return time.Since(mended) > 2*timeline.Short })
				// Addresses are reported as silent before their range is.
				opened := slices.DeleteFunc(w.opened, func(code model.Code) bool { return f.code == "MissingUDR" && code == "NoReply" })
				if !slices.Equal(opened, []model.Code{f.code}) {
					t.Errorf("opened %v, want %s alone, once", w.opened, f.code)
				}
				w.opened = nil
			}
			check(t, s.Close())
		})
	}
}

// watcher follows which findings at warning or above open.
type watcher struct {
	open   map[int]model.Tracked
	opened []model.Code
	known  map[int]bool
}

// alone reports whether findings of the code are open, and no others.
func (w *watcher) alone(code model.Code) bool {
	for _, f := range w.open {
		if f.Code != code {
			return false
		}
	}
	return len(w.open) > 0
}

func (w *watcher) until(t *testing.T, s *session.Stream, what string, done func(model.Reading) bool) {
	t.Helper()
	for r := range s.Readings() {
		w.open = map[int]model.Tracked{}
		for _, f := range r.Findings {
			if f.Severity == model.Info {
				continue
			}
			if !w.known[f.ID] {
				if w.known == nil {
					w.known = map[int]bool{}
				}
				w.known[f.ID] = true
				w.opened = append(w.opened, f.Code)
				t.Logf("%s: opened %s %s: %s", r.At.Format("05.000"), f.Code, f.Confidence, f.Title)
			}
			if !f.Closed {
				w.open[f.ID] = f
			}
		}
		if done(r) {
			return
		}
	}
	t.Fatalf("the stream ended before: %s: %v", what, s.Close())
}

// TestStreamChurn makes and deletes pods while the node is watched: nothing is
// wrong with that, however often it is judged.
func TestStreamChurn(t *testing.T) {
	t.Parallel()
	l := upWithTraffic(t, `
topology:
  plugin: azure-transparent
  nodes: [{name: left, pods: [stays, other, one, two, three]}, {name: right, pods: [far]}]
traffic:
  - {from: [left/stays, left/other, right/far], to: [left/stays, right/far, outside], proto: [tcp, udp, icmp]}
`)
	var peers []scenario.Endpoint
	for _, ref := range []string{"left/stays", "right/far", "outside"} {
		peer, err := l.Scenario().Topology.Resolve(ref)
		check(t, err)
		peers = append(peers, peer)
	}
	s := stream(t, l, timeline.Short)
	churned := make(chan error, 1)
	go func() { churned <- l.Churn(t.Context(), []string{"left/one", "left/two", "left/three"}, 40, peers...) }()
	var w watcher
	w.until(t, s, "the churn's end", func(model.Reading) bool { return len(churned) > 0 })
	check(t, <-churned)
	ended := time.Now()
	w.until(t, s, "quiet", func(model.Reading) bool { return time.Since(ended) > timeline.Short })
	if len(w.opened) > 0 {
		t.Errorf("opened %v, want nothing", w.opened)
	}
}

// TestStreamAsked asks for windows, a reset and a new look at the state.
func TestStreamAsked(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	sent, stop := n.send(t)
	s, err := session.Open(t.Context(), session.Options{Options: collect.Options{NS: n.ns, HostRoot: "/nonexistent"}, Diagnose: diagnose.Judge, For: timeline.Short})
	check(t, err)
	until := func(what string, is func(model.Reading) bool) model.Reading {
		for r := range s.Readings() {
			if is(r) {
				return r
			}
		}
		t.Fatalf("the stream ended before %s: %v", what, s.Close())
		return model.Reading{}
	}
	packets := func(s *model.Snapshot) (most uint64) {
		for _, h := range s.Traffic.Hops {
			if h.Addr == n.podAddr {
				most = max(most, h.Packets)
			}
		}
		return most
	}
	first := until("the first reading", func(model.Reading) bool { return true })
	if !first.Point.Whole || packets(first.Snapshot) > 0 {
		t.Errorf("first reading: whole %v, %d packets", first.Point.Whole, packets(first.Snapshot))
	}
	r := until("packets", func(r model.Reading) bool { return packets(r.Snapshot) > 0 })
	s.SetWindow(0)
	r = until("the window of all", func(now model.Reading) bool { return now.At.After(r.At) })
	if !r.Snapshot.Window.Start.Equal(first.Snapshot.Window.Start) || packets(r.Snapshot) != packets(r.Point.Snapshot) {
		t.Errorf("all: %d of %d packets since %v", packets(r.Snapshot), packets(r.Point.Snapshot), r.Snapshot.Window.Start)
	}
	s.Reset()
	r = until("the reset", func(r model.Reading) bool { return r.Snapshot.Window.Start.After(first.Snapshot.Window.Start) })
	if packets(r.Snapshot) >= packets(r.Point.Snapshot) {
		t.Errorf("%d of %d packets since the reset", packets(r.Snapshot), packets(r.Point.Snapshot))
	}
	s.Rescan()
	until("a new look", func(now model.Reading) bool { return now.Point.Whole && now.At.After(r.At) })
	stop()
	<-sent
	check(t, s.Close())
	if _, open := <-s.Readings(); open {
		if _, open := <-s.Readings(); open {
			t.Error("readings go on after Close")
		}
	}
	if left := n.attached(t); left > 0 {
		t.Errorf("%d programs are still attached", left)
	}
}

// labs numbers the labs of this process, so that none shares an id.
var labs atomic.Int64

func upWithTraffic(t *testing.T, text string) *lab.Lab {
	t.Helper()
	sc, err := scenario.Parse("stream.yaml", []byte(text))
	check(t, err)
	id := fmt.Sprintf("s%d-%d", os.Getpid(), labs.Add(1))
	l, err := lab.Up(t.Context(), sc, lab.Options{ID: id})
	check(t, err)
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	end, err := l.BeginTraffic(t.Context())
	check(t, err)
	t.Cleanup(func() { check(t, end()) })
	return l
}

func stream(t *testing.T, l *lab.Lab, window time.Duration) *session.Stream {
	t.Helper()
	nodes := l.Nodes()
	ns, err := netns.Named(nodes[slices.IndexFunc(nodes, func(n lab.Node) bool { return n.Observed })].Netns)
	check(t, err)
	t.Cleanup(func() { ns.Close() })
	s, err := session.Open(t.Context(), session.Options{Options: collect.Options{NS: ns, HostRoot: "/nonexistent"}, Diagnose: diagnose.Judge, For: window})
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}
