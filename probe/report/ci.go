package report

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Document is what a command reports: of one node or several, or a path.
type Document interface {
	Write(io.Writer, Format, Style) error
	JUnit(io.Writer, Judgement) error
	Annotations(Judgement) []Annotation
	Summary(io.Writer, Judgement) error
}

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

// fails reports whether a finding fails the job.
func (j Judgement) fails(f *model.Finding) bool {
	return j.Trial == nil && f.Severity.Rank() >= j.FailOn.Rank()
}

// Fails reports whether one of the findings fails the job.
func (j Judgement) Fails(findings []model.Finding) bool {
	return slices.ContainsFunc(findings, func(f model.Finding) bool { return j.fails(&f) })
}

// ci is what a CI job is shown of a report, of one node or several.
type ci struct {
	// node is clean text.
	node     string
	window   model.Window
	names    map[netip.Addr]string
	findings []model.Finding
	// of is a snapshot with a finding's window.
	of      func(*model.Finding) *model.Snapshot
	sources []ciSource
	// ways are the directions of a path.
	ways    []ciWay
	verdict string
	write   func(io.Writer, Format, Style) error
}

// ciSource is a source of one node. A gap is one that --strict complains of.
type ciSource struct {
	model.Source
	node string
	gap  bool
}

func (r Report) ci() ci {
	node := Clean(cmp.Or(r.Snapshot.Node.Name, "node"))
	return ci{
		node: node, window: r.Snapshot.Window, names: Called(r.Snapshot), findings: r.Findings,
		of: func(*model.Finding) *model.Snapshot { return r.Snapshot }, sources: ciSources(node, r.Snapshot.Sources),
		verdict: r.verdict(), write: r.Write,
	}
}

func (r Joint) ci() ci {
	c := ci{node: Plural(len(r.Nodes), "node"), names: r.Names, findings: r.Findings, of: r.windowOf, verdict: r.Silence(), write: r.Write}
	for _, n := range r.Nodes {
		if c.window.Start.IsZero() {
			c.window = n.Window
		}
		if n.Reason != "" {
			c.sources = append(c.sources, ciSource{model.Source{Name: "recording", Status: model.Partial, Detail: n.Reason}, Clean(n.Name), true})
		}
		c.sources = append(c.sources, ciSources(Clean(n.Name), n.Sources)...)
	}
	return c
}

func (r Path) ci() ci {
	c := Report{Snapshot: r.Snapshot, Findings: r.Findings}.ci()
	c.names, c.verdict, c.write = r.names(), r.verdict(), r.Write
	if r.Far != nil {
		c.sources = append(c.sources, ciSources(Clean(cmp.Or(r.Far.Node.Name, "far node")), r.Far.Sources)...)
	}
	from, to := PathEnds(c.names, &r.Path)
	for i, d := range r.directions() {
		w := ciWay{name: d.name + " path", ends: from + " > " + to}
		if i > 0 {
			w.ends = to + " > " + from
		}
		for h := range model.Each(d.hops) {
			if h.Dead && w.dead == nil {
				w.dead = h
			}
		}
		c.ways = append(c.ways, w)
	}
	return c
}

// ciWay is a direction of a path, with the first hop at which packets end, if any.
type ciWay struct {
	name, ends string
	dead       *model.PathHop
}

// why says where packets end; empty if nowhere.
func (w ciWay) why(names map[netip.Addr]string) string {
	if w.dead == nil {
		return ""
	}
	return strings.TrimSpace(Clean(fmt.Sprintf("%s: packets end at hop %d, %s: %s", w.ends, w.dead.N, w.dead.Name(), HopDecision(names, w.dead))))
}

// Fails reports whether packets end at a hop of the path, unless that is for a finding
// below a severity.
func (r Path) Fails(failOn model.Severity) bool {
	return slices.ContainsFunc(slices.Concat(r.Path.Forward, r.Path.Return), func(h model.PathHop) bool { return failsAt(&h, r.Findings, failOn) })
}

func failsAt(h *model.PathHop, findings []model.Finding, failOn model.Severity) bool {
	worst := -1
	for _, f := range findings {
		if f.Code == h.Finding {
			worst = max(worst, f.Severity.Rank())
		}
	}
	return h.Dead && (worst < 0 || worst >= failOn.Rank())
}

func ciSources(node string, list []model.Source) []ciSource {
	gaps := Gaps(&model.Snapshot{Sources: list})
	return mapped(list, func(src model.Source) ciSource { return ciSource{src, node, slices.Contains(gaps, src)} })
}

// gaps are the sources that --strict complains of.
func (c ci) gaps() []ciSource {
	return slices.DeleteFunc(slices.Clone(c.sources), func(s ciSource) bool { return !s.gap })
}

// plain is a finding in lines of text.
func (c ci) plain(f *model.Finding) string {
	severity, rest := Headline(c.names, f)
	lines := []string{Clean(severity + " " + rest)}
	for _, x := range Sections(c.of(f), c.names, f) {
		for _, v := range x.Values {
			lines = append(lines, Clean(x.Name+": "+v))
		}
	}
	return strings.Join(lines, "\n")
}

// byCode are the findings of each code, in the order of the report.
func (c ci) byCode() [][]model.Finding {
	var out [][]model.Finding
	for _, f := range c.findings {
		i := slices.IndexFunc(out, func(l []model.Finding) bool { return l[0].Code == f.Code })
		if i < 0 {
			out = append(out, nil)
			i = len(out) - 1
		}
		out[i] = append(out[i], f)
	}
	return out
}

// JUnit writes the report as a JUnit file. Each code that was found is a test that
// failed, or passed if it is below j.FailOn. Without findings one test says what was
// looked at. Each source is a test, skipped if it was not read whole. A scenario that
// was tried is a test, and decides alone.
func (r Report) JUnit(w io.Writer, j Judgement) error { return r.ci().junit(w, j) }

// JUnit writes the report as a JUnit file, as that of one node.
func (r Joint) JUnit(w io.Writer, j Judgement) error { return r.ci().junit(w, j) }

// JUnit writes the path as a JUnit file: each direction is a test, besides the findings
// that have their place on it. One fails as Fails says.
func (r Path) JUnit(w io.Writer, j Judgement) error { return r.ci().junit(w, j) }

// Annotations are the report's on a GitHub Actions run: an error for what fails the
// job, a warning or notice for other findings. Where a scenario was tried there is one
// alone, at its file and line, if the verdict was not the expected one.
func (r Report) Annotations(j Judgement) []Annotation { return r.ci().annotations(j) }

// Annotations are the report's on a GitHub Actions run, as that of one node.
func (r Joint) Annotations(j Judgement) []Annotation { return r.ci().annotations(j) }

// Annotations are the path's on a GitHub Actions run: one for each finding on it, and an
// error for a hop at which packets end without one.
func (r Path) Annotations(j Judgement) []Annotation { return r.ci().annotations(j) }

// Summary writes the report in Markdown for the summary of a GitHub Actions job. What
// is too long for GitHub is cut off, and said.
func (r Report) Summary(w io.Writer, j Judgement) error { return r.ci().summary(w, j) }

// Summary writes the report in Markdown for the summary of a GitHub Actions job.
func (r Joint) Summary(w io.Writer, j Judgement) error { return r.ci().summary(w, j) }

// Summary writes the path in Markdown for the summary of a GitHub Actions job.
func (r Path) Summary(w io.Writer, j Judgement) error { return r.ci().summary(w, j) }
