//go:build unix

package main

import (
	"strings"
	"testing"
	"unicode"
)

// TestLocale: without UTF-8 the plugin's texts and errors have 7 bits.
func TestLocale(t *testing.T) {
	newAPI(t)
	t.Setenv("LC_ALL", "C")
	t.Setenv(observed, "node1=full,node2=well")
	t.Setenv(pretended, "0")
	for _, line := range [][]string{
		{"--help"}, {"--version"}, {"chéck"}, {"check"}, {"check", "nöde"}, {"check", "node1", "--for=…"}, {"replay", "—"},
		{"check", "node1", "node2"}, {"check", "node1", "node2", "--output=wide"}, {"explain", "pod/cart—"},
	} {
		r := plugin(t, line...)
		text := r.stdout + r.stderr
		if i := strings.IndexFunc(text, func(r rune) bool { return r > unicode.MaxASCII }); text == "" || i >= 0 {
			t.Errorf("%q has %q", line, text[max(i, 0):])
		}
	}
}
