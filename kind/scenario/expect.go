package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Expect is what lasthop must say of the nodes that are watched.
type Expect struct {
	// Line is where the file says it, from 1.
	Line int
	// Exit is the exit code of `lasthop check`.
	Exit int
	// Plugin is what must be recognised; empty: not looked at.
	Plugin string
	// Policy and Residue likewise; "none" wants that there is none.
	Policy   string
	Residue  string
	Findings []Finding
	// Absent are codes that must not be found.
	Absent []model.Code
}

// Finding is an expected one: its code, pods and peers that must be among
// those it names, and words that its evidence must hold.
type Finding struct {
	Code  model.Code
	Pods  []netip.Addr
	Peers []netip.Prefix
	// Title and Fix are words of the title and of the first fix, or next step, which make
	// one finding of several of the code; empty for any.
	Title, Fix string
	Evidence   []string
	// Confidence is that of each; empty for any. Nodes must be among those that tell
	// of the finding.
	Confidence model.Confidence `json:",omitempty"`
	Nodes      []string         `json:",omitempty"`
	// OtherFamily leads from an address to that of the same machine in the other
	// family, which will do as well. With a Family none of the other may be
	// named.
	OtherFamily map[netip.Addr]netip.Addr
	Family      int
}

func (r *resolver) expect(raw rawExpect) {
	e := r.verdict(raw.rawVerdict)
	e.Plugin, e.Policy, e.Residue = raw.Plugin.v, raw.Policy.v, raw.Residue.v
	r.s.Expect = e
	r.expectAlone(raw.Alone)
}

// verdict is what must be found, and what not.
func (r *resolver) verdict(raw rawVerdict) Expect {
	var e Expect
	for _, f := range raw.Findings {
		if !f.Code.set() {
			r.errorf(f.at, "finding has no code")
		}
		out := Finding{Code: f.Code.v, Title: f.Title.v, Fix: f.Fix.v, Confidence: f.Confidence.v, Family: f.Family.v, OtherFamily: map[netip.Addr]netip.Addr{}}
		if f.Family.set() && !r.s.Topology.HasIPv6() {
			r.errorf(f.Family.at, "family wants stack: %s", Dual)
		}
		for _, p := range f.Pods {
			if end, ok := r.end(p, out); ok {
				out.Pods = append(out.Pods, end)
			}
		}
		for _, p := range f.Peers {
			if prefix, err := netip.ParsePrefix(p.v); err == nil {
				out.Peers = append(out.Peers, prefix.Masked())
			} else if end, ok := r.end(p, out); ok {
				out.Peers = append(out.Peers, netip.PrefixFrom(end, end.BitLen()))
			}
		}
		for _, n := range f.Nodes {
			if !r.s.Together() || !slices.ContainsFunc(r.s.Watch, func(w Watched) bool { return w.Node == n.v }) {
				r.errorf(n.at, "nodes: node %q is not one of several that are watched", short(n.v))
			}
			out.Nodes = append(out.Nodes, n.v)
		}
		for _, words := range f.Evidence {
			out.Evidence = append(out.Evidence, words.v)
		}
		e.Findings = append(e.Findings, out)
	}
	for _, code := range raw.Absent {
		if slices.ContainsFunc(e.Findings, func(f Finding) bool { return f.Code == code.v }) {
			r.errorf(code.at, "%s is both expected and absent", code.v)
		}
		e.Absent = append(e.Absent, code.v)
	}
	e.Exit = raw.Exit.or(min(len(e.Findings), 1))
	return e
}

// end is the address of a reference in a finding's family, and notes the
// one in the other.
func (r *resolver) end(ref value[string], f Finding) (netip.Addr, bool) {
	e, ok := r.endpoint(ref)
	if !ok || r.v6 == nil {
		return e.Addr, ok
	}
	other, err := r.v6.Resolve(ref.v)
	switch {
	case err != nil || other.Addr == e.Addr:
	case f.Family == 6:
		return other.Addr, true
	case f.Family == 0:
		f.OtherFamily[e.Addr] = other.Addr
	}
	return e.Addr, true
}

// Mismatches says what differs from what is expected, a sentence each; nil when
// all is as it should be. A finding of a code that was not expected is one when
// it is a warning or worse, when it is in Absent, and when nothing may be found.
func (e Expect) Mismatches(exit int, found []model.Finding) []string {
	var out []string
	if exit != e.Exit {
		out = append(out, fmt.Sprintf("exit code %d, want %d", exit, e.Exit))
	}
	for _, want := range e.Findings {
		if !want.In(found) {
			out = append(out, fmt.Sprintf("no finding %s", want))
		}
	}
	for _, f := range found {
		wanted := slices.ContainsFunc(e.Findings, func(w Finding) bool { return w.Code == f.Code })
		if slices.Contains(e.Absent, f.Code) || e.Healthy() || !wanted && f.Severity.Rank() > model.Info.Rank() {
			out = append(out, fmt.Sprintf("finding %s of %v must be absent", f.Code, f.Pods))
		}
	}
	return out
}

// Healthy reports whether nothing may be found.
func (e Expect) Healthy() bool { return e.Exit == 0 && len(e.Findings) == 0 }

// PluginMismatches says what differs from what is expected of the plugin that was
// recognised, and by what; nil when it is the one expected.
func (e Expect) PluginMismatches(plugin string, by []string) []string {
	if e.Plugin == "" || e.Plugin == plugin {
		return nil
	}
	return []string{fmt.Sprintf("plugin recognised as %s by %q, want %s", plugin, by, e.Plugin)}
}

// LayerMismatches says what differs from what is expected of what was recognised
// beside the plugin, and by what.
func (e Expect) LayerMismatches(policy, residue string, by []string) []string {
	var out []string
	for _, l := range []struct{ what, want, got string }{{"policy", e.Policy, policy}, {"residue", e.Residue, residue}} {
		got := l.got
		if got == "" {
			got = "none"
		}
		if l.want != "" && l.want != got {
			out = append(out, fmt.Sprintf("%s recognised as %s by %q, want %s", l.what, got, by, l.want))
		}
	}
	return out
}

// In reports whether the findings of the code name all pods and peers. There
// may be one finding for several pods or one for each.
func (w Finding) In(found []model.Finding) bool {
	var pods []netip.Addr
	var peers []netip.Prefix
	var nodes []string
	var evidence strings.Builder
	any := false
	for _, f := range found {
		if f.Code == w.Code && strings.Contains(f.Title, w.Title) && strings.Contains(firstFix(slices.Concat(f.Fix, f.Next)), w.Fix) &&
			(w.Confidence == "" || w.Confidence == f.Confidence) {
			any = true
			nodes = append(nodes, f.Nodes...)
			pods = append(pods, f.Pods...)
			peers = append(peers, f.Peers...)
			for _, e := range f.Evidence {
				evidence.WriteString(e.Text + "\n")
			}
		}
	}
	if w.Family != 0 && (slices.ContainsFunc(pods, w.foreign) || slices.ContainsFunc(peers, func(p netip.Prefix) bool { return w.foreign(p.Addr()) })) {
		return false
	}
	for _, p := range w.Pods {
		if !slices.Contains(pods, p) && !slices.Contains(pods, w.OtherFamily[p]) {
			return false
		}
	}
	for _, p := range w.Peers {
		other := w.OtherFamily[p.Addr()]
		if !slices.Contains(peers, p) && !slices.Contains(peers, netip.PrefixFrom(other, other.BitLen())) {
			return false
		}
	}
	if slices.ContainsFunc(w.Nodes, func(n string) bool { return !slices.Contains(nodes, n) }) {
		return false
	}
	return any && !slices.ContainsFunc(w.Evidence, func(words string) bool { return !strings.Contains(evidence.String(), words) })
}

// firstFix is the first line of a fix but for one that says on which nodes to run it.
func firstFix(list []string) string {
	for _, line := range list {
		if !strings.HasPrefix(line, "on ") || !strings.HasSuffix(line, ":") {
			return line
		}
	}
	return ""
}

// foreign reports whether an address is of the family that is not meant.
func (w Finding) foreign(a netip.Addr) bool { return a.Is6() != (w.Family == 6) }

// String names the code and what must be in the finding.
func (w Finding) String() string {
	s := string(w.Code)
	if w.Confidence != "" {
		s += " " + string(w.Confidence)
	}
	if len(w.Nodes) > 0 {
		s += fmt.Sprintf(" of nodes %v", w.Nodes)
	}
	if len(w.Pods) > 0 {
		s += fmt.Sprintf(" with pods %v", w.Pods)
	}
	if len(w.Peers) > 0 {
		s += fmt.Sprintf(" with peers %v", w.Peers)
	}
	if w.Title != "" {
		s += fmt.Sprintf(" titled %q", w.Title)
	}
	if w.Fix != "" {
		s += fmt.Sprintf(" with fix %q", w.Fix)
	}
	if len(w.Evidence) > 0 {
		s += fmt.Sprintf(" with evidence %q", w.Evidence)
	}
	return s
}
