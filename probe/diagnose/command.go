package diagnose

import (
	"fmt"

	"github.com/lasthop/lasthop/probe/model"
)

// deleteFrameRule is the command that deletes a bridge rule, with the variant
// of ebtables that holds it.
func deleteFrameRule(r *model.FrameRule) string {
	if r.Native {
		return deleteByHandle("bridge", r.Table, r.Chain, r.Handle)
	}
	return fmt.Sprintf("%s -t %s -D %s %s", ebtables(r), r.Table, r.Chain, r.Text)
}

// ebtables is the variant that holds the rule.
func ebtables(r *model.FrameRule) string {
	switch r.Backend {
	case model.NFT:
		return "ebtables-nft"
	case model.Legacy:
		return "ebtables-legacy"
	}
	return "ebtables"
}

// deletePacketRule is the command that deletes a rule of IP's tables.
func deletePacketRule(r *model.PacketRule) string {
	if r.Native {
		family := map[int]string{4: "ip", 6: "ip6"}[r.Family]
		if family == "" {
			family = "inet"
		}
		return deleteByHandle(family, r.Table, r.Chain, r.Handle)
	}
	return fmt.Sprintf("%s -t %s -D %s %s", iptables(r), r.Table, r.Chain, r.Text)
}

// deleteByHandle deletes a rule that nft wrote: it takes no text.
func deleteByHandle(family, table, chain string, handle uint64) string {
	return fmt.Sprintf("nft delete rule %s %s %s handle %d", family, table, chain, handle)
}

// iptables is the tool that edits the rule's table.
func iptables(r *model.PacketRule) string {
	tool := "iptables"
	if r.Family == 6 {
		tool = "ip6tables"
	}
	if r.Backend == model.Legacy {
		return tool + "-legacy"
	}
	return tool + "-nft"
}
