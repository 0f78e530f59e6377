package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/probe/catalogue"
)

// TestLocale: without UTF-8 all texts and errors have 7 bits, and the documents are the same as with it.
func TestLocale(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "knöten.rec"), filepath.Join(dir, "far.rec")}
	for i, file := range files {
		if err := (talking{busy: 50, small: 20, dead: true}).record(file, i+1, recordedAt{from: 20, to: 50}); err != nil {
			t.Fatal(err)
		}
	}
	file, both := files[0], []string{"check", "--replay", files[0], "--replay", files[1], "-o"}
	both = slices.Clip(both)
	const pod, far = "10.2.1.10", "10.2.2.10"
	lines := [][]string{
		{"findings"}, {"doctor"}, {"doctor", "-o", "wide"}, {"version"}, {"lab", "list"}, {"demo", "--list"},
		{"completion", "bash"}, {"__complete", "check", "-"}, {"__complete", "findings", ""}, {"__complete", "demo", ""},
		{"chekc"}, {"check", "--for", "…"}, {"check", "pöd", "--replay", file}, {"check", "--replay", "—"}, {"findings", "Ü"},
		{"check", "--replay", file}, {"check", "--replay", file, "-o", "wide"}, {"check", "--replay", file, "-o", "brief"},
		{"explain", pod, "--to", far + ":5432/tcp", "--replay", file}, {"explain", pod, "--to", far, "--replay", file, "-o", "wide"},
		{"check", "--replay", file, "--github"}, {"npd", "--dir", "—"},
		append(both, "text"), append(both, "wide"),
	}
	for _, p := range catalogue.Pages() {
		lines = append(lines, []string{"findings", string(p.Code)})
	}
	var help func(*cobra.Command)
	help = func(cmd *cobra.Command) {
		lines = append(lines, append(strings.Fields(cmd.CommandPath())[1:], "--help"))
		for _, sub := range cmd.Commands() {
			help(sub)
		}
	}
	help((&app{}).root())
	for _, locale := range few([]string{"C", "POSIX", "", "de_DE.ISO-8859-1"}, 1) {
		t.Setenv("LC_ALL", "")
		t.Setenv("LANG", locale)
		for _, line := range lines {
			var out bytes.Buffer
			run(line, &out, &out)
			if i := bytes.IndexFunc(out.Bytes(), func(r rune) bool { return r > unicode.MaxASCII }); out.Len() == 0 || i >= 0 {
				t.Errorf("LANG=%s lasthop %s has %q", locale, strings.Join(line, " "), out.Bytes()[max(i, 0):])
			}
		}
	}
	for _, format := range []string{"json", "yaml", "ndjson", "markdown"} {
		t.Setenv("LC_ALL", "C")
		var plain, rich bytes.Buffer
		line := append(both, format)
		run(line, &plain, &plain)
		t.Setenv("LC_ALL", "C.UTF-8")
		run(line, &rich, &rich)
		if !bytes.Equal(plain.Bytes(), rich.Bytes()) || !bytes.ContainsFunc(rich.Bytes(), func(r rune) bool { return r > unicode.MaxASCII }) {
			t.Errorf("%s of LC_ALL=C:\n%s\nof UTF-8:\n%s", format, plain.Bytes(), rich.Bytes())
		}
	}
}
