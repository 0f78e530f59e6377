package timeline

import (
	"math/bits"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

func rule(text string, packets uint64) model.FrameRule {
	return model.FrameRule{Backend: model.NFT, Table: "nat", Chain: "PREROUTING", Text: text, Counter: model.Counter{Packets: packets}}
}

// written gives a rule the number that nft gave it.
func written(r model.FrameRule, handle uint64) model.FrameRule {
	r.Handle = handle
	return r
}

func TestCompareRules(t *testing.T) {
	first := &model.Snapshot{FrameRules: []model.FrameRule{
		rule("moved", 5), rule("same", 1), rule("same", 7), rule("zeroed", 90), rule("gone", 3), written(rule("anew", 4), 11), written(rule("kept", 4), 12),
	}}
	last := &model.Snapshot{FrameRules: []model.FrameRule{
		rule("new", 4), rule("same", 3), rule("same", 7), rule("zeroed", 2), rule("moved", 9), written(rule("anew", 9), 21), written(rule("kept", 9), 12),
	}}
	last = Between(model.Point{Snapshot: first}, model.Point{Snapshot: last})
	want := []struct {
		delta            uint64
		added, restarted bool
	}{
		{4, true, false}, {2, false, false}, {0, false, false}, {2, false, true}, {4, false, false}, {9, false, true},
		{5, false, false},
	}
	for i, w := range want {
		r := last.FrameRules[i]
		if c := r.Counter; c.Delta != w.delta || c.Added != w.added || c.Restarted != w.restarted {
			t.Errorf("%s: %+v, want %+v", r.Text, c, w)
		}
	}
}

// TestCompareBacklogs: overflows of the window are what was added since its beginning,
// or all of a pod that is younger.
func TestCompareBacklogs(t *testing.T) {
	pod := func(netns uint32, overflows uint64, since time.Time) model.Pod {
		return model.Pod{Netns: netns, Since: since, Backlog: &model.Backlog{Overflows: overflows}}
	}
	first := &model.Snapshot{Window: model.Window{End: at(5)}, Pods: []model.Pod{pod(1, 40, start), pod(2, 40, start), {Netns: 3, Since: start}, {Netns: 5, Since: start}}}
	last := &model.Snapshot{Window: model.Window{End: at(9)}, Pods: []model.Pod{
		pod(1, 47, start), pod(2, 6, start), pod(3, 900, start), pod(4, 8, at(6)), {Netns: 5, Since: start},
	}}
	cut := Between(model.Point{Snapshot: first}, model.Point{Snapshot: last})
	for i, want := range []struct {
		name  string
		delta uint64
	}{{"some were added", 7}, {"the counter began anew", 6}, {"not read at the beginning", 0}, {"younger than the beginning", 8}} {
		if got := cut.Pods[i].Backlog.Delta; got != want.delta {
			t.Errorf("%s: %d added, want %d", want.name, got, want.delta)
		}
		if last.Pods[i].Backlog.Delta != 0 {
			t.Errorf("%s: the point itself was changed", want.name)
		}
	}
	if cut.Pods[4].Backlog != nil {
		t.Error("a listener that nobody read")
	}
}

// TestCompareCilium: what Cilium's programs counted in the window is what was added since it
// began, and not known where they were not read then.
func TestCompareCilium(t *testing.T) {
	count := func(d model.Direction, packets uint64) model.CiliumCount {
		return model.CiliumCount{Reason: model.CiliumPolicyDenied, Direction: d, Packets: packets}
	}
	first := &model.Snapshot{Window: model.Window{End: at(5)}, Sources: []model.Source{{Name: model.SourceCilium, Status: model.OK}},
		Cilium: model.Cilium{Counts: []model.CiliumCount{count(model.Ingress, 40)}}}
	last := &model.Snapshot{Window: model.Window{End: at(9)}, Sources: first.Sources,
		Cilium: model.Cilium{Counts: []model.CiliumCount{count(model.Egress, 3), count(model.Ingress, 47)}}}
	got := Between(model.Point{Snapshot: first}, model.Point{Snapshot: last}).Cilium.Counts
	if got[0].Delta != 3 || got[1].Delta != 7 || last.Cilium.Counts[1].Delta != 0 {
		t.Errorf("got %+v", got)
	}
	unread := *first
	unread.Sources, unread.Cilium = []model.Source{{Name: model.SourceCilium, Status: model.Partial}}, model.Cilium{}
	for _, c := range Between(model.Point{Snapshot: &unread}, model.Point{Snapshot: last}).Cilium.Counts {
		if c.Delta != 0 {
			t.Errorf("not read when the window began of the window: %+v", c)
		}
	}
}

// TestUnreadBefore wants nothing to be counted since a beginning that was not
// read, and the window's sources to say so.
func TestUnreadBefore(t *testing.T) {
	sources := func(status model.Status) (out []model.Source) {
		for _, name := range []string{model.SourceEbtables, model.SourceNAT, model.SourceConntrack, model.SourcePods} {
			out = append(out, model.Source{Name: name, Status: status, Detail: string(status) + " " + name})
		}
		return out
	}
	whole := func(status model.Status) *model.Snapshot {
		return &model.Snapshot{
			Window: model.Window{Start: start, End: at(5)}, Sources: sources(status),
			FrameRules:  []model.FrameRule{rule("known", 7), rule("unread", 900)},
			PacketRules: []model.PacketRule{{Text: "-j DROP", Counter: model.Counter{Packets: 900}}},
			Chains:      []model.Chain{{Name: "FORWARD", Policy: "DROP", Counter: model.Counter{Packets: 900}}},
			Flows:       []model.Flow{{Proto: 6, Start: at(5)}},
			Conntrack:   model.Conntrack{Count: 3, Max: 100, InsertFailed: 900, Drop: 900},
		}
	}
	first := &model.Snapshot{Window: model.Window{Start: start, End: start}, Sources: sources(model.Partial), FrameRules: []model.FrameRule{rule("known", 5)}}
	s := Between(model.Point{Snapshot: first}, model.Point{Snapshot: whole(model.OK)})
	unknown := model.Counter{Packets: 900, Restarted: true, Added: true}
	if r := s.FrameRules; r[0].Counter.Delta != 2 || r[0].Counter.Added || r[1].Counter != unknown {
		t.Errorf("frame rules %+v", r)
	}
	if s.PacketRules[0].Counter != unknown || s.Chains[0].Counter != unknown {
		t.Errorf("%+v, %+v", s.PacketRules[0], s.Chains[0])
	}
	if want := (model.Conntrack{Count: 3, Max: 100}); s.Conntrack != want || !s.Flows[0].Start.IsZero() {
		t.Errorf("%+v, flows %+v", s.Conntrack, s.Flows)
	}
	for i, want := range []model.Status{model.Partial, model.Partial, model.Partial, model.OK} {
		if src := s.Sources[i]; src.Status != want || (src.Detail == "ok "+src.Name+"; at the start of the window: partial "+src.Name) != (want != model.OK) {
			t.Errorf("source %+v", src)
		}
	}
	// What lacks for the same reason at both ends is said once.
	same := whole(model.Partial)
	for i := range same.Sources {
		same.Sources[i].Detail = first.Sources[i].Detail
	}
	for i, src := range Between(model.Point{Snapshot: first}, model.Point{Snapshot: same}).Sources {
		if src.Detail != first.Sources[i].Detail {
			t.Errorf("source %+v", src)
		}
	}
	// Live, a window that begins later is whole.
	tl := New(func(*model.Snapshot) (none model.Verdict) { return none }, 0)
	tl.Add(model.Point{Snapshot: first, Whole: true})
	if r := tl.Add(model.Point{Snapshot: whole(model.OK), Whole: true}); r.Snapshot.PacketRules[0].Counter != unknown {
		t.Errorf("live: %+v", r.Snapshot.PacketRules)
	}
	tl.Reset()
	next := whole(model.OK)
	next.Window.End, next.PacketRules[0].Counter.Packets = at(9), 905
	if r := tl.Add(model.Point{Snapshot: next, Whole: true}); r.Snapshot.PacketRules[0].Counter.Delta != 5 || !r.Snapshot.Has(model.SourceNAT) {
		t.Errorf("after a reset: %+v, %+v", r.Snapshot.PacketRules, r.Snapshot.Sources)
	}
}

var start = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// whole is a whole point of an observation: counts, and how many packets a
// drop rule had counted.
func whole(seconds float64, t model.Traffic, dropped uint64) model.Point {
	return model.Point{Whole: true, Ready: at(seconds), After: model.Traffic{Lost: t.Lost}, Snapshot: &model.Snapshot{
		Window: model.Window{Start: start, End: at(seconds)}, Traffic: t,
		FrameRules: []model.FrameRule{rule("-j DROP", dropped)},
	}}
}

var (
	pod  = netip.MustParseAddr("10.77.1.9")
	peer = netip.MustParseAddr("10.77.9.1")
)

func traffic(packets uint64, first, last float64) model.Traffic {
	return model.Traffic{
		Hops: []model.HopCount{{Addr: pod, IfIndex: 4, Link: "up0", Direction: model.Egress, Side: model.AsSource,
			Packets: packets, Bytes: 100 * packets, SYN: packets / 2, First: at(first), Last: at(last)}},
		Peers: []model.Peer{{Local: pod, Remote: peer, IfIndex: 4, Link: "up0",
			Out: model.PeerCount{Packets: packets, Requests: packets / 2, Other: packets - packets/2}, FirstOut: at(first), LastOut: at(last)}},
		MACs:    []model.MACPair{{Addr: pod, IfIndex: 4, Src: model.MAC{2}, Dst: model.MAC{4}, Packets: packets}},
		Pairs:   []model.PairCount{{Src: pod, Dst: peer, IfIndex: 4, Direction: model.Egress, Packets: packets}},
		ARP:     []model.ARPCount{{IfIndex: 4, Addr: peer, Packets: packets}},
		Drops:   []model.Drop{{Src: pod, Dst: peer, Reason: "NETFILTER_DROP", Location: "nft_do_chain", Packets: packets, First: at(first), Last: at(last)}},
		Samples: []model.Sample{{Time: at(last), Src: pod}},
		Lost:    model.Lost{Counters: packets, Gaps: packets, Detail: []model.Uncounted{{Packets: packets, Why: "packets of no kind"}}},
	}
}

// TestWindow cuts windows out of counts that grow, rest, grow and begin anew.
// TestTTLs: a window that begins between two states has no TTL that its first set has from before.
func TestTTLs(t *testing.T) {
	for _, tt := range []struct {
		now, want uint64
	}{{1<<1 | 1<<2 | 1<<64 - 1<<60, 1<<64 - 1<<60}, {1 << 63, 1 << 63}} {
		tl := New(func(*model.Snapshot) (none model.Verdict) { return none }, 0)
		add := func(second int, isWhole bool, ttls uint64) {
			p := whole(float64(second), traffic(uint64(10*second), 1, float64(second)), 0)
			p.Whole, p.Snapshot.Traffic.Hops[0].TTLs = isWhole, ttls
			if !isWhole {
				p.Ready = time.Time{}
			}
			tl.Add(p)
		}
		add(0, true, 0)
		add(10, true, 1<<63)
		for second := 11; second < 60; second++ {
			add(second, false, 1<<1|1<<2)
		}
		add(60, true, tt.now)
		tl.SetWindow(Short)
		if r, ok := tl.Again(); !ok || r.Snapshot.Traffic.Hops[0].TTLs != tt.want {
			t.Errorf("%b of a window of %v, want %b", r.Snapshot.Traffic.Hops[0].TTLs, r.Snapshot.Window.Duration(), tt.want)
		}
	}
}

func TestWindow(t *testing.T) {
	tl := New(func(*model.Snapshot) (none model.Verdict) { return none }, 0)
	counts := func(second int) (packets uint64, last float64) {
		switch {
		case second <= 20:
			return uint64(10 * second), float64(second)
		case second <= 100:
			return 200, 20
		case second <= 130:
			return 200 + uint64(second-100), float64(second)
		}
		// The kernel's counters were given to another, and back.
		return uint64(second - 130), float64(second)
	}
	for second := range 150 {
		n, last := counts(second)
		p := whole(float64(second), traffic(n, 1, last), 3*n)
		if second == 0 {
			p.Snapshot.Traffic = model.Traffic{}
		}
		p.Snapshot.Traffic.Hops = append([]model.HopCount(nil), p.Snapshot.Traffic.Hops...)
		for i := range p.Snapshot.Traffic.Hops {
			p.Snapshot.Traffic.Hops[i].TTLs = 1 << (second % 60)
		}
		tl.Add(p)
		for _, tt := range []struct {
			second  int
			window  time.Duration
			packets uint64
			first   float64
			ttls    int
		}{
			{15, Short, 100, 6, 10}, {15, 0, 150, 1, 15}, {25, Short, 50, 16, 5}, {29, Short, 10, 20, 1}, {40, Short, 0, 0, 0},
			{105, Short, 5, 101, 5}, {105, 0, 205, 1, 0}, {140, Short, 10, 1, 0},
		} {
			if tt.second != second {
				continue
			}
			tl.SetWindow(tt.window)
			r, ok := tl.Again()
			tl.SetWindow(0)
			s := r.Snapshot
			if !ok || tt.window > 0 && s.Window.Duration() != tt.window {
				t.Errorf("second %d: window of %v, want %v", second, s.Window.Duration(), tt.window)
			}
			if tt.packets == 0 {
				if n := len(s.Traffic.Hops) + len(s.Traffic.Peers) + len(s.Traffic.MACs) + len(s.Traffic.ARP) + len(s.Traffic.Drops) + len(s.Traffic.Samples); n > 0 || s.Traffic.Lost.Detail != nil {
					t.Errorf("second %d: %+v, want nothing", second, s.Traffic)
				}
				continue
			}
			want := traffic(tt.packets, tt.first, mustLast(counts(second)))
			got := s.Traffic
			if tt.ttls > 0 && bits.OnesCount64(got.Hops[0].TTLs) < tt.ttls {
				t.Errorf("second %d, %v: TTLs %b", second, tt.window, got.Hops[0].TTLs)
			}
			got.Hops[0].TTLs = 0
			if tt.second < 140 && !reflect.DeepEqual(got, want) {
				t.Errorf("second %d, %v:\n got %+v\nwant %+v", second, tt.window, got, want)
			}
			if got.Hops[0].Packets != tt.packets || s.FrameRules[0].Counter.Delta < tt.packets {
				t.Errorf("second %d, %v: %d packets, rule %d; want %d", second, tt.window, got.Hops[0].Packets, s.FrameRules[0].Counter.Delta, tt.packets)
			}
		}
	}
	// The longer a window, the less exact it is, and never too short.
	tl.SetWindow(Middle)
	if r, ok := tl.Again(); !ok || r.Snapshot.Window.Duration() < Middle || r.Snapshot.Window.Duration() > Middle+Short {
		t.Errorf("window of %v, want some %v", r.Snapshot.Window.Duration(), Middle)
	}
	if n := len(tl.marks); n > 40 {
		t.Errorf("%d marks are remembered", n)
	}
}

func mustLast(_ uint64, last float64) float64 { return last }

// TestGap wants what moves while the state is read to be in the next window's
// rules and packets alike.
func TestGap(t *testing.T) {
	first, last := whole(1, traffic(10, 1, 1), 15), whole(5, traffic(40, 1, 5), 40)
	first.After, first.Ready = Moved(&first.Snapshot.Traffic, new(traffic(16, 1, 1.5))), at(1.5)
	s := Between(first, last)
	if h, r := s.Traffic.Hops[0], s.FrameRules[0]; h.Packets != 24 || r.Counter.Delta != 25 || !s.Window.Start.Equal(at(1.5)) {
		t.Errorf("%d packets, rule %d, from %v", h.Packets, r.Counter.Delta, s.Window.Start)
	}
}

// TestWholeWindow: of all that was observed too, what the kernel counts since it
// started is what was added.
func TestWholeWindow(t *testing.T) {
	point := func(second float64, overflows, failed uint64) model.Point {
		return model.Point{Whole: true, Ready: at(second), Snapshot: &model.Snapshot{
			Window:    model.Window{Start: start, End: at(second)},
			Pods:      []model.Pod{{Netns: 1, Since: start, Backlog: &model.Backlog{Overflows: overflows}}},
			Conntrack: model.Conntrack{Count: 9, InsertFailed: failed},
		}}
	}
	timeline := New(func(*model.Snapshot) (none model.Verdict) { return none }, 0)
	timeline.Add(point(0, 256, 1000))
	s := timeline.Add(point(7, 651, 1003)).Snapshot
	if got := s.Pods[0].Backlog.Delta; got != 395 {
		t.Errorf("%d overflows were added, want 395", got)
	}
	if s.Conntrack.InsertFailed != 3 || s.Conntrack.Count != 9 {
		t.Errorf("connection tracking %+v, want 3 insertions that failed", s.Conntrack)
	}
}

// TestPodsThatEnded: a part of a window knows the pods that ended in it before, and soon before it: others ask on for them.
func TestPodsThatEnded(t *testing.T) {
	gone := func(netns uint32, until float64) model.Pod { return model.Pod{Netns: netns, Until: at(until)} }
	first := &model.Snapshot{Window: model.Window{Start: start, End: at(90)}}
	last := &model.Snapshot{Window: model.Window{Start: start, End: at(94)}, PastPods: []model.Pod{gone(1, 20), gone(2, 40), gone(3, 92)}}
	cut := Between(model.Point{Snapshot: first}, model.Point{Snapshot: last})
	if got := cut.PastPods; len(got) != 2 || got[0].Netns != 2 || got[1].Netns != 3 {
		t.Errorf("%+v", got)
	}
}
