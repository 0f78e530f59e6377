package report

import (
	"io"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Change is what happened to a finding.
type Change string

// The changes in a finding's life.
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

// Events are what happened between two readings of an observation.
type Events struct {
	At       time.Time
	Findings []FindingChange
	// Counts are those since the previous events. Their drops are written,
	// and so is what lasthop could not count, if anything, or if WithLost is set.
	Counts   *model.Snapshot
	Rewrites []model.MACRewrite
	WithLost bool
	// Changes are those of the node's state.
	Changes []model.Change
}

// Write writes one JSON object a line, each with its kind and time. The fields are those of the report.
func (e Events) Write(w io.Writer) error {
	d := Report{Snapshot: e.Counts, Rewrites: e.Rewrites}.document()
	names := Called(e.Counts)
	l := &lines{w: w, at: instant(e.At)}
	for _, f := range e.Findings {
		l.add(head{Kind: "Finding", Change: f.Change, ID: f.Finding.ID, Since: instant(f.Finding.First)}, names.finding(e.Counts, f.Finding.Finding))
	}
	for c := range model.Each(e.Changes) {
		by := model.Map(c.By, func(p model.Process) processDoc { return processDoc(p) })
		l.add(head{Kind: "Change", Since: instant(c.At)}, changeDoc{c.Kind, c.Deleted, c.Text(), by})
	}
	addAll(l, "Drop", slices.DeleteFunc(d.Drops, func(x dropDoc) bool { return x.Harmless != "" }))
	addAll(l, "MACRewrite", d.MACRewrites)
	if d.Lost != (lostDoc{}) || e.WithLost {
		l.add(head{Kind: "Lost"}, d.Lost)
	}
	return l.err
}

// changeDoc is a change of the node's state. By are those who may have made it, none where that is not known.
type changeDoc struct {
	What    model.ChangeKind `json:"what"`
	Deleted bool             `json:"deleted"`
	Text    string           `json:"text"`
	By      []processDoc     `json:"by"`
}

type processDoc struct {
	PID        int    `json:"pid"`
	Name       string `json:"name"`
	Parent     int    `json:"parent,omitempty"`
	ParentName string `json:"parentName,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Pod        string `json:"pod,omitempty"`
}

// instant is empty for no time.
func instant(t time.Time) string {
	return model.Either(t.IsZero(), "", t.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano))
}
