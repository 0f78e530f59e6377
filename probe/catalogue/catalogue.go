// Package catalogue says what each kind of finding means.
package catalogue

import (
	_ "embed"
	"strings"
	"sync"

	"github.com/lasthop/lasthop/probe/diagnose"
)

// Page is a kind of finding in words.
type Page struct {
	diagnose.Kind
	// Title is a line, Meaning a paragraph.
	Title, Meaning string
	// Evidence says what proves it, Fix what mends it.
	Evidence, Fix string
}

//go:embed findings.md
var findings string

// Pages are those of all kinds, in the order in which they are judged.
var Pages = sync.OnceValue(func() []Page {
	texts := map[string]map[string]string{}
	for _, page := range strings.Split(findings, "\n## ")[1:] {
		code, rest, _ := strings.Cut(page, "\n")
		texts[code] = map[string]string{}
		for i, section := range strings.Split(rest, "\n### ") {
			name, text := "Title", section
			if i > 0 {
				name, text, _ = strings.Cut(section, "\n")
			}
			texts[code][name] = strings.Join(strings.Fields(text), " ")
		}
	}
	var out []Page
	for _, k := range diagnose.Kinds() {
		t := texts[string(k.Code)]
		out = append(out, Page{k, t["Title"], t["Meaning"], t["Evidence"], t["Fix"]})
	}
	return out
})
