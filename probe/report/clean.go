package report

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes text from outside safe to draw: whatever is not a visible
// character or a plain space is written as its escape. That covers control
// characters of both sets, escape codes, line ends, marks that turn the
// direction of writing, invisible characters, and bytes that are not UTF-8.
// Clean text stays as it is.
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
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

func clean(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// escape rewrites the characters of a JSON or YAML document that would act on
// a terminal as escapes that its reader turns back. The encoders leave such
// characters only inside quoted strings; wide writes one beyond 16 bits.
func escape(doc []byte, wide func(*strings.Builder, rune)) string {
	var b strings.Builder
	for _, r := range string(doc) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			wide(&b, r)
		}
	}
	return b.String()
}
