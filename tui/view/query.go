package view

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Query is a filter of rows. The zero Query passes all.
type Query struct{ terms []term }

// term is one word of a filter. All must match.
type term struct {
	not    bool
	prefix netip.Prefix
	// regex is that of a word, too.
	regex *regexp.Regexp
}

// ParseQuery parses a filter. All of its words must match: a word matches names, namespaces, links, codes and
// text that contain it, or it is an address or range (10.244.3.7, 10.244.0.0/16) or a regular expression
// (~cart-.*). A word behind "!" must not match.
func ParseQuery(s string) (Query, error) {
	var q Query
	for _, w := range strings.Fields(s) {
		var t term
		if rest, ok := strings.CutPrefix(w, "!"); ok {
			t.not, w = true, rest
		}
		if w == "" {
			continue
		}
		if err := t.read(w); err != nil {
			return Query{}, err
		}
		q.terms = append(q.terms, t)
	}
	return q, nil
}

func (t *term) read(w string) error {
	if expr, ok := strings.CutPrefix(w, "~"); ok {
		re, err := regexp.Compile("(?i)" + expr)
		if err != nil {
			return fmt.Errorf("not a regular expression: %s", expr)
		}
		t.regex = re
		return nil
	}
	// The beginning of an address or range counts as text while it is typed.
	addr, bits, _ := strings.Cut(w, "/")
	if a, err := netip.ParseAddr(addr); err == nil {
		p, err := netip.ParsePrefix(w)
		if err != nil && bits != "" {
			return fmt.Errorf("not a range: %s", w)
		}
		t.prefix = model.Either(err == nil, p.Masked(), host(a.WithZone("")))
		return nil
	}
	t.regex = regexp.MustCompile("(?i)" + regexp.QuoteMeta(strings.ToValidUTF8(w, "?")))
	return nil
}

// Match reports whether the row passes.
func (q Query) Match(r *Row) bool {
	return !slices.ContainsFunc(q.terms, func(t term) bool { return t.holds(r) == t.not })
}

func (t term) holds(r *Row) bool {
	if t.regex != nil {
		return slices.ContainsFunc(r.hay, t.regex.MatchString)
	}
	return slices.ContainsFunc(r.addrs, t.prefix.Overlaps)
}

// Select returns the rows that pass, sorted by a column; by -1 keeps their order.
// What is not known comes last in either order.
func Select(rows []Row, q Query, by int, reverse bool) []*Row {
	out := slices.DeleteFunc(slices.Collect(model.Each(rows)), func(r *Row) bool { return !q.Match(r) })
	if by < 0 {
		return out
	}
	slices.SortStableFunc(out, func(a, b *Row) int {
		if by >= len(a.Cells) || by >= len(b.Cells) {
			return 0
		}
		x, y := a.Cells[by], b.Cells[by]
		if x.blank() || y.blank() {
			return model.Either(x.blank(), 1, 0) - model.Either(y.blank(), 1, 0)
		}
		if reverse {
			x, y = y, x
		}
		return compare(x, y)
	})
	return out
}
