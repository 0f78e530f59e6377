package catalogue_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/catalogue"
	"github.com/lasthop/lasthop/probe/words"
)

var update = flag.Bool("update", false, "write what pages say of their kinds to the docs")

// Every kind has a whole page.
func TestPages(t *testing.T) {
	for _, p := range catalogue.Pages() {
		about := words.About(string(p.Code))
		texts := []string{p.Title, p.Meaning, p.Evidence, p.Fix, about["shows"], about["hides"], about["decides"]}
		if slices.Contains(texts, "") || strings.Contains(strings.Join(texts[4:], ""), "|") || p.Severity.Rank() < 0 {
			t.Errorf("%s has no whole page: %+v", p.Code, p)
		}
		if strings.HasSuffix(p.Title, ".") {
			t.Errorf("the title of %s ends with a full stop", p.Code)
		}
	}
}

// The docs say what the pages do.
func TestDocs(t *testing.T) {
	pages := slices.Clone(catalogue.Pages())
	var b strings.Builder
	b.WriteString("# Findings\n\nEach page says what a finding means, what proves it, and how to fix it.\n")
	for _, p := range pages {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n### Meaning\n\n%s\n\n### Evidence\n\n%s\n\n### Fix\n\n%s\n", p.Code, p.Title, p.Meaning, p.Evidence, p.Fix)
	}
	generated(t, "../../docs/findings.md", regexp.MustCompile(`(?s).*`), b.String())
	b.Reset()
	slices.SortFunc(pages, func(a, b catalogue.Page) int { return cmp.Compare(a.Code, b.Code) })
	for _, p := range pages {
		about := words.About(string(p.Code))
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", p.Code, about["shows"], about["hides"], about["decides"])
	}
	generated(t, "../../docs/accuracy.md", regexp.MustCompile("(?m)(^\\| `\\w+` \\| [^|\\n]+ \\| [^|\\n]+ \\| [^|\\n]+ \\|\\n)+"), b.String())
}

// generated compares a part of a file with what it should be, or writes it.
func generated(t *testing.T, path string, part *regexp.Regexp, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := part.FindIndex(text)
	if at == nil {
		t.Fatalf("%s has no place for %q", path, want)
	}
	if *update {
		if err := os.WriteFile(path, slices.Concat(text[:at[0]], []byte(want), text[at[1]:]), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(text[at[0]:at[1]]) != want {
		t.Errorf("%s says something else than probe/words/pages: write it with -update", path)
	}
}
