package diagnose

import (
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// count is a number with its noun.
func count(n uint64, noun string) string { return plural(n, noun, noun+"s") }

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// addrs lists addresses in words, the first few of many.
func addrs[T fmt.Stringer](list []T) string {
	const most = 4
	var b strings.Builder
	for i, a := range list {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(list)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.String())
	}
	return b.String()
}

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

// ttls says in words which TTLs were seen.
func ttls(set uint64) string {
	n := uint64(bits.OnesCount64(set))
	return count(n, "different TTL")
}

// ip is the tool for the address's family.
func ip(a netip.Addr) string {
	if a.Is6() {
		return "ip -6"
	}
	return "ip"
}

// ip46tables is the tool for the address's family.
func ip46tables(a netip.Addr) string {
	if a.Is6() {
		return "ip6tables"
	}
	return "iptables"
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
