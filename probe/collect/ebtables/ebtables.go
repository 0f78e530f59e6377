// Package ebtables reads the rules that bridges apply to frames, with their
// counters: those of ebtables-nft and nft's own of the family bridge, by
// nfnetlink dumps (package nft). It takes CAP_NET_ADMIN.
//
// Legacy ebtables is a gap: its tables are detected by their modules below
// /sys/module, but their rules are not read, and the result is partial.
package ebtables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/model"
)

// Tables holds rules and their chains.
type Tables struct {
	Rules  []model.FrameRule
	Chains []model.Chain
}

// ErrLegacy says that legacy tables exist, whose rules are not in the result.
var ErrLegacy = errors.New("legacy ebtables rules are not read")

// Read reads the rules. Detail says how many there are, for people. With an error,
// what could be read is returned too.
func Read(ctx context.Context, c *dump.Conn) (t Tables, detail string, err error) {
	if nft.Present() {
		set, failed := nft.Read(ctx, c, nftables.TableFamilyBridge)
		t, err = fromSet(set), failed
	}
	detail = fmt.Sprintf("nft: %d rules", len(t.Rules))
	if tables := legacyTables(); len(tables) > 0 {
		return t, detail, errors.Join(err, fmt.Errorf("%w: table %s", ErrLegacy, strings.Join(tables, ", ")))
	}
	return t, detail + "; legacy: not loaded", err
}

// tableNames are the tables that ebtables creates.
var tableNames = []string{"filter", "nat", "broute"}

// legacyTables lists the tables of legacy ebtables that are loaded. getsockopt
// would load the others.
func legacyTables() []string {
	var out []string
	for _, name := range tableNames {
		if _, err := os.Stat("/sys/module/ebtable_" + name); err == nil {
			out = append(out, name)
		}
	}
	return out
}

// hookNames are the hooks of the family bridge by number, as ebtables calls them.
// The chain of broute is on the first hook and comes before all others.
var hookNames = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "BROUTING"}

// hookName returns the name of a chain's hook, empty for a chain without one.
func hookName(c nft.Chain) string {
	switch {
	case !c.Base || c.Hook < 0 || c.Hook >= len(hookNames):
		return ""
	case c.Table == "broute" && c.Name == "BROUTING":
		return c.Name
	}
	return hookNames[c.Hook]
}

// isPolicy reports whether a rule is the policy of a chain without a hook, which
// ebtables-nft keeps as the chain's last rule, marked in its user data (type 1,
// UDATA_TYPE_EBTABLES_POLICY).
func isPolicy(r nft.Rule) bool {
	const policy = 1
	return len(r.UserData) > 0 && r.UserData[0] == policy
}

func fromSet(set nft.Ruleset) Tables {
	var t Tables
	native := map[string]bool{}
	chains := map[[2]string]int{}
	for _, ch := range set.Chains {
		hook := hookName(ch)
		c := model.Chain{
			Backend: model.NFT, Family: "bridge", Table: ch.Table, Name: ch.Name,
			Hook: hook, Priority: ch.Priority, Counter: ch.Counter,
		}
		if hook != "" {
			c.Policy = string(model.TargetDrop)
			if ch.Accept {
				c.Policy = string(model.TargetAccept)
			}
		}
		chains[[2]string{ch.Table, ch.Name}] = len(t.Chains)
		t.Chains = append(t.Chains, c)
		if !slices.Contains(tableNames, ch.Table) || ch.Base && hook != ch.Name {
			native[ch.Table] = true
		}
	}
	place := map[[2]string]int{}
	for _, r := range set.Rules {
		at := [2]string{r.Table, r.Chain}
		place[at]++
		b := builder{FrameRule: model.FrameRule{
			Backend: model.NFT, Table: r.Table, Chain: r.Chain, Number: place[at],
			Handle: r.Handle, Native: native[r.Table],
		}}
		for _, item := range r.Items {
			b.item(item)
		}
		rule := b.build()
		if i, ok := chains[at]; ok && isPolicy(r) {
			t.Chains[i].Policy, t.Chains[i].Counter = string(rule.Target), rule.Counter
			continue
		}
		t.Rules = append(t.Rules, rule)
	}
	return t
}
