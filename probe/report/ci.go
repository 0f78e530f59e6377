package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Judgement is what makes a report fail in a CI job.
type Judgement struct {
	// FailOn is the lowest severity that fails.
	FailOn model.Severity
	// Strict lets a source that was not read whole fail too.
	Strict bool
	// Trial is set where a scenario was tried: then its expectation alone decides.
	Trial *Trial
}

// Trial is a scenario, and what of it was not as it expects.
type Trial struct {
	Name string
	// File and Line are where it says what it expects; Line counts from 1.
	File string
	Line int
	// Wrong is empty if the verdict was the expected one.
	Wrong []string
}

func (j Judgement) fails(f *model.Finding) bool {
	return j.Trial == nil && f.Severity.Rank() >= j.FailOn.Rank()
}

// Fails reports whether one of the findings fails the job.
func (j Judgement) Fails(findings []model.Finding) bool {
	return slices.ContainsFunc(findings, func(f model.Finding) bool { return j.fails(&f) })
}

// outline is what the documents have in common, of one node or several.
type outline struct {
	// node is clean text.
	node     string
	window   model.Window
	names    Names
	findings []model.Finding
	// of is a snapshot with a finding's window.
	of      func(*model.Finding) *model.Snapshot
	sources []nodeSource
	// paths show the findings. between: they are between nodes.
	paths   []*model.Path
	between bool
	// drawn is the path that a document is about.
	drawn *Drawing
	// reach is the table of who reaches whom, and what it leaves out; nil where a document has none.
	reach func() ([][]cell, string)
	// ways are the directions of a path.
	ways    []way
	verdict string
	// shell is NodeShell, where there are fixes.
	shell string
}

type nodeSource struct {
	model.Source
	node string
}

func (r Report) outline() outline {
	c := outline{
		node: Clean(cmp.Or(r.Snapshot.Node.Name, "node")), window: r.Snapshot.Window, names: Called(r.Snapshot),
		findings: r.Findings, of: func(*model.Finding) *model.Snapshot { return r.Snapshot }, verdict: r.verdict(), paths: r.Paths,
	}
	c.reach = func() ([][]cell, string) { return r.reach(c.names) }
	c.fixedOn(r.Snapshot.Node)
	c.add(c.node, r.Snapshot.Sources)
	return c
}

func (r Joint) outline() outline {
	c := outline{
		node: model.Quantity(len(r.Nodes), "node"), names: r.Names, verdict: r.Silence(),
		findings: r.Findings, of: r.windowOf, paths: r.Paths, between: true,
	}
	for _, n := range r.Nodes {
		if c.window.Start.IsZero() {
			c.window = n.Window
		}
		if n.Reason != "" {
			c.add(n.Name, []model.Source{{Name: "recording", Status: model.Partial, Detail: n.Reason}})
		}
		c.add(n.Name, n.Sources)
		c.fixedOn(model.Node{InPod: n.Node.InPod})
	}
	return c
}

// fixedOn says once how to get to the node on which fixes run.
func (c *outline) fixedOn(n model.Node) {
	if slices.ContainsFunc(c.findings, func(f model.Finding) bool { return len(f.Fix) > 0 && !f.Mended }) {
		c.shell = cmp.Or(c.shell, NodeShell(n))
	}
}

func (r Path) outline() outline {
	c := Report{Snapshot: r.Snapshot, Findings: r.Findings}.outline()
	c.names, c.verdict = r.names(), r.verdict()
	if r.Far != nil {
		c.add(cmp.Or(r.Far.Node.Name, "far node"), r.Far.Sources)
	}
	from, to := PathEnds(c.names, &r.Path)
	c.drawn = &Drawing{Path: &r.Path, Names: c.names, Findings: c.findings, Window: c.window.Duration(), Scope: "counts " + r.scope(r.Snapshot), Hop: -1}
	c.ways = []way{{r.directions()[0], from + " > " + to}, {r.directions()[1], to + " > " + from}}
	return c
}

// drawing is the path that shows the i-th finding, nil where there is none.
func (c outline) drawing(i int) *Drawing {
	if i >= len(c.paths) || c.paths[i] == nil {
		return nil
	}
	s := c.of(&c.findings[i])
	scope := "packets " + PathScope(s, c.paths[i], c.between)
	return &Drawing{Path: c.paths[i], Names: c.names, Findings: c.findings, Window: s.Window.Duration(), Scope: scope, Hop: -1}
}

func (c *outline) add(node string, sources []model.Source) {
	of := func(src model.Source) nodeSource { return nodeSource{src, Clean(node)} }
	c.sources = append(c.sources, model.Map(sources, of)...)
}

type way struct {
	direction
	ends string
}

// why says where packets end; empty if nowhere.
func (w way) why(names Names) string {
	h := w.dead()
	if h == nil {
		return ""
	}
	text := fmt.Sprintf("%s: packets end at hop %d, %s: %s", w.ends, h.N, h.Name(), HopDecision(names, h))
	return strings.TrimSpace(Clean(text))
}

// Fails reports whether packets end at a hop of the path, unless that is for a finding below a severity.
func (r Path) Fails(failOn model.Severity) bool {
	return r.any(func(h model.PathHop) bool { return failsAt(&h, r.Findings, failOn) })
}

func failsAt(h *model.PathHop, findings []model.Finding, failOn model.Severity) bool {
	rank := Worst(findings, h.Finding).Rank()
	return h.Dead && (rank < 0 || rank >= failOn.Rank())
}

// Worst is the worst severity among the findings of a code; empty where there is none.
func Worst(findings []model.Finding, code model.Code) model.Severity {
	var out model.Severity
	for _, f := range findings {
		if f.Code == code && f.Severity.Rank() > out.Rank() {
			out = f.Severity
		}
	}
	return out
}

func (c outline) plain(f *model.Finding) string {
	severity, rest := Headline(c.names, f)
	lines := []string{Clean(severity + " " + rest)}
	for _, x := range Sections(c.of(f), c.names, f) {
		if x.Name == Surer {
			continue
		}
		lines = append(lines, model.Map(x.Values, func(v string) string { return Clean(x.Name + ": " + v) })...)
	}
	return strings.Join(lines, "\n")
}
