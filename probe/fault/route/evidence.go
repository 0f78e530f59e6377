package route

import (
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// say is what a page says of a part of a finding.
func say(page string, facts words.Facts) (f model.Finding) {
	words.Put(page, facts, &f)
	return f
}
