package joint

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
)

// TestToldByEachClock: the time of a finding that one node had is looked up in each recording by that recording's clock.
func TestToldByEachClock(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	window := func(ahead, from, to time.Duration) model.Window {
		return model.Window{Start: begin.Add(ahead + from), End: begin.Add(ahead + to)}
	}
	ahead := map[string]time.Duration{"a": 0, "b": 3 * time.Minute, "c": -time.Hour}
	var mu sync.Mutex // recordings are read at the same time
	asked := map[string]model.Window{}
	var sources []join.Source
	var spans []Span
	var judged join.Result
	for _, name := range []string{"c", "b", "a"} {
		part := func(w model.Window) (*model.Snapshot, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[name] = w
			return &model.Snapshot{Node: model.Node{Name: name}, Window: w}, nil
		}
		sources = append(sources, join.Source{Name: name, Read: func() (*model.Snapshot, error) {
			return part(window(ahead[name], 0, 10*time.Second))
		}})
		spans = append(spans, part)
		judged.Nodes = append(judged.Nodes, model.NodeSeen{
			Name: "node-" + name, Recording: name, Window: window(ahead[name], 0, 10*time.Second), Ahead: ahead[name],
		})
	}
	seen := window(ahead["b"], 4*time.Second, 7*time.Second)
	told := map[string][]model.Tracked{"b": {{First: seen.Start, Last: seen.End, Closed: true, Finding: model.Finding{
		Code: "NoReply", Severity: model.Warning, Title: "no reply", Pods: []netip.Addr{netip.MustParseAddr("10.1.0.2")},
	}}}}
	findings := Told(sources, spans, judged, told)
	for name, by := range ahead {
		if want := window(by, 4*time.Second, 7*time.Second); asked[name] != want {
			t.Errorf("of %s: %v\nwant %v", name, asked[name], want)
		}
	}
	if len(findings) != 1 || findings[0].Title != "on node-b: no reply" || !findings[0].Opened.Equal(begin.Add(4*time.Second)) {
		t.Errorf("got %+v", findings)
	}
}
