// Package joint tells what several nodes' recordings of one time show together.
package joint

import (
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Span reads the part of a recording in a window.
type Span func(model.Window) (*model.Snapshot, error)

// mostEpisodes is how many parts of the recordings are judged by themselves.
const mostEpisodes = 4

// Told adds to what was judged of recordings what came and went in them, told, by the names of their sources: of the
// time at which a node had a finding that all of the recordings do not show, they are judged again. Its times are by
// the first node's clock.
func Told(sources []join.Source, spans []Span, judged join.Result, told map[string][]model.Tracked) []model.Finding {
	var tracked []model.Tracked
	ahead := map[string]time.Duration{}
	for _, n := range judged.Nodes {
		ahead[n.Recording] = n.Ahead
		for _, x := range told[n.Recording] {
			x.Finding = join.On(n.Name, diagnose.Relate([]model.Finding{x.Finding})[0])
			if !x.First.IsZero() {
				x.First = x.First.Add(-n.Ahead)
			}
			x.Last = x.Last.Add(-n.Ahead)
			tracked = append(tracked, x)
		}
	}
	stands := timeline.Standing(judged.Findings, tracked)
	out := timeline.Told(stands, tracked)
	besides := out[len(stands):]
	out = slices.Clip(out[:len(stands)])
	slices.SortFunc(besides, func(a, b model.Finding) int { return a.Opened.Compare(b.Opened) })
	ends := model.Map(judged.Nodes, func(n model.NodeSeen) time.Time { return n.Window.End.Add(-n.Ahead) })
	end := slices.MaxFunc(append(ends, time.Time{}), time.Time.Compare)
	var episodes []model.Window
	for _, f := range besides {
		w := model.Window{Start: f.Opened, End: f.Closed}
		if w.End.IsZero() {
			w.End = end
		}
		if last := len(episodes) - 1; last < 0 || w.Start.After(episodes[last].End) {
			episodes = append(episodes, w)
		} else if w.End.After(episodes[last].End) {
			episodes[last].End = w.End
		}
	}
	for _, w := range episodes[:min(len(episodes), mostEpisodes)] {
		parts := slices.Clone(sources)
		for i := range parts {
			parts[i].Within, parts[i].Tables = nil, nil
			at := model.Window{Start: w.Start, End: w.End.Add(ahead[parts[i].Name])}
			if !at.Start.IsZero() {
				at.Start = at.Start.Add(ahead[parts[i].Name])
			}
			parts[i].Read = func() (*model.Snapshot, error) { return spans[i](at) }
		}
		found := join.Judge(parts).Findings
		own := model.Filter(besides, func(f model.Finding) bool { return !f.Opened.Before(w.Start) && !f.Opened.After(w.End) })
		sure := model.Filter(own, proved)
		left := func(f model.Finding) bool {
			return !slices.ContainsFunc(sure, func(g model.Finding) bool { return !f.Same(&g) && timeline.OneLoss(&f, &g) })
		}
		out = append(out, sure...)
		if !slices.ContainsFunc(found, func(f model.Finding) bool { return f.Severity.Rank() >= model.Warning.Rank() }) {
			out = append(out, model.Filter(own, func(f model.Finding) bool { return !proved(f) && left(f) })...)
		}
		if w.End.Equal(end) {
			w.End = time.Time{}
		}
		out = timeline.Besides(out, model.Filter(found, left), w)
	}
	diagnose.Sort(out)
	return out
}

// proved reports whether a node proved at the time what its finding is about, which stands: all that the others have is the
// state at the end.
func proved(f model.Finding) bool {
	return f.Confidence == model.Proven && f.Cause != "" && f.Traits&(model.Unknown|model.Unheard) == 0
}
