package diagnose

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

func packetRuleEvidence(what string, r *model.PacketRule) model.Evidence {
	return seen(model.SourceNAT, "%s: %s %s rule %d (%s): %s", what, r.Table, r.Chain, r.Number, r.Backend, r.Text)
}

// seen is an observation and its source, as a finding shows it.
func seen(source, format string, args ...any) model.Evidence {
	return model.Evidence{Source: source, Text: fmt.Sprintf(format, args...)}
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

// chosen are the elements of a list that match.
func chosen[T any](list []T, match func(*T) bool) []*T {
	var out []*T
	for x := range model.Each(list) {
		if match(x) {
			out = append(out, x)
		}
	}
	return out
}

// first is the first element of a list that matches, nil for none.
func first[T any](list []T, match func(*T) bool) *T {
	for x := range model.Each(list) {
		if match(x) {
			return x
		}
	}
	return nil
}

// entry is a map's value for a key, made where it is not there yet.
func entry[K comparable, V any](m map[K]*V, k K) *V {
	if m[k] == nil {
		m[k] = new(V)
	}
	return m[k]
}

// groups are values by their keys, in the order in which these came first.
type groups[K comparable, V any] struct {
	byKey map[K]*V
	keys  []K
}

// of is the value for a key, made where it is not there yet.
func (g *groups[K, V]) of(k K) *V {
	if g.byKey == nil {
		g.byKey = map[K]*V{}
	}
	if g.byKey[k] == nil {
		g.keys = append(g.keys, k)
	}
	return entry(g.byKey, k)
}

func (g *groups[K, V]) all() iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for _, k := range g.keys {
			if !yield(k, g.byKey[k]) {
				return
			}
		}
	}
}
