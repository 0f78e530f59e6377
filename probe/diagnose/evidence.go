package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// weaker is the less sure of two.
func weaker(a, b model.Confidence) model.Confidence {
	if b.Rank() < a.Rank() {
		return b
	}
	return a
}

func packetRuleEvidence(what string, r *model.PacketRule) model.Evidence {
	return seen(model.SourceNAT, "%s: %s %s rule %d (%s): %s", what, r.Table, r.Chain, r.Number, r.Backend, r.Text)
}

// seen is an observation and its source, as a finding shows it.
func seen(source, format string, args ...any) model.Evidence {
	return model.Evidence{Source: source, Text: fmt.Sprintf(format, args...)}
}

// say is what a page says of a part of a finding.
func say(page string, facts facts) (f model.Finding) {
	words.Put(page, facts, &f)
	return f
}

// observe adds an observation to a finding.
func observe(f *model.Finding, source, format string, args ...any) {
	f.Evidence = append(f.Evidence, seen(source, format, args...))
}

// observeSome adds an observation of a number of things, if there are any.
func observeSome[N int | uint64](f *model.Finding, n N, source, format string, args ...any) {
	if n > 0 {
		observe(f, source, format, args...)
	}
}

// stateAlone weakens a finding for which nothing but state speaks.
func stateAlone(f *model.Finding, unseen string, alternatives ...string) {
	f.Confidence, f.Severity = model.Possible, model.Warning
	f.Unseen, f.Alternatives = append(f.Unseen, unseen), append(f.Alternatives, alternatives...)
}

// unusedEntry weakens a finding on a neighbour entry by which nothing was sent. One that nobody
// pinned the kernel asks for again before it uses it for long.
func unusedEntry(f *model.Finding, n *model.Neighbor, unseen string) {
	if n.State == "PERMANENT" {
		f.Unseen = append(f.Unseen, unseen)
		return
	}
	stateAlone(f, unseen)
}

// needing is how findings are made that need some sources to have been read whole.
func needing(find func(*view) []finding, sources ...string) func(*view) []finding {
	return func(v *view) []finding {
		if !v.Has(sources...) {
			return nil
		}
		return find(v)
	}
}

// sorted are the addresses of a set.
func sorted[V any](set map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
}

// entry is a map's value for a key, made where it is not there yet.
func entry[K comparable, V any](m map[K]*V, k K) *V {
	if m[k] == nil {
		m[k] = new(V)
	}
	return m[k]
}

// ofDrops makes a finding of the pods' drops that no finding claims and that have the same key, if there
// are enough.
func ofDrops[K comparable](v *view, key func(*model.Drop) (K, bool), judge func(*view, K, *lost) finding) []finding {
	groups := map[K]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if k, is := key(d); is && v.ofPod(d) && !v.explained(d) {
			entry(groups, k).add(v, d)
		}
	}
	var out []finding
	for k, l := range groups {
		if l.packets >= minDrops {
			out = append(out, judge(v, k, l))
		}
	}
	return out
}

// include adds to one of several sets.
func include[K, V comparable](m map[K]map[V]bool, k K, v V) {
	if m[k] == nil {
		m[k] = map[V]bool{}
	}
	m[k][v] = true
}

// first is the first element that is so; nil where none is.
func first[T any](list []T, is func(*T) bool) *T {
	for x := range model.Each(list) {
		if is(x) {
			return x
		}
	}
	return nil
}

// once is what is found when it is first asked for.
type once[T any] struct {
	known bool
	value T
}

func (o *once[T]) get(find func() T) T {
	if !o.known {
		o.value, o.known = find(), true
	}
	return o.value
}
