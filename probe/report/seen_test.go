package report_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// TestSeen: when a finding came and went is in every document that has its details, and
// nothing of it where that is not known.
func TestSeen(t *testing.T) {
	opened := time.Date(2026, 2, 3, 10, 0, 10, 0, time.UTC)
	closed := opened.Add(10 * time.Second)
	for _, tt := range []struct {
		name           string
		opened, closed time.Time
		times          int
		text           string
		json           []string
	}{
		{"came and went", opened, closed, 1, "10:00:10 to 10:00:20", []string{`"opened": "2026-02-03T10:00:10`, `"closed": "2026-02-03T10:00:20`, `"times": 1`}},
		{"was there before", time.Time{}, closed, 1, "until 10:00:20", []string{`"closed": "2026-02-03T10:00:20`}},
		{"came", opened, time.Time{}, 1, "since 10:00:10", []string{`"opened": "2026-02-03T10:00:10`}},
		{"again and again", opened, closed, 3, "3 times, 10:00:10 to 10:00:20", []string{`"times": 3`}},
		{"not known", time.Time{}, time.Time{}, 0, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := missingUDR()
			f.Opened, f.Closed, f.Times = tt.opened, tt.closed, tt.times
			r := report.Report{Snapshot: node(), Findings: []model.Finding{f}}
			judged := report.Judgement{FailOn: model.Warning}
			documents := map[string]string{}
			for _, format := range []report.Format{report.Text, report.Wide, report.Markdown} {
				documents[string(format)] = render(t, r, format, report.Style{})
			}
			var junit, summary strings.Builder
			if err := errors.Join(report.JUnit(&junit, r, judged), report.Summary(&summary, r, judged)); err != nil {
				t.Fatal(err)
			}
			documents["junit"], documents["summary"] = junit.String(), summary.String()
			for _, a := range report.Annotations(r, judged) {
				documents["annotations"] += a.String()
			}
			for name, got := range documents {
				if !strings.Contains(got, tt.text) || tt.text == "" && strings.Contains(strings.ToLower(got), "00:00:00") {
					t.Errorf("%s: want %q in\n%s", name, tt.text, got)
				}
			}
			got := render(t, r, report.JSON, report.Style{})
			for _, want := range tt.json {
				if !strings.Contains(got, want) {
					t.Errorf("want %q in\n%s", want, got)
				}
			}
			for field, there := range map[string]bool{"opened": !tt.opened.IsZero(), "closed": !tt.closed.IsZero(), "times": tt.times > 0} {
				if strings.Contains(got, `"`+field+`":`) != there {
					t.Errorf("%s is there: %v, want %v", field, !there, there)
				}
			}
		})
	}
}
