package report

import (
	"io"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Change is what became of a finding.
type Change string

// The changes of a finding's life.
const (
	Opened  Change = "opened"
	Changed Change = "changed"
	Closed  Change = "closed"
)

// FindingChange is a finding that opened, changed or closed.
type FindingChange struct {
	Change  Change
	Finding model.Tracked
}

// Events are what went on between two readings of an observation.
type Events struct {
	At       time.Time
	Findings []FindingChange
	// Counts are those since the events before. Its drops are written, without the
	// harmless frees, and what the probe lost, if that is anything or LostToo is set.
	Counts   *model.Snapshot
	Rewrites []model.MACRewrite
	LostToo  bool
}

// Write writes one object a line, each with its kind and time. Its fields are
// those of the report.
func (e Events) Write(w io.Writer) error {
	d := Report{Snapshot: e.Counts, Rewrites: e.Rewrites}.document()
	at := instant(e.At)
	var rows []any
	for _, f := range e.Findings {
		rows = append(rows, struct {
			Kind   string `json:"kind"`
			Time   string `json:"time"`
			Change Change `json:"change"`
			ID     int    `json:"id"`
			Since  string `json:"since"`
			findingDoc
		}{"Finding", at, f.Change, f.Finding.ID, instant(f.Finding.First), findingDocument(f.Finding.Finding)})
	}
	for _, x := range d.Drops {
		if x.Harmless != "" {
			continue
		}
		rows = append(rows, struct {
			Kind string `json:"kind"`
			Time string `json:"time"`
			dropDoc
		}{"Drop", at, x})
	}
	for _, x := range d.MACRewrites {
		rows = append(rows, struct {
			Kind string `json:"kind"`
			Time string `json:"time"`
			rewriteDoc
		}{"MACRewrite", at, x})
	}
	if d.Lost != (lostDoc{}) || e.LostToo {
		rows = append(rows, struct {
			Kind string `json:"kind"`
			Time string `json:"time"`
			lostDoc
		}{"Lost", at, d.Lost})
	}
	return writeLines(w, rows)
}

func instant(t time.Time) string { return t.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano) }
