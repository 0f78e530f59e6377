package joint

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lasthop/lasthop/kind/large"
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

// TestProvenStands: what a node proved while a fault was there stands over what the state at its end makes of these losses; what
// it only supposed does not.
func TestProvenStands(t *testing.T) {
	l := large.New(0, 3, func(node int) bool { return node == 1 })
	s := l.Reading(12).Point.Snapshot
	part := func(model.Window) (*model.Snapshot, error) { return s, nil }
	src := join.Source{Name: "a", Read: func() (*model.Snapshot, error) { return part(s.Window) }}
	nodes := join.Result{Nodes: []model.NodeSeen{{Name: "node-a", Recording: "a", Window: s.Window}}}
	of := netip.PrefixFrom(large.Pod(1, -10), 24)
	had := model.Tracked{First: s.Window.Start.Add(time.Second), Last: s.Window.End.Add(-time.Second), Closed: true, Finding: model.Finding{
		Code: "BlackholeRoute", Severity: model.Critical, Confidence: model.Proven, Cause: of.String(), Pods: []netip.Addr{large.Pod(0, 0)}, Peers: []netip.Prefix{of}}}
	told := func() (codes []model.Code) {
		findings := Told([]join.Source{src}, []Span{part}, nodes, map[string][]model.Tracked{"a": {had}})
		return model.Map(findings, func(f model.Finding) model.Code { return f.Code })
	}
	if got := told(); !slices.Equal(got, []model.Code{"BlackholeRoute"}) {
		t.Errorf("proven: %v", got)
	}
	if had.Confidence = model.Likely; slices.Contains(told(), "BlackholeRoute") || len(told()) == 0 {
		t.Errorf("likely: %v", told())
	}
}
