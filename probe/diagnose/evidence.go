package diagnose

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// say is what a page says of a part of a finding.
func say(page string, facts facts) (f model.Finding) {
	words.Put(page, facts, &f)
	return f
}

func sorted[V any](set map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
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
	return model.GetOrInsert(g.byKey, k)
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

// addrSet is a set of addresses; its zero value is empty.
type addrSet map[netip.Addr]bool

func (s *addrSet) add(list ...netip.Addr) {
	if *s == nil {
		*s = addrSet{}
	}
	for _, a := range list {
		(*s)[a] = true
	}
}

func setOf(list []netip.Addr) (s addrSet) {
	s.add(list...)
	return s
}

func (s *addrSet) addAll(o addrSet) {
	s.add()
	maps.Copy(*s, o)
}

// include adds to one of several maps.
func include[K, L comparable, V any](m map[K]map[L]V, k K, l L, v V) {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	m[k][l] = v
}
