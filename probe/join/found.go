package join

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// found is a finding in the making, with what its page of words names.
type found struct {
	model.Finding
	page  string
	facts words.Facts
}

// worded is the finding in words.
func (f *found) worded() model.Finding {
	f.facts["f"] = &f.Finding
	words.Put(f.page, f.facts, &f.Finding)
	f.Verify = diagnose.Verify(f.Code)
	return f.Finding
}

// sent is what left a node.
type sent struct {
	From    *node
	Link    string
	Packets uint64
	Dst     []netip.Addr
}

// hosts are the prefixes that hold one address each.
func hosts(list []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range list {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// getOrInsert is a map's value for a key, made where it is not there yet.
func getOrInsert[K comparable, V any](m map[K]*V, k K) *V {
	if m[k] == nil {
		m[k] = new(V)
	}
	return m[k]
}
