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

// clean makes text from outside fit to be drawn: control characters, and those
// that turn the direction of writing, become escapes, as in the reports. So do
// characters that are made of several, or that terminals do not agree about how
// wide they are: they would break the columns.
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
		if w > 0 && w == ansi.StringWidthWc(c) && alone(c) {
			b.WriteString(c)
		} else {
			for _, r := range c {
				escape(&b, r)
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

func escape(b *strings.Builder, r rune) {
	switch {
	case r < utf8.RuneSelf:
		b.WriteRune(r)
	case r < 0x10000:
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		fmt.Fprintf(b, `\U%08x`, r)
	}
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// plainASCII replaces what is beyond 7 bits by as many question marks as it is
// wide.
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

// width is how many columns text takes; styles take none.
func width(s string) int {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return ansi.StringWidth(s)
		}
	}
	return len(s)
}

// fit makes s exactly w columns wide; what is cut is marked.
func (t Theme) fit(s string, w int) string {
	if w <= 0 {
		return ""
	}
	n := width(s)
	if n > w {
		s = ansi.Truncate(s, w, t.more)
		// A wide character that did not fit leaves a column.
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
	if w <= 0 {
		return ""
	}
	if width(s) > w {
		return ansi.Truncate(s, w, t.more)
	}
	return s
}

// wrap breaks clean text into rows of at most w columns: at spaces alone, so
// that commands stay readable, and within a word that is longer than a row.
func wrap(s string, w int) []string {
	if w <= 0 {
		return nil
	}
	var rows []string
	row, used := "", 0
	flush := func() {
		if used > 0 {
			rows = append(rows, row)
		}
		row, used = "", 0
	}
	for _, word := range strings.Fields(s) {
		n := width(word)
		if used > 0 && used+1+n > w {
			flush()
		}
		for n > w {
			part := ansi.Truncate(word, w, "")
			if part == "" {
				break
			}
			rows = append(rows, part)
			word = word[len(part):]
			n = width(word)
		}
		if used > 0 {
			row += " "
			used++
		}
		row += word
		used += n
	}
	flush()
	return rows
}

// unknown is what is drawn for what is not known. It is never a zero.
const unknown = "-"

// number is a count in at most six columns.
func number(n uint64) string {
	switch {
	case n < 1e6:
		return strconv.FormatUint(n, 10)
	case n < 1e9:
		return scaled(float64(n)/1e6) + "M"
	case n < 1e12:
		return scaled(float64(n)/1e9) + "G"
	}
	return scaled(float64(n)/1e12) + "T"
}

func scaled(f float64) string {
	if f < 100 {
		return strconv.FormatFloat(math.Floor(f*10)/10, 'f', 1, 64)
	}
	return strconv.FormatFloat(math.Floor(f), 'f', 0, 64)
}

// rate is a number a second; small ones keep a digit behind the point.
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

// age is how long ago something was, in one unit and coarse, so that it
// changes seldom: 5s, 40s, 3m, 2h, 4d.
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

// Span is a length of time as people say it: 10s, 1m, 5m, 1h.
func Span(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return strconv.Itoa(int(d.Round(time.Second)/time.Second)) + "s"
	case d < time.Hour && d%time.Minute == 0, d >= time.Minute && d < time.Hour && d > 10*time.Minute:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + "m" + strconv.Itoa(int(d%time.Minute/time.Second)) + "s"
	}
	return strconv.Itoa(int(d/time.Hour)) + "h"
}

func clock(t time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return t.Format("15:04:05")
}

func plural[N int | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
