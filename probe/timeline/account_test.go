package timeline

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestSurest: a finding that closes is as it was when it was surest, with all that was lost while it was seen; a command
// that mends it is needed unless the configuration changed when it was seen last.
func TestSurest(t *testing.T) {
	f := func(sure model.Confidence, packets uint64) []model.Finding {
		return []model.Finding{{Code: "PolicyDrop", Cause: "a rule", Severity: model.Warning, Confidence: sure, Pods: []netip.Addr{pod}, Packets: packets}}
	}
	for _, tt := range []struct {
		name string
		// seen are the judgements, one a second; the configuration changes after the last that has a finding.
		seen    [][]model.Finding
		changed bool
		want    model.Finding
		lost    uint64
	}{
		{"a doubt that came later", [][]model.Finding{f(model.Proven, 5), f(model.Proven, 9), f(model.Likely, 20)}, true, f(model.Proven, 9)[0], 34},
		{"a proof that came later", [][]model.Finding{f(model.Likely, 5), f(model.Likely, 5), f(model.Proven, 2)}, false, f(model.Proven, 2)[0], 12},
	} {
		var tr tracker
		var before time.Time
		for i := range 20 {
			j := judgement{at: at(float64(i)), before: before, window: Short, steady: time.Hour, changed: tt.changed && i == len(tt.seen)}
			if i < len(tt.seen) {
				j.whole, j.current, j.recent, j.since.Findings = tt.seen[i], tt.seen[i], tt.seen[i], tt.seen[i]
			}
			tr.judge(j)
			before = j.at
		}
		tt.want.Mended = tt.changed
		got := tr.findings()
		if len(got) != 1 || !got[0].Closed || got[0].Finding.Key() != tt.want.Key() || got[0].Confidence != tt.want.Confidence ||
			got[0].Packets != tt.want.Packets || got[0].Mended != tt.want.Mended || got[0].Lost != tt.lost {
			t.Errorf("%s: %+v, want %+v and %d lost", tt.name, got, tt.want, tt.lost)
		}
	}
}

// TestInherit: what is too little to be judged since the state was read before belongs to who claims it in the window.
func TestInherit(t *testing.T) {
	drop := func(packets uint64) model.Drop {
		return model.Drop{Src: pod, Reason: "NETFILTER_DROP", Packets: packets, Last: at(float64(packets))}
	}
	on := func(packets uint64, code model.Code) model.Verdict {
		v := model.Verdict{On: new(model.Snapshot), Causes: []model.DropCause{{Code: code}}}
		if v.On.Traffic.Drops = []model.Drop{drop(packets)}; code == "" {
			v.Causes[0].Ordinary = model.ExcusedFew
		}
		return v
	}
	line := Timeline{since: on(1, ""), verdict: on(5, "PolicyDrop")}
	if line.inherit(); !slices.Equal(line.since.Causes, []model.DropCause{{Code: "PolicyDrop"}}) {
		t.Errorf("%+v", line.since.Causes)
	}
}
