package view

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"veth3f2":                 "veth3f2",
		"\x1b[31mred":             `\x1b[31mred`,
		"\u009b31m":               `\x9b31m`,
		"\u202egnp.exe":           `\u202egnp.exe`,
		"café":                    "café",
		"日本":                      "日本",
		"cafe\u0301":              `cafe\u0301`,
		"\u0301x":                 `\u0301x`,
		"👩\u200d👧":                `👩\u200d👧`,
		"🇩🇪":                      `\U0001f1e9\U0001f1ea`,
		"❤\ufe0f":                 `\u2764\ufe0f`,
		"e\u0301\u0301\u0301\x00": `e\u0301\u0301\u0301\x00`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("veth3f2", 5)
	f.Add("\x1b[2J\u202e日本e\u0301👩\u200d👧🇩🇪\xff", 3)
	f.Fuzz(func(t *testing.T, s string, w int) {
		got := clean(s)
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Fatalf("clean(%q) = %q", s, got)
			}
		}
		if a, b := ansi.StringWidth(got), ansi.StringWidthWc(got); a != b {
			t.Fatalf("clean(%q) = %q is %d or %d columns wide", s, got, a, b)
		}
		w = max(0, min(w, 1000))
		for _, theme := range []Theme{NewTheme("mono", colorprofile.NoTTY, true), NewTheme("dark", colorprofile.TrueColor, false)} {
			if n := width(theme.fit(got, w)); n != w {
				t.Fatalf("fit(%q, %d) is %d wide", got, w, n)
			}
			if n := width(theme.right(got, w)); n != w {
				t.Fatalf("right(%q, %d) is %d wide", got, w, n)
			}
		}
		for _, row := range wrap(got, w) {
			// A character that is wider than the row cannot be broken.
			if width(row) > w && w > 1 {
				t.Fatalf("wrap(%q, %d) has the row %q", got, w, row)
			}
		}
		if p := plainASCII(got); !ascii(p) || width(p) != width(got) {
			t.Fatalf("plainASCII(%q) = %q", got, p)
		}
	})
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		in   string
		w    int
		want []string
	}{
		{"", 10, nil},
		{"a b", 0, nil},
		{" a  b ", 10, []string{"a b"}},
		{"route create --name x", 12, []string{"route create", "--name x"}},
		{"see 0123456789ab cd", 5, []string{"see", "01234", "56789", "ab cd"}},
		{"日本語 x", 5, []string{"日本", "語 x"}},
	} {
		if got := wrap(c.in, c.w); !slices.Equal(got, c.want) {
			t.Errorf("wrap(%q, %d) = %q, want %q", c.in, c.w, got, c.want)
		}
	}
}

func TestFigures(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 9999: "9999", 41234: "41.2k", 999999: "999k", 1e6: "1.0M", 99_990_000: "99.9M", 123_456_789: "123M", 5e9: "5.0G", math.MaxUint64: "18446744T"} {
		if got := number(n); got != want {
			t.Errorf("number(%d) = %s, want %s", n, got, want)
		}
	}
	for f, want := range map[float64]string{0: "0", 0.01: "<0.1", 0.5: "0.5", 2: "2", 9.96: "10", 87.4: "87", -1: "-", math.Inf(1): "-", 2.5e6: "2.5M"} {
		if got := rate(f); strings.TrimSuffix(got, ".0") != want {
			t.Errorf("rate(%v) = %s, want %s", f, got, want)
		}
	}
	if rate(math.NaN()) != unknown || count(model.Count{}) != unknown || count(model.Counted(0)) != "0" {
		t.Error("what is not known is drawn as a figure, or a zero is not")
	}
	for d, want := range map[time.Duration]string{-1: "-", 0: "<10s", 9 * time.Second: "<10s", 59 * time.Second: "50s", 12 * time.Minute: "12m", 3*time.Hour + 59*time.Minute: "3h", 49 * time.Hour: "2d"} {
		if got := age(d); got != want {
			t.Errorf("age(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestSpark(t *testing.T) {
	rich, plain := NewTheme("dark", colorprofile.TrueColor, false), NewTheme("dark", colorprofile.ANSI, true)
	for _, c := range []struct {
		rates       []float64
		width       int
		rich, plain string
	}{
		{nil, 5, "", ""},
		{[]float64{0, 0}, 5, "▁▁", ".."},
		{[]float64{0, 1, 2, 4}, 5, "▁▂▄▇", "..:|"},
		{[]float64{9, 9, 0, 1}, 2, "▁▇", ".|"},
		{[]float64{math.NaN(), -3, 5}, 3, "▁▁▇", "..|"},
		{[]float64{1}, 0, "", ""},
	} {
		top := highest(c.rates[max(0, len(c.rates)-c.width):])
		if got := rich.spark(c.rates, top, c.width); got != c.rich {
			t.Errorf("spark(%v, %d) = %s, want %s", c.rates, c.width, got, c.rich)
		}
		if got := plain.plain(plain.spark(c.rates, top, c.width)); got != c.plain {
			t.Errorf("spark(%v, %d) = %s, want %s", c.rates, c.width, got, c.plain)
		}
	}
}

func TestParseQuery(t *testing.T) {
	row := Row{addrs: []netip.Prefix{netip.MustParsePrefix("fd00:1::/64")}}
	row.found("MissingUDR", "shop/cart-7d9f")
	row.foundAt(netip.MustParseAddr("10.244.1.4"))
	for query, want := range map[string]bool{
		"": true, "cart": true, "CART": true, "shop/": true, "missingudr": true, "bank": false, "!bank": true, "!cart": false, "cart shop": true, "cart bank": false,
		"10.244.1.4": true, "10.244.1.5": false, "10.244.1": true, "10.244.1.": true, "10.244.0.0/16": true, "10.244.2.0/24": false, "fd00:1::5": true, "fd00:2::5": false,
		"fd00::/16": true, "~^shop/cart-[0-9a-f]+$": true, "~^cart": false, "!": true, "!10.244.0.0/16": false,
	} {
		q, err := ParseQuery(query)
		if err != nil {
			t.Errorf("%q: %v", query, err)
			continue
		}
		if got := q.Match(&row); got != want {
			t.Errorf("%q matches: %v", query, got)
		}
	}
	for _, bad := range []string{"10.0.0.0/33", "10.0.0.0/x", "fd00::/200", "~(", "ok ~[", "!1.2.3.4/99"} {
		if _, err := ParseQuery(bad); err == nil {
			t.Errorf("%q is taken for a filter", bad)
		}
	}
}

// TestSelect holds that what is not known comes last in either order.
func TestSelect(t *testing.T) {
	rows := []Row{{ID: "unknown", Cells: []Cell{nothing()}}, {ID: "2", Cells: []Cell{whole(2)}}, {ID: "none", Cells: []Cell{nothing()}}, {ID: "1", Cells: []Cell{whole(1)}}}
	ids := func(by int, reverse bool) (out []string) {
		for _, r := range Select(rows, Query{}, by, reverse) {
			out = append(out, r.ID)
		}
		return out
	}
	for _, c := range []struct {
		by      int
		reverse bool
		want    []string
	}{
		{-1, false, []string{"unknown", "2", "none", "1"}},
		{0, false, []string{"1", "2", "unknown", "none"}},
		{0, true, []string{"2", "1", "unknown", "none"}},
		{7, false, []string{"unknown", "2", "none", "1"}},
	} {
		if got := ids(c.by, c.reverse); !slices.Equal(got, c.want) {
			t.Errorf("by %d, reverse %v: %v, want %v", c.by, c.reverse, got, c.want)
		}
	}
}

func TestColumnsFit(t *testing.T) {
	for tab := range Tabs {
		for w := 1; w < 300; w++ {
			sum := 1
			for _, n := range columnWidths(NewData(model.Reading{}, 0, nil).Columns(tab), nil, w-1) {
				if n > 0 {
					sum += n + 1
				}
			}
			if w >= oneColumn && tab.HasList() && sum-1 != w {
				t.Errorf("the columns of tab %d take %d of %d", tab, sum-1, w)
			}
		}
	}
}
