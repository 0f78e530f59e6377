package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lasthop/lasthop/probe/collect/change"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/traffic"
)

const (
	// maxChanges bounds the changes that are kept, maxAuthors those who may have made one: of more nobody is named.
	maxChanges, maxAuthors = 512, 4
)

// authors keeps the changes of the node's state, with who made them.
type authors struct {
	processes *traffic.Processes
	unknown   error // why processes is nil
	unread    error // why changes are not followed
	ended     chan struct{}
	made      chan<- struct{}

	mu      sync.Mutex
	changes []model.Change
	lost    bool
}

// follow begins to keep changes, until ctx ends.
func (a *authors) follow(ctx context.Context, w *watch) {
	watcher, err := w.collector.Changes()
	if a.unread = err; err != nil {
		return
	}
	if w.options.Engine != EngineState {
		a.processes, a.unknown = traffic.OpenProcesses(w.options.NS, w.collector.PodOf, w.options.Debug)
	} else {
		a.unknown = fmt.Errorf("no programs are loaded (--engine state)")
	}
	a.ended = make(chan struct{})
	go func() {
		defer close(a.ended)
		watcher.Run(ctx, a.add)
	}()
}

// close waits for the end of what follow began. Its context has ended.
func (a *authors) close() error {
	if a.ended != nil {
		<-a.ended
	}
	if a.processes == nil {
		return nil
	}
	return a.processes.Close()
}

// add keeps changes, which were just made.
func (a *authors) add(list []change.Change, lost bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost, list = a.lost || lost, list[max(0, len(list)-maxChanges):]
	ports := map[uint32]bool{}
	for c := range model.Each(list) {
		if c.Port != 0 && c.PID == 0 {
			ports[c.Port] = true
		}
	}
	var behind map[uint32][]traffic.Candidate
	if a.processes != nil && len(ports) > 0 {
		behind = a.processes.Behind(ports)
	}
	for c := range model.Each(list) {
		switch {
		case c.PID != 0 && a.processes != nil:
			c.By = []model.Process{a.processes.Who(c.PID, c.Name)}
		case c.PID != 0:
			c.By = []model.Process{{PID: int(c.PID), Name: c.Name}}
		default:
			ran := model.Filter(behind[c.Port], func(x traffic.Candidate) bool { return x.Ran(c.At) })
			if len(ran) <= maxAuthors {
				c.By = model.Map(ran, func(x traffic.Candidate) model.Process { return x.Process })
			}
		}
		a.changes = append(a.changes, c.Change)
	}
	a.changes = latest(a.changes)
	// Links are looked at anyway.
	if slices.ContainsFunc(list, func(c change.Change) bool { return c.Kind != model.ChangedLink }) {
		select {
		case a.made <- struct{}{}:
		default:
		}
	}
}

// latest are as many changes as are kept. The oldest go of the kind of which one program made most: pods that come and go
// push out no route that was deleted by hand.
func latest(list []model.Change) []model.Change {
	of := func(c *model.Change) string {
		return string(c.Kind) + strings.Join(model.Map(c.By, func(p model.Process) string { return p.Name }), " ")
	}
	count, share := map[string]int{}, maxChanges
	for c := range model.Each(list) {
		count[of(c)]++
	}
	for model.Sum(slices.Collect(maps.Values(count)), func(n int) int { return min(n, share) }) > maxChanges {
		share--
	}
	return slices.DeleteFunc(list, func(c model.Change) bool {
		count[of(&c)]--
		return count[of(&c)] >= share
	})
}

// list is what is kept, of the links that there are, and the source that says how much that is.
func (a *authors) list(links []model.Link) ([]model.Change, model.Source) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changes := slices.Clone(a.changes)
	for c := range model.Each(changes) {
		if c.Link != 0 && (c.Kind == model.ChangedLink || c.Kind == model.ChangedSetting) {
			c.On = model.Find(links, func(l model.Link) bool { return l.Index == c.Link }).Name
			// Names of settings have slashes for the dots of a link's name.
			c.Setting = strings.Replace(c.Setting, "*", strings.ReplaceAll(c.On, ".", "/"), 1)
		}
	}
	src := model.Source{Name: model.SourceChanges, Status: model.OK, Detail: model.Quantity(len(a.changes), "change")}
	switch {
	case a.unread != nil:
		src.Status, src.Detail = model.Missing, a.unread.Error()
	case a.unknown != nil:
		first, _, _ := strings.Cut(a.unknown.Error(), "\n")
		src.Status, src.Detail = model.Partial, src.Detail+"; who made them is known of nftables alone: "+first
	case a.lost:
		src.Status, src.Detail = model.Partial, src.Detail+"; others came too fast, or could not be read"
	}
	// A link that is deleted is set down first.
	return slices.DeleteFunc(changes, func(c model.Change) bool { return c.Kind == model.ChangedLink && c.On == "" }), src
}
