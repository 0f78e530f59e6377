package catalogue_test

import (
	"os"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/catalogue"
)

// Every kind has a whole page, and every page is of a kind.
func TestPages(t *testing.T) {
	pages := catalogue.Pages()
	for _, p := range pages {
		if p.Title == "" || p.Meaning == "" || p.Evidence == "" || p.Fix == "" || p.Severity.Rank() < 0 {
			t.Errorf("%s has no whole page: %+v", p.Code, p)
		}
		if strings.HasSuffix(p.Title, ".") {
			t.Errorf("the title of %s ends with a full stop", p.Code)
		}
	}
	text, err := os.ReadFile("findings.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n## "); n != len(pages) {
		t.Errorf("%d pages of %d kinds", n, len(pages))
	}
}
