// Package iptables reads the rules of the node's IP layer with their counters:
// iptables in both its backends, and what nft itself holds in the families
// ip, ip6 and inet.
package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// hookNames are the hooks of the IP layer by number, as iptables calls them.
var hookNames = [hooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// Tables are rules and the chains they stand in.
type Tables struct {
	Rules  []model.PacketRule
	Chains []model.Chain
	// Sets are those of nft that Rules look something up in.
	Sets []model.Set
}

func (t *Tables) add(o Tables) {
	t.Rules = append(t.Rules, o.Rules...)
	t.Chains = append(t.Chains, o.Chains...)
	t.Sets = append(t.Sets, o.Sets...)
}

// Read reads the rules of both backends in the namespace, which is that of nft's
// socket. Detail says how many each holds. With an error, what could be read is
// returned too.
func Read(ctx context.Context, ns *netns.NS, kernel *kmod.Kernel, c *dump.Netfilter) (t Tables, detail string, err error) {
	named, err := openSets(ns)
	if err != nil {
		return t, "", fmt.Errorf("ask for the names of sets: %w", err)
	}
	defer func() { err = errors.Join(err, named.close()) }()
	held, err := nft.Read(ctx, c, func(family nftables.TableFamily, set nft.Ruleset) int {
		got := fromSet(set, family, named.name)
		t.add(got)
		return len(got.Rules)
	}, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet)
	legacy, more, failed := readLegacy(ns, kernel, named.name)
	t.add(legacy)
	return t, held + "; " + more, errors.Join(err, failed)
}
