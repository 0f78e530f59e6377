// Package ebtables reads the rules that bridges apply to frames, with their counters: those of ebtables-nft and
// nft's own of the family bridge, by nfnetlink dumps (package nft), and those of legacy ebtables, by getsockopt
// (EBT_SO_GET_INFO, EBT_SO_GET_ENTRIES). It takes CAP_NET_ADMIN.
package ebtables

import (
	"context"
	"errors"
	"slices"

	"github.com/google/nftables"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Tables holds rules and their chains.
type Tables struct {
	Rules  []model.FrameRule
	Chains []model.Chain
}

// Read reads the rules of both backends in the namespace, which is that of nft's socket. Detail says how many
// each holds, for people. With an error, what could be read is returned too.
func Read(ctx context.Context, ns *netns.NS, kernel *kmod.Kernel, c *dump.Netfilter) (t Tables, detail string, err error) {
	held, err := nft.Read(ctx, c, nil, nil, func(_ nftables.TableFamily, set nft.Ruleset) int {
		t = fromSet(set)
		return len(t.Rules)
	}, nftables.TableFamilyBridge)
	legacy, more, failed := readLegacy(ns, kernel)
	t.Rules, t.Chains = append(t.Rules, legacy.Rules...), append(t.Chains, legacy.Chains...)
	return t, held + "; " + more, errors.Join(err, failed)
}

var tableNames = []string{"filter", "nat", "broute"}

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

func fromSet(set nft.Ruleset) Tables {
	var t Tables
	native, chains := map[string]bool{}, map[[2]string]int{}
	for _, ch := range set.Chains {
		hook := hookName(ch)
		c := model.Chain{
			Backend: model.NFT, Family: "bridge", Table: ch.Table, Name: ch.Name,
			Hook: hook, Priority: ch.Priority, Counter: ch.Counter,
		}
		if hook != "" {
			c.Policy = model.Either(ch.Accept, string(model.TargetAccept), string(model.TargetDrop))
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
		rule := decoded(&r, place[at], native[r.Table])
		// ebtables-nft keeps the policy of a chain without a hook as the chain's last rule, marked in its user data.
		const policy = 1 // UDATA_TYPE_EBTABLES_POLICY
		if i, ok := chains[at]; ok && len(r.UserData) > 0 && r.UserData[0] == policy {
			t.Chains[i].Policy, t.Chains[i].Counter = string(rule.Target), rule.Counter
			continue
		}
		t.Rules = append(t.Rules, rule)
	}
	return t
}

func decoded(r *nft.Rule, place int, native bool) model.FrameRule {
	b := builder{FrameRule: model.FrameRule{
		Backend: model.NFT, Table: r.Table, Chain: r.Chain, Number: place, Handle: r.Handle, Native: native,
	}}
	for _, item := range r.Items {
		b.item(item)
	}
	return b.build()
}

// One is a rule by itself. native says that ebtables did not write it.
func One(r *nft.Rule, native bool) model.FrameRule {
	return decoded(r, 1, native || !slices.Contains(tableNames, r.Table))
}
