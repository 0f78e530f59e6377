package timeline

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestAnotherRule: two rules dropped packets of two pods for the same client, one after the other, and went. They are two
// findings, each once, though what is judged of the whole window is one without a rule.
func TestAnotherRule(t *testing.T) {
	at := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	one, two := netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("10.244.0.6")
	drop := func(cause string, pods ...netip.Addr) model.Finding {
		return model.Finding{Code: "PolicyDrop", Severity: model.Warning, Title: "a rule drops", Cause: cause, Pods: pods,
			Peers: []netip.Prefix{netip.MustParsePrefix("10.244.3.9/32")}}
	}
	first := model.Tracked{ID: 1, First: at, Last: at.Add(40 * time.Second), Closed: true, Finding: drop("-d 10.244.0.5 -j DROP", one)}
	next := model.Tracked{ID: 2, First: at.Add(time.Minute), Last: at.Add(2 * time.Minute), Closed: true, Finding: drop("-d 10.244.0.6 -j DROP", two)}
	got := Told([]model.Finding{drop("", one, two)}, []model.Tracked{first, next})
	if len(got) != 2 {
		t.Fatalf("%d findings, want 2: %+v", len(got), got)
	}
	for i, x := range []model.Tracked{first, next} {
		if f := got[i]; f.Key() != x.Key() || f.Times != 1 || !f.Opened.Equal(x.First) || !f.Closed.Equal(x.Last) {
			t.Errorf("%s, %d times from %v to %v; want once from %v to %v", f.Cause, f.Times, f.Opened, f.Closed, x.First, x.Last)
		}
	}
}

// TestApart: what is judged of a whole window by its end, of all that firewall rules dropped, yields to each of those that
// dropped it, surer or not; and to none of another pod, nor where it is surer itself.
func TestApart(t *testing.T) {
	at := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	one, two := netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("10.244.0.6")
	drop := func(cause string, sure model.Confidence, pods ...netip.Addr) model.Finding {
		return model.Finding{Code: "PolicyDrop", Severity: model.Warning, Confidence: sure, Cause: cause, Pods: pods, Packets: 9,
			Peers: []netip.Prefix{netip.MustParsePrefix("10.244.3.9/32")}}
	}
	had := func(f model.Finding, closed bool) model.Tracked {
		return model.Tracked{First: at, Last: at.Add(time.Minute), Closed: closed, Finding: f, Lost: 500}
	}
	for name, tt := range map[string]struct {
		judged model.Finding
		had    []model.Tracked
		want   string
	}{
		"a rule, and one that is not known": {drop("", model.Likely, one, two),
			[]model.Tracked{had(drop("r", model.Proven, one), true), had(drop("", model.Likely, two), true)}, "r proven 500,  likely 500"},
		"surer at the end": {drop("", model.Proven, one), []model.Tracked{had(drop("", model.Likely, one), true)}, " proven 9"},
		"still open":       {drop("", model.Likely, one), []model.Tracked{had(drop("", model.Likely, one), false)}, " likely 9"},
		"two rules at once": {drop("", model.Likely, one), []model.Tracked{had(drop("r", model.Proven, one), true),
			had(drop("s", model.Proven, one), true)}, "r proven 500, s proven 500"},
		"another pod's": {drop("", model.Likely, one), []model.Tracked{had(drop("r", model.Proven, two), true)}, " likely 9, r proven 500"},
	} {
		said := model.Map(Told([]model.Finding{tt.judged}, tt.had), func(f model.Finding) string {
			return fmt.Sprintf("%s %s %d", f.Cause, f.Confidence, f.Packets)
		})
		if got := strings.Join(said, ", "); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestSame: a finding is told from others by its object, not by its words; the pods that it concerns may be others by now.
func TestSame(t *testing.T) {
	one, two := []netip.Addr{netip.MustParseAddr("10.244.0.5")}, []netip.Addr{netip.MustParseAddr("10.244.0.6")}
	of := func(code model.Code, cause, title string, pods []netip.Addr, nodes ...string) model.Finding {
		return model.Finding{Code: code, Cause: cause, Title: title, Pods: pods, Nodes: nodes}
	}
	for _, tt := range []struct {
		name string
		a, b model.Finding
		want bool
	}{
		{"in other words", of("PolicyDrop", "r", "drops", one), of("PolicyDrop", "r", "drops much", one), true},
		{"other pods", of("PolicyDrop", "r", "drops", one), of("PolicyDrop", "r", "drops", two), true},
		{"another rule", of("PolicyDrop", "r", "drops", one), of("PolicyDrop", "s", "drops", one), false},
		{"another link", of("PodLinkDown", "veth1", "is down", one), of("PodLinkDown", "veth2", "is down", one), false},
		{"another node", of("PolicyDrop", "r", "drops", one, "n1"), of("PolicyDrop", "r", "drops", one, "n2"), false},
		{"another code", of("PolicyDrop", "r", "drops", one), of("InvalidDrop", "r", "drops", one), false},
		{"other pods, and nobody knows what", of("NoReply", "", "no reply", one), of("NoReply", "", "no reply", two), false},
		{"the same pods, and nobody knows what", of("NoReply", "", "no reply", one), of("NoReply", "", "no reply at all", one), true},
	} {
		if got := tt.a.Same(&tt.b); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestStanding: what was judged of the whole window by the state at its end yields to what was
// open in it, about the same pods, and closed; and to nothing else.
func TestStanding(t *testing.T) {
	at := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	one, two := []netip.Addr{netip.MustParseAddr("10.244.0.5")}, []netip.Addr{netip.MustParseAddr("10.244.0.6")}
	drop := model.Finding{Code: "UnexplainedDrop", Severity: model.Info, Title: "drops", Pods: one}
	loops := model.Finding{Code: "RoutingLoop", Severity: model.Critical, Traits: model.Astray, Title: "packets loop", Pods: one}
	tracked := func(pods []netip.Addr, closed bool, severity model.Severity) []model.Tracked {
		return []model.Tracked{{
			ID: 1, First: at, Last: at.Add(time.Minute), Closed: closed,
			Finding: model.Finding{Code: "PolicyDrop", Severity: severity, Title: "a rule drops", Pods: pods},
		}}
	}
	for _, tt := range []struct {
		name   string
		judged model.Finding
		had    []model.Tracked
		want   []model.Code
	}{
		{"the rule has gone", drop, tracked(one, true, model.Warning), []model.Code{"PolicyDrop"}},
		{"the rule is still there", drop, tracked(one, false, model.Warning), []model.Code{"UnexplainedDrop", "PolicyDrop"}},
		{"of another pod", drop, tracked(two, true, model.Warning), []model.Code{"UnexplainedDrop", "PolicyDrop"}},
		{"a mere note", drop, tracked(one, true, model.Info), []model.Code{"UnexplainedDrop"}},
		{"nothing else was open", drop, nil, []model.Code{"UnexplainedDrop"}},
		{"packets that went astray, to nobody knows whom", loops, tracked(two, true, model.Critical), []model.Code{"PolicyDrop"}},
		{"packets that go astray still", loops, tracked(two, false, model.Critical), []model.Code{"RoutingLoop", "PolicyDrop"}},
		{"packets that went astray beside a smaller fault", loops, tracked(two, true, model.Warning), []model.Code{"RoutingLoop", "PolicyDrop"}},
		{"itself was open", tracked(one, true, model.Warning)[0].Finding, tracked(one, true, model.Warning), []model.Code{"PolicyDrop"}},
	} {
		got := Told([]model.Finding{tt.judged}, tt.had)
		same := len(got) == len(tt.want)
		for i := range got {
			same = same && got[i].Code == tt.want[i]
		}
		if !same {
			t.Errorf("%s: %+v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestMade: who made what a finding is about was seen by an agent that ended; the next one knows only the finding.
func TestMade(t *testing.T) {
	at := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	f := model.Finding{Code: "MissingPodRoute", Severity: model.Critical, Confidence: model.Proven, Cause: "10.244.0.5", Why: "No route.",
		Pods: []netip.Addr{netip.MustParseAddr("10.244.0.5")}, Evidence: []model.Evidence{{Source: model.SourceRoutes, Text: "default"}}}
	known := f
	known.Why = "`ip` deleted the route. No route."
	known.Evidence = append([]model.Evidence{{Source: model.SourceChanges, Text: "`ip` deleted the route."}}, f.Evidence...)
	first := model.Tracked{ID: 1, First: at, Last: at.Add(time.Minute), Closed: true, Finding: known}
	next := model.Tracked{ID: 1, First: at.Add(2 * time.Minute), Last: at.Add(3 * time.Minute), Finding: f}
	got := Told([]model.Finding{f}, []model.Tracked{first, next})
	if len(got) != 1 || got[0].Why != known.Why || len(got[0].Evidence) != 2 || !got[0].Closed.IsZero() || !got[0].Opened.Equal(at) {
		t.Errorf("%+v", got)
	}
	if other := Told([]model.Finding{known}, []model.Tracked{first}); len(other) != 1 || len(other[0].Evidence) != 2 {
		t.Errorf("twice: %+v", other)
	}
}

// TestOneLoss: who hears nothing of what a proven fault lost tells of the same loss; who hears nothing of more tells of more.
func TestOneLoss(t *testing.T) {
	pod, asker := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.0.2")
	other := netip.MustParsePrefix("10.244.1.3/32")
	down := model.Finding{Code: "PodLinkDown", Severity: model.Critical, Pods: []netip.Addr{pod}}
	unheard := model.Finding{Code: "NoReply", Severity: model.Warning, Traits: model.Unheard, Pods: []netip.Addr{asker}, Peers: model.Hosts(down.Pods)}
	more, refused, others := unheard, unheard, down
	more.Peers, refused.Traits, others.Peers = append(model.Hosts(down.Pods), other), 0, []netip.Prefix{other}
	for _, tt := range []struct {
		name  string
		f, by model.Finding
		want  bool
	}{
		{"its only peer", unheard, down, true},
		{"a peer more", more, down, false},
		{"no silence", refused, down, false},
		{"a fault for another peer alone", unheard, others, false},
	} {
		if got := OneLoss(&tt.f, &tt.by); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
