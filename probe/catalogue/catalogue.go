// Package catalogue says what each kind of finding means.
package catalogue

import (
	"sync"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/words"
)

// Page is a kind of finding in words.
type Page struct {
	fault.Kind
	// Title is a line, Meaning a paragraph.
	Title, Meaning string
	// Evidence says what proves it, Fix what mends it.
	Evidence, Fix string
}

// Pages are those of all kinds, in the order in which they are judged.
var Pages = sync.OnceValue(func() (out []Page) {
	for _, k := range diagnose.Kinds() {
		t := words.About(string(k.Code))
		out = append(out, Page{k, t["title"], t["meaning"], t["evidence"], t["fix"]})
	}
	return out
})
