package report

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Clean makes text from outside safe to draw: it escapes whatever is not a
// visible character or a plain space. That covers control characters of both
// sets, escape codes, line ends, marks that change the direction of writing,
// invisible characters, and bytes that are not UTF-8. Clean text stays as it is.
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

// escape rewrites the characters of a JSON or YAML document that would act on a
// terminal as escapes that its reader decodes again. The encoders leave such
// characters only inside quoted strings; wide writes one beyond 16 bits.
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
			rows = append(rows, row)
			row, used = "", 0
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
