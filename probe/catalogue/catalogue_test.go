package catalogue_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"reflect"
	"regexp"
	"runtime"
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

// families are the sections of the index, by the package of a kind.
var families = []struct{ name, title string }{
	{"link", "Links and NICs"}, {"bridge", "Bridges"}, {"neighbor", "Neighbours and MACs"}, {"route", "Routes"}, {"fabric", "The cloud's network"},
	{"nat", "NAT"}, {"service", "Services"}, {"policy", "Policies, filters and connection tracking"}, {"pod", "Inside the pod"}, {"below", "Queues and devices below the hooks"},
	{"silence", "What nothing else explains"},
}

// The docs say what the pages do.
func TestDocs(t *testing.T) {
	const dir = "../../docs/findings/"
	pages := slices.Clone(catalogue.Pages())
	slices.SortFunc(pages, func(a, b catalogue.Page) int { return cmp.Compare(a.Code, b.Code) })
	all := regexp.MustCompile(`(?s).*`)
	var table strings.Builder
	index := map[string]string{}
	for _, p := range pages {
		about := words.About(string(p.Code))
		generated(t, dir+string(p.Code)+".md", all, fmt.Sprintf("# %s\n\n%s (%s)\n\n## Meaning\n\n%s\n\n## Evidence\n\n%s\n\n"+
			"| this node shows | it cannot show | what decides |\n|---|---|---|\n| %s | %s | %s |\n\n"+
			"## Fix\n\n%s\n\n## Verify\n\n    %s\n\n[All findings](README.md) · [what one node can know](../accuracy.md)\n",
			p.Code, capital(p.Title), p.Severity, p.Meaning, capital(p.Evidence), about["shows"], about["hides"], about["decides"], capital(p.Fix), p.Verify()))
		family := path.Base(strings.SplitN(strings.TrimPrefix(runtime.FuncForPC(reflect.ValueOf(p.Find).Pointer()).Name(), "github.com/"), ".", 2)[0])
		index[family] += fmt.Sprintf("| [%s](%s.md) | %s | %s |\n", p.Code, p.Code, p.Severity, p.Title)
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", p.Code, about["shows"], about["hides"], about["decides"])
	}
	var b strings.Builder
	b.WriteString("# Findings\n\nEach page says what a finding means, what proves it, and how to fix it. `lasthop findings CODE` prints the same.\n")
	for _, f := range families {
		fmt.Fprintf(&b, "\n## %s\n\n| code | severity | what |\n|---|---|---|\n%s", f.title, index[f.name])
		delete(index, f.name)
	}
	if len(index) > 0 {
		t.Errorf("no section for %v", index)
	}
	generated(t, dir+"README.md", all, b.String())
	generated(t, "../../docs/accuracy.md", regexp.MustCompile("(?m)(^\\| `\\w+` \\| [^|\\n]+ \\| [^|\\n]+ \\| [^|\\n]+ \\|\\n)+"), table.String())
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != len(pages)+1 {
		t.Errorf("%d files in docs/findings for %d findings: %v", len(files), len(pages), err)
	}
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// generated compares a part of a file with what it should be, or writes it.
func generated(t *testing.T, file string, part *regexp.Regexp, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !(*update && errors.Is(err, os.ErrNotExist)) {
		t.Fatal(err)
	}
	at := part.FindIndex(text)
	if at == nil {
		t.Fatalf("%s has no place for %q", file, want)
	}
	if *update {
		if err := os.WriteFile(file, slices.Concat(text[:at[0]], []byte(want), text[at[1]:]), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(text[at[0]:at[1]]) != want {
		t.Errorf("%s says something else than probe/words/pages: write it with -update", file)
	}
}
