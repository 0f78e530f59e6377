// Package lab runs a scenario in network namespaces on this kernel: nodes as
// the network plugins leave them, the Azure fabric between them, pods with
// traffic, and faults.
//
// Everything is made inside namespaces whose names begin with "lasthop-", and
// nothing in the one that the caller is in. What a lab will make is written
// down under /run/lasthop/labs before it is made, so that Down finds it also
// after a crash.
//
// UpOnKind makes a lab of a cluster that kind makes in place of namespaces: its nodes'
// and pods' namespaces get the names that the lab's own would have, and what follows
// is the same. Only there something is made in the namespace that the caller is in: the
// link to the machine outside.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// netnsPrefix begins the name of every namespace of every lab.
const netnsPrefix = "lasthop-"

// Options are what Up needs beside the scenario.
type Options struct {
	// ID names the lab; empty for the scenario's name. Labs with different
	// IDs may be up at once.
	ID string
	// Tables are those in which iptables and ebtables keep the rules; empty is
	// model.NFT. Not every kernel has the legacy ones.
	Tables model.Backend
	// Log receives what is being done, a line a call. It may be nil.
	Log func(format string, args ...any)
}

// Lab is a lab that is up. It holds nothing open between calls. It is safe
// for concurrent use.
type Lab struct {
	id string
	s  *scenario.Scenario
	// tables are Options.Tables.
	tables model.Backend
	// roots are the nodes' directories where a cluster of kind has them.
	roots map[string]string
	// cluster is what that cluster has.
	cluster *scenario.Cluster

	mu sync.Mutex
	// sound is true while the scenario's faults are not applied.
	sound   bool
	traffic *traffic // the latest that this process ran
	turned  bool     // the faults with a When are as they are while traffic flows
	// datagrams counts the requests by UDP: see datagramPort.
	datagrams atomic.Uint32
}

// Node is one of a lab's nodes.
type Node struct {
	Name string
	// Netns is the name by which `ip netns` knows the node.
	Netns    string
	Plugin   string
	Observed bool
}

// Info is what a list of labs shows.
type Info struct {
	ID       string
	Scenario string
	Title    string
	Created  time.Time
	// Whole is false for a lab that is being made or was left by a crash.
	Whole bool
	Nodes []Node
	// TrafficPID is the process that StartTraffic started, 0 when none
	// runs.
	TrafficPID int
}

// Up builds the scenario's topology and applies its faults. On any error, and
// when ctx ends first, it undoes what it did.
func Up(ctx context.Context, s *scenario.Scenario, o Options) (*Lab, error) {
	l := &Lab{id: o.ID, s: ownPods(s), tables: o.Tables}
	if l.id == "" {
		l.id = s.Name
	}
	if err := l.ready(); err != nil {
		return nil, err
	}
	rec := record{ID: l.id, Created: time.Now().UTC(), Scenario: l.s, Tables: l.tables}
	for _, place := range l.places() {
		rec.Spaces = append(rec.Spaces, l.netns(place))
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	err := l.bringUp(ctx, rec, func(*dir) error {
		return wrap(l.build(ctx, o.Log), "bring lab %q up", l.id)
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// bringUp makes a lab of which nothing is there yet. What it will make is written down
// first; on any error it undoes what it did.
func (l *Lab) bringUp(ctx context.Context, rec record, build func(*dir) error) (err error) {
	d, err := claimDir(ctx, l.id)
	if err != nil {
		return err
	}
	defer d.close()
	defer func() {
		if err != nil {
			// ctx may be what ended it.
			err = errors.Join(err, d.remove(context.WithoutCancel(ctx)))
		}
	}()
	if err := d.claim(rec); err != nil {
		return err
	}
	if err := build(d); err != nil {
		return err
	}
	rec.Scenario, rec.Roots, rec.Whole = l.s, l.roots, true
	return d.write(labFile, rec)
}

// ready says whether the lab can be made here at all.
func (l *Lab) ready() error {
	if err := scenario.CheckName(l.id); err != nil {
		return fmt.Errorf("lab ID: %w", err)
	}
	if unix.Geteuid() != 0 {
		return &model.UnsupportedError{Feature: "make network namespaces", Remedy: "run as root", Err: unix.EPERM}
	}
	for _, tool := range []string{iptables, ebtables} {
		tool, _ = variant(tool, l.tables)
		if _, err := findTool(tool); err != nil {
			return err
		}
	}
	return findPlugins(l.s)
}

// ownPods is the scenario with pods of the lab's own: CNI plugins choose the
// names and MACs of their links.
func ownPods(s *scenario.Scenario) *scenario.Scenario {
	out := *s
	out.Topology.Nodes = slices.Clone(s.Topology.Nodes)
	for i := range out.Topology.Nodes {
		n := &out.Topology.Nodes[i]
		n.Pods, n.OldPods = slices.Clone(n.Pods), slices.Clone(n.OldPods)
	}
	return &out
}

// ID is the lab's.
func (l *Lab) ID() string { return l.id }

// Scenario is what the lab runs.
func (l *Lab) Scenario() *scenario.Scenario { return l.s }

// Nodes are the lab's nodes, in the scenario's order.
func (l *Lab) Nodes() []Node {
	var out []Node
	for _, n := range l.s.Topology.Nodes {
		out = append(out, Node{Name: n.Name, Netns: l.netns(n.Name), Plugin: string(n.Plugin), Observed: n.Name == l.s.Observe})
	}
	return out
}

// places are all namespaces of the lab: "fabric", "outside", "node",
// "node/pod".
func (l *Lab) places() []string {
	out := []string{fabricName, outsideName}
	for _, n := range l.s.Topology.Nodes {
		out = append(out, n.Name)
		for _, pods := range [][]scenario.Pod{n.Pods, n.OldPods} {
			for _, p := range pods {
				if !p.Gone {
					out = append(out, n.Name+"/"+p.Name)
				}
			}
		}
	}
	return out
}

// netns is the name of a place's namespace. A pod's name follows a dot, which
// no node's name holds.
func (l *Lab) netns(place string) string {
	name := []byte(netnsPrefix + l.id + "-" + place)
	for i, c := range name {
		if c == '/' {
			name[i] = '.'
		}
	}
	return string(name)
}

// open opens the namespace of a place.
func (l *Lab) open(place string) (*space, error) { return openSpace(l.netns(place), l.tables) }

// with opens the namespace of a place for as long as f runs.
func (l *Lab) with(place string, f func(*space) error) error {
	sp, err := l.open(place)
	if err != nil {
		return err
	}
	defer sp.close()
	return f(sp)
}

// Down ends the lab's traffic, waits for it, and removes all that the lab is.
// A lab that is down already is no error.
func (l *Lab) Down(ctx context.Context) error {
	t := l.latest()
	if t != nil {
		t.cancel()
		select {
		case <-t.done:
		case <-ctx.Done():
			return fmt.Errorf("wait for traffic of lab %q: %w", l.id, ctx.Err())
		}
	}
	if err := Down(ctx, l.id); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// Down removes a lab by its ID, also one whose maker crashed, and the process
// of its traffic. When the ID is empty it removes all labs, and what tests and
// benchmarks that were killed have left.
func Down(ctx context.Context, id string) error {
	if id == "" {
		all, err := ids()
		errs := []error{err}
		for _, id := range all {
			if err := Down(ctx, id); !errors.Is(err, ErrNotFound) {
				errs = append(errs, err)
			}
		}
		names, err := strays(netnsPrefix)
		errs = append(errs, err)
		for _, name := range names {
			errs = append(errs, deleteNetns(name))
		}
		return errors.Join(errs...)
	}
	d, err := lockDir(ctx, id)
	if err != nil {
		return err
	}
	defer d.close()
	return d.remove(ctx)
}

// strays are the namespaces whose names have the prefix and that belong to no lab.
// Tests and benchmarks name theirs like a lab's.
func strays(prefix string) ([]string, error) {
	// What is a lab's is written down before it is made: it is enough to look for
	// labs last.
	entries, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	labs, err := ids()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		name := e.Name()
		ofLab := func(id string) bool { return strings.HasPrefix(name, netnsPrefix+id+"-") }
		if strings.HasPrefix(name, prefix) && !slices.ContainsFunc(labs, ofLab) {
			out = append(out, name)
		}
	}
	return out, nil
}

// Find returns a lab that is up, also one of another process.
func Find(id string) (*Lab, error) {
	var rec record
	err := readRecord(id, &rec)
	if err == nil && !rec.Whole {
		err = ErrIncomplete
	}
	if err != nil {
		return nil, fmt.Errorf("find lab %q: %w", id, err)
	}
	return &Lab{id: id, s: rec.Scenario, tables: rec.Tables, roots: rec.Roots}, nil
}

// readRecord reads what a lab's directory says of it.
func readRecord(id string, rec *record) error {
	if scenario.CheckName(id) != nil {
		return ErrNotFound
	}
	err := readJSON(id, labFile, rec)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(pathOf(id)); err == nil {
			return ErrIncomplete
		}
		return ErrNotFound
	}
	if err == nil && rec.Scenario == nil {
		return ErrIncomplete
	}
	return err
}

// List lists the labs that are up, being made, or left by a crash.
func List() ([]Info, error) {
	all, err := ids()
	if err != nil {
		return nil, err
	}
	var out []Info
	for _, id := range all {
		var rec record
		switch err := readRecord(id, &rec); {
		case errors.Is(err, ErrNotFound):
			continue // taken down meanwhile
		case err != nil:
			out = append(out, Info{ID: id})
			continue
		}
		l := &Lab{id: id, s: rec.Scenario, tables: rec.Tables}
		out = append(out, Info{
			ID: id, Scenario: l.s.Name, Title: l.s.Title, Created: rec.Created,
			Whole: rec.Whole, Nodes: l.Nodes(), TrafficPID: trafficPID(id),
		})
	}
	return out, nil
}
