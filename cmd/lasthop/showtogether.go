package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
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
	read := func(last time.Duration) (model.Reading, error) { return a.readTogether(o, last) }
	first, err := read(0)
	if err != nil {
		return err
	}
	from := newRecordings(first, read)
	err = a.screen(ctx, o, from, fmt.Sprintf("Judging %d recordings together.", len(o.replay)), showing{
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
	return errors.Join(err, from.close())
}

func jointReport(o *observing, r model.Reading) report.Joint {
	out := report.Joint{Names: map[netip.Addr]string{}, Limits: o.Limits()}
	snapshots := map[string]*model.Snapshot{}
	for _, n := range r.Nodes {
		out.Nodes = append(out.Nodes, n.NodeSeen)
		if n.Snapshot != nil {
			flags.Call(out.Names, n.Snapshot)
			snapshots[n.Recording] = n.Snapshot
		}
	}
	out.Findings = model.Map(r.Findings, func(f model.Tracked) model.Finding { return f.Finding })
	out.Paths = joint.Paths(out.Nodes, snapshots, out.Findings)
	return out
}

// readTogether judges the last of each recording together, 0 for all of it.
func (a *app) readTogether(o *observing, last time.Duration) (model.Reading, error) {
	snapshots := map[string]*model.Snapshot{}
	t := newTogether(a, o, nil, last)
	t.look = func(recording string, _, shown *model.Snapshot) { snapshots[recording] = shown }
	found, err := t.judge()
	if err != nil {
		return model.Reading{}, err
	}
	r := model.Reading{Replay: true}
	for _, n := range found.Nodes {
		r.Nodes = append(r.Nodes, model.NodeReading{NodeSeen: n, Snapshot: snapshots[n.Recording]})
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
	feed       *timeline.Feed[*time.Duration]
	stop, done chan struct{}
	err        error // valid once done is closed
}

func newRecordings(first model.Reading, read func(last time.Duration) (model.Reading, error)) *recordings {
	s := &recordings{feed: timeline.NewFeed[*time.Duration](), stop: make(chan struct{}), done: make(chan struct{})}
	s.feed.Publish(first)
	go func() {
		defer close(s.done)
		defer close(s.feed.Readings)
		for {
			select {
			case <-s.stop:
				return
			case <-s.feed.Asked:
				last := s.feed.Take()
				if last == nil { // taken with the one before
					continue
				}
				r, err := read(*last)
				if err != nil {
					s.err = err
					return
				}
				s.feed.Publish(r)
			}
		}
	}()
	return s
}

// Readings gives the reading of the window that was asked for last.
func (s *recordings) Readings() <-chan model.Reading { return s.feed.Readings }

// SetWindow asks for the last d of each recording, 0 for all of it.
func (s *recordings) SetWindow(d time.Duration) {
	s.feed.Ask(func(last **time.Duration) { *last = &d })
}

// Rescan does nothing: recordings do not change.
func (s *recordings) Rescan() {}

// Reset does nothing: nothing is counted any more.
func (s *recordings) Reset() {}

func (s *recordings) close() error {
	close(s.stop)
	<-s.done
	return s.err
}
