package report

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Clean makes untrusted text safe to draw: it escapes whatever is not a visible character or a plain space.
// That covers control characters of both sets, escape codes, line ends, marks that change the direction of
// writing, invisible characters, and bytes that are not UTF-8. Clean text stays as it is.
func Clean(s string) string {
	if clean(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			writeEscape(&b, r)
		}
		s = s[n:]
	}
	return b.String()
}

func clean(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

func writeEscape(b *strings.Builder, r rune) {
	if r < 0x10000 {
		fmt.Fprintf(b, `\u%04x`, r)
		return
	}
	fmt.Fprintf(b, `\U%08x`, r)
}

// escape rewrites the characters of a JSON or YAML document that would act on a terminal as escapes that its reader
// decodes again. The encoders leave such characters only inside quoted strings; wide writes one beyond 16 bits.
func escape(doc []byte, wide func(*strings.Builder, rune)) string {
	var b strings.Builder
	for _, r := range string(doc) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x10000:
			writeEscape(&b, r)
		default:
			wide(&b, r)
		}
	}
	return b.String()
}

// CleanColumns is Clean for text that stands in columns. Characters that are made of several, or
// whose width terminals do not agree about, become escapes as well.
func CleanColumns(s string) string {
	s = Clean(s)
	if strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
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

// alone reports whether c is one character that joins no other, before or behind it.
func alone(c string) bool {
	before, _ := ansi.FirstGraphemeCluster(" "+c, ansi.GraphemeWidth)
	behind, _ := ansi.FirstGraphemeCluster(c+" ", ansi.GraphemeWidth)
	return utf8.RuneCountInString(c) == 1 && before == " " && behind == c
}

// Width is how many columns text takes on a terminal; styles take none.
func Width(s string) int {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return ansi.StringWidth(s)
		}
	}
	return len(s)
}

// Wrap breaks s at spaces alone, so that commands stay readable. No row is wider
// than width unless one word is. There is always at least one row.
func Wrap(s string, width int) []string {
	var rows []string
	row, used := "", 0
	for _, word := range strings.Fields(s) {
		n := Width(word)
		if used > 0 && used+1+n > width {
			rows, row, used = append(rows, row), "", 0
		}
		if used > 0 {
			row += " "
			used++
		}
		row += word
		used += n
	}
	return append(rows, row)
}
