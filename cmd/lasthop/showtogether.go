package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/timeline"
)

// screenMost is how many recordings the screen takes, since it keeps the state of all in memory.
const screenMost = 50

// showTogether shows several nodes' recordings of one time on the screen.
func (a *app) showTogether(ctx context.Context, o *observing) error {
	read := func(last time.Duration) (model.Reading, error) { return readingTogether(o, last) }
	first, err := read(0)
	if err != nil {
		return err
	}
	from, stop := newRecordings(first, read)
	err = a.screen(ctx, o, from, fmt.Sprintf("Judging %d recordings together.", len(o.Replay)), showing{
		trace: func(r model.Reading, findings []model.Finding, pod, to netip.Addr) model.Path {
			// Where a node was recorded twice, the later one is compared with the others.
			nodes := slices.SortedStableFunc(slices.Values(r.Nodes), func(a, b model.NodeReading) int {
				return cmp.Compare(min(len(a.Reason), 1), min(len(b.Reason), 1))
			})
			end := func(n model.NodeReading) join.End { return join.End{Name: n.Name, Snapshot: n.Snapshot} }
			return join.Follow(model.Map(nodes, end), findings, path.Ends{Pod: pod, To: to})
		},
		report: func(r model.Reading) (report.Document, error) { return jointReport(o, r), nil },
	})
	return errors.Join(err, stop())
}

func jointReport(o *observing, r model.Reading) report.Joint {
	j := joint.New()
	j.Snapshots = map[string]*model.Snapshot{}
	for _, n := range r.Nodes {
		if n.Snapshot != nil {
			j.Names.Add(n.Snapshot)
			j.Snapshots[n.Recording] = n.Snapshot
		}
	}
	nodes := model.Map(r.Nodes, func(n model.NodeReading) model.NodeSeen { return n.NodeSeen })
	findings := model.Map(r.Findings, func(f model.Tracked) model.Finding { return f.Finding })
	return report.Joint{Nodes: nodes, Names: j.Names, Limits: o.Limits(), Findings: findings, Paths: j.Paths(nodes, findings)}
}

// readingTogether judges the last of each recording together, 0 for all of it.
func readingTogether(o *observing, last time.Duration) (model.Reading, error) {
	j := joint.New()
	j.Draw(true, len(o.Replay))
	result, closeFiles, err := o.readTogether(j, last)
	defer closeFiles()
	if err != nil {
		return model.Reading{}, err
	}
	found := j.Report(result, &o.Verdict, nil)
	r := model.Reading{Replay: true}
	for _, n := range found.Nodes {
		r.Nodes = append(r.Nodes, model.NodeReading{NodeSeen: n, Snapshot: j.Snapshots[n.Recording]})
		if n.Window.End.After(r.At) {
			r.At = n.Window.End
		}
	}
	for i, f := range found.Findings {
		r.Findings = append(r.Findings, model.Tracked{Finding: f, ID: i + 1, First: f.Opened, Last: f.Closed, Closed: !f.Closed.IsZero()})
	}
	r.Judged = r.At
	return r, nil
}

// recordings is a source of readings of several recordings: of each window that is asked for one.
type recordings struct {
	// feed is asked how much of each recording is to be read, 0 for all of it.
	feed *timeline.Feed[*time.Duration]
}

// newRecordings reads what is asked for until it is stopped. stop returns why it ended before.
func newRecordings(first model.Reading, read func(last time.Duration) (model.Reading, error)) (s recordings, stop func() error) {
	s.feed = timeline.NewFeed[*time.Duration]()
	s.feed.Publish(first)
	ctx, cancel := context.WithCancel(context.Background())
	var reading errgroup.Group
	reading.Go(func() error {
		defer close(s.feed.Readings)
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-s.feed.Asked:
			}
			if last := s.feed.Take(); last != nil { // else it was taken with the one before
				r, err := read(*last)
				if err != nil {
					return err
				}
				s.feed.Publish(r)
			}
		}
	})
	return s, func() error {
		cancel()
		return reading.Wait()
	}
}

// Readings gives the reading of the window that was asked for last.
func (s recordings) Readings() <-chan model.Reading { return s.feed.Readings }

// SetWindow asks for the last d of each recording, 0 for all of it.
func (s recordings) SetWindow(d time.Duration) {
	s.feed.Ask(func(last **time.Duration) { *last = &d })
}

// Rescan does nothing: recordings do not change.
func (recordings) Rescan() {}

// Reset does nothing: nothing is counted any more.
func (recordings) Reset() {}
