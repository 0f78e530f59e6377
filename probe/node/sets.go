package node

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Sorted are the keys of a set of addresses, in order.
func Sorted[V any](set map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
}

// Groups are values by their keys, in the order in which these came first.
type Groups[K comparable, V any] struct {
	byKey map[K]*V
	keys  []K
}

// Of is the value for a key, made where it is not there yet.
func (g *Groups[K, V]) Of(k K) *V {
	if g.byKey == nil {
		g.byKey = map[K]*V{}
	}
	if g.byKey[k] == nil {
		g.keys = append(g.keys, k)
	}
	return model.GetOrInsert(g.byKey, k)
}

// Put adds to the list for a key.
func Put[K comparable, V any](g *Groups[K, []V], k K, x ...V) {
	list := g.Of(k)
	*list = append(*list, x...)
}

// All are the keys and their values.
func (g *Groups[K, V]) All() iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for _, k := range g.keys {
			if !yield(k, g.byKey[k]) {
				return
			}
		}
	}
}

// AddrSet is a set of addresses; its zero value is empty.
type AddrSet map[netip.Addr]bool

// Add adds addresses.
func (s *AddrSet) Add(list ...netip.Addr) {
	if *s == nil {
		*s = AddrSet{}
	}
	for _, a := range list {
		(*s)[a] = true
	}
}

// SetOf is the set of some addresses.
func SetOf(list []netip.Addr) (s AddrSet) {
	s.Add(list...)
	return s
}

// AddAll adds those of another set.
func (s *AddrSet) AddAll(o AddrSet) {
	s.Add()
	maps.Copy(*s, o)
}
