package view

import (
	"cmp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

func clean(s string) string { return report.CleanColumns(s) }

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// plain is text as the terminal shows it.
func (t Theme) plain(s string) string { return model.Either(t.ASCII, plainASCII(s), s) }

// plainASCII replaces each character beyond 7 bits with one like it, or as many question marks as it is wide.
func plainASCII(s string) string {
	if ascii(s) {
		return s
	}
	var b strings.Builder
	for _, r := range strings.ReplaceAll(s, more, "~") {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			b.WriteString(cmp.Or(report.PlainSign(r), strings.Repeat("?", ansi.StringWidth(string(r)))))
		}
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
		s = ansi.Truncate(s, w, more)
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
	return ansi.Truncate(s, max(w, 0), more)
}

// wrap breaks clean text at spaces into rows of at most w columns, and within a word that is longer than a row.
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

func number(n uint64) string { return report.SI(n) }

// rate is a number per second; small ones keep a decimal.
func rate(f float64) string { return report.Rate(f) }

func count(c model.Count) string { return model.Either(!c.Known, unknown, number(c.N)) }

// age is how long ago something was, in one unit and coarse, so that it seldom changes: <10s, 40s, 3m, 2h, 4d.
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

func clock(t time.Time) string { return model.Either(t.IsZero(), unknown, t.Format("15:04:05")) }
