// Package lab runs a scenario in network namespaces on this kernel: nodes as
// the network plugins leave them, the Azure fabric between them, pods with
// traffic, and faults.
//
// Everything is made inside namespaces whose names begin with "lasthop-", and
// nothing in the one that the caller is in. What a lab will make is written
// down under /run/lasthop/labs before it is made, so that Down finds it also
// after a crash.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
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
	// Log receives what is being done, a line a call. It may be nil.
	Log func(format string, args ...any)
}

// Lab is a lab that is up. It holds nothing open between calls. It is safe
// for concurrent use.
type Lab struct {
	id string
	s  *scenario.Scenario

	mu      sync.Mutex
	traffic *traffic // the latest that this process ran
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
func Up(ctx context.Context, s *scenario.Scenario, o Options) (lab *Lab, err error) {
	l := &Lab{id: o.ID, s: ownPods(s)}
	if l.id == "" {
		l.id = s.Name
	}
	if err := ready(l.id, s); err != nil {
		return nil, err
	}
	rec := record{ID: l.id, Created: time.Now().UTC(), Scenario: l.s}
	for _, place := range l.places() {
		rec.Spaces = append(rec.Spaces, l.netns(place))
	}
	d, err := claimDir(ctx, l.id)
	if err != nil {
		return nil, err
	}
	defer d.close()
	defer func() {
		if err != nil {
			// ctx may be what ended it.
			err = errors.Join(err, d.remove(context.WithoutCancel(ctx)))
		}
	}()
	// Until the record is written nothing that is there counts as ours.
	for _, name := range rec.Spaces {
		if _, err := os.Lstat(filepath.Join(netnsDir, name)); err == nil {
			return nil, fmt.Errorf("bring lab %q up: network namespace %s is there already (ip netns del %s)", l.id, name, name)
		}
	}
	if err := d.write(labFile, rec); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if err := l.build(ctx, o.Log); err != nil {
		return nil, fmt.Errorf("bring lab %q up: %w", l.id, err)
	}
	rec.Whole = true
	if err := d.write(labFile, rec); err != nil {
		return nil, err
	}
	return l, nil
}

// ready says whether a lab can be made here at all.
func ready(id string, s *scenario.Scenario) error {
	if err := scenario.CheckName(id); err != nil {
		return fmt.Errorf("lab ID: %w", err)
	}
	if unix.Geteuid() != 0 {
		return &model.UnsupportedError{Feature: "make network namespaces", Remedy: "run as root", Err: unix.EPERM}
	}
	for _, tool := range []string{iptables, ebtables} {
		if _, err := findTool(tool); err != nil {
			return err
		}
	}
	return findPlugins(s)
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

// Resolve finds the address of "node/pod", "node", "outside", or of an
// address itself.
func (l *Lab) Resolve(ref string) (netip.Addr, error) {
	e, err := l.s.Topology.Resolve(ref)
	return e.Addr, err
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
func (l *Lab) open(place string) (*space, error) { return openSpace(l.netns(place)) }

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
// of its traffic; all labs when the ID is empty.
func Down(ctx context.Context, id string) error {
	if id == "" {
		all, err := ids()
		errs := []error{err}
		for _, id := range all {
			if err := Down(ctx, id); !errors.Is(err, ErrNotFound) {
				errs = append(errs, err)
			}
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
	return &Lab{id: id, s: rec.Scenario}, nil
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
		l := &Lab{id: id, s: rec.Scenario}
		out = append(out, Info{
			ID: id, Scenario: l.s.Name, Title: l.s.Title, Created: rec.Created,
			Whole: rec.Whole, Nodes: l.Nodes(), TrafficPID: trafficPID(id),
		})
	}
	return out, nil
}
