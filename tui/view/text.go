package view

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// clean makes text from outside fit to be drawn: as in the reports, control
// characters and those that change the direction of writing become escapes. So
// do characters that are made of several, or whose width terminals do not agree
// about: they would break the columns.
func clean(s string) string {
	s = report.Clean(s)
	if ascii(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		c, w := ansi.FirstGraphemeCluster(s, ansi.GraphemeWidth)
		if c == "" {
			_, n := utf8.DecodeRuneInString(s)
			c = s[:n]
		}
		for _, r := range c {
			if r < utf8.RuneSelf || w > 0 && w == ansi.StringWidthWc(c) && alone(c) {
				b.WriteRune(r)
			} else {
				b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			}
		}
		s = s[len(c):]
	}
	return b.String()
}

// alone reports whether c is one character that joins no other, before or
// behind it.
func alone(c string) bool {
	before, _ := ansi.FirstGraphemeCluster(" "+c, ansi.GraphemeWidth)
	behind, _ := ansi.FirstGraphemeCluster(c+" ", ansi.GraphemeWidth)
	return utf8.RuneCountInString(c) == 1 && before == " " && behind == c
}

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// plainASCII replaces each character beyond 7 bits with as many question marks as
// it is wide.
func plainASCII(s string) string {
	if ascii(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Repeat("?", ansi.StringWidth(string(r))))
	}
	return b.String()
}

func width(s string) int { return report.Width(s) }

// fit makes s exactly w columns wide, and marks a cut.
func (t Theme) fit(s string, w int) string {
	if w <= 0 {
		return ""
	}
	n := width(s)
	if n > w {
		s = ansi.Truncate(s, w, t.more)
		// A wide character that does not fit leaves a column.
		n = width(s)
	}
	return s + strings.Repeat(" ", max(w-n, 0))
}

// right is fit with the text at the right edge.
func (t Theme) right(s string, w int) string {
	if n := width(s); n < w {
		return strings.Repeat(" ", w-n) + s
	}
	return t.fit(s, w)
}

// cut is fit without the padding.
func (t Theme) cut(s string, w int) string {
	if width(s) <= w {
		return s
	}
	return ansi.Truncate(s, max(w, 0), t.more)
}

// wrap breaks clean text at spaces into rows of at most w columns, and within a
// word that is longer than a row.
func wrap(s string, w int) []string {
	words := strings.Fields(s)
	if w <= 0 || len(words) == 0 {
		return nil
	}
	for i, word := range words {
		if width(word) > w {
			words[i] = ansi.Hardwrap(word, w, true)
		}
	}
	return report.Wrap(strings.Join(words, " "), w)
}

// unknown stands for what is not known. It is never a zero.
const unknown = "-"

// number is a count in at most six columns.
func number(n uint64) string {
	unit, name := uint64(1), ""
	switch {
	case n >= 1e12:
		unit, name = 1e12, "T"
	case n >= 1e9:
		unit, name = 1e9, "G"
	case n >= 1e6:
		unit, name = 1e6, "M"
	}
	if unit > 1 && n < 100*unit {
		return fmt.Sprintf("%d.%d%s", n/unit, n%unit*10/unit, name)
	}
	return strconv.FormatUint(n/unit, 10) + name
}

// rate is a number per second; small ones keep a decimal.
func rate(f float64) string {
	switch {
	case math.IsNaN(f) || f < 0:
		return unknown
	case f == 0:
		return "0"
	case f < 0.05:
		return "<0.1"
	case f < 10:
		return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
	case f < math.MaxInt64:
		return number(uint64(f + 0.5))
	}
	return unknown
}

func count(c model.Count) string {
	if !c.Known {
		return unknown
	}
	return number(c.N)
}

// age is how long ago something was, in one unit and coarse, so that it seldom
// changes: <10s, 40s, 3m, 2h, 4d.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return unknown
	case d < 10*time.Second:
		return "<10s"
	case d < time.Minute:
		return strconv.Itoa(int(d/(10*time.Second))*10) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + "h"
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + "d"
}

func clock(t time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return t.Format("15:04:05")
}
