package route

import (
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// dropEvidence are the pairs of addresses that lost most.
func dropEvidence(drops []*model.Drop) []model.Evidence {
	return words.Say("drops", words.Facts{"lost": node.MostDropped(drops)})
}
