package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// headline is a finding in one line, the first that a person reads.
func headline(f model.Finding) (severity, rest string) {
	return strings.ToUpper(string(f.Severity)), fmt.Sprintf("%s: %s (%s)", f.Code, f.Title, f.Confidence)
}

// silence is the verdict when there is no finding: what "none" is worth, given
// what was looked at. It never says that a node is healthy.
func (r Report) silence() string {
	s := r.Snapshot
	open := incomplete(s)
	window := seconds(s.Window.Duration())
	var verdict string
	switch v := r.volume(); {
	case s.Status(model.SourceTC) == model.Missing:
		verdict = "no fault found in the node's state, but no packet was watched: losses cannot be told"
	case v.pods == 0:
		verdict = fmt.Sprintf("no loss seen, but no pod packet passed in %s either: only the node's state was judged", window)
	case len(open) > 0:
		verdict = fmt.Sprintf("no loss seen in %s, but not everything could be looked at", window)
	default:
		verdict = fmt.Sprintf("no loss seen in %s of traffic (%s)", window, v)
	}
	if dropped := r.dropped(); dropped > 0 {
		verdict += fmt.Sprintf("; %s gave no finding", plural(dropped, "drop"))
	}
	if len(r.Focus) > 0 {
		verdict = "for the pods asked about: " + verdict
	}
	if len(open) > 0 {
		verdict += "; incomplete: " + strings.Join(open, ", ")
	}
	return strings.Join(append([]string{verdict}, r.Limits...), "; ")
}

// incomplete names what could not be looked at whole.
func incomplete(s *model.Snapshot) []string {
	var names []string
	for _, g := range Gaps(s) {
		names = append(names, fmt.Sprintf("%s (%s)", g.Name, g.Status))
	}
	if lost(s.Traffic.Lost) {
		names = append(names, "lasthop's own counts (see below)")
	}
	return names
}

func (v volume) String() string {
	return fmt.Sprintf("%s, %d packets out, %d in", plural(v.pods, "pod"), v.out, v.in)
}

// Gaps are the sources on the node itself that were not read whole. What is
// known of the cluster beyond it is never whole from here, and is no gap.
func Gaps(s *model.Snapshot) []model.Source {
	return slices.DeleteFunc(partial(s), func(src model.Source) bool { return src.Name == model.SourceNodes })
}

// partial are the sources that were not read whole.
func partial(s *model.Snapshot) []model.Source {
	var out []model.Source
	for _, src := range s.Sources {
		if src.Status != model.OK {
			out = append(out, src)
		}
	}
	return out
}

func plural[N int | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
