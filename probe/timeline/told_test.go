package timeline

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestStanding: what was judged of the whole window by the state at its end yields to what was
// open in it, about the same pods, and closed; and to nothing else.
func TestStanding(t *testing.T) {
	at := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	one, two := []netip.Addr{netip.MustParseAddr("10.244.0.5")}, []netip.Addr{netip.MustParseAddr("10.244.0.6")}
	drop := model.Finding{Code: "UnexplainedDrop", Severity: model.Info, Title: "drops", Pods: one}
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
