// Package iptables reads the rules of the node's IP layer with their counters:
// iptables in both its backends, and what nft itself holds in the families
// ip, ip6 and inet.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

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

// Reader reads rules again and again. Those of nft it decodes when they have changed: else
// it reads what they counted. It is safe for concurrent use.
type Reader struct {
	mu   sync.Mutex
	last map[nftables.TableFamily]family
	// parts stay while the ruleset changes.
	parts nft.Parts
}

// family is what was decoded of one, at a generation of the ruleset.
type family struct {
	generation uint32
	Tables
}

// Read reads the rules of both backends in the namespace, which is that of nft's
// socket. Detail says how many each holds. With an error, what could be read is
// returned too.
func (r *Reader) Read(ctx context.Context, ns *netns.NS, kernel *kmod.Kernel, c *dump.Netfilter) (t Tables, detail string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named, err := openSets(ns)
	if err != nil {
		return t, "", fmt.Errorf("ask for the names of sets: %w", err)
	}
	defer func() { err = errors.Join(err, named.close()) }()
	if r.parts == nil {
		r.parts = nft.Parts{}
	}
	known := func(f nftables.TableFamily) (uint32, int) { return r.last[f].generation, len(r.last[f].Rules) }
	last := map[nftables.TableFamily]family{}
	held, err := nft.Read(ctx, c, known, r.parts, func(f nftables.TableFamily, set nft.Ruleset) int {
		asked := len(named.names)
		got := fromSet(set, f, named.name)
		if set.Counts != nil {
			got.Rules, got.Sets = counted(r.last[f].Rules, set.Counts), r.last[f].Sets
		}
		if len(named.names) == asked {
			// Sets of ipset may change their names without a new generation.
			last[f] = family{set.Generation, got}
		}
		t.add(got)
		return len(got.Rules)
	}, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet)
	r.last = nil
	if err == nil {
		r.last = last
	}
	legacy, more, failed := readLegacy(ns, kernel, named.name)
	t.add(legacy)
	return t, held + "; " + more, errors.Join(err, failed)
}

// counted are rules with what they have counted by now. Both are of one generation, so they
// are in one order.
func counted(rules []model.PacketRule, counts []model.Counter) []model.PacketRule {
	rules = slices.Clone(rules)
	for i := range min(len(rules), len(counts)) {
		c := &rules[i].Counter
		c.Packets, c.Bytes = counts[i].Packets, counts[i].Bytes
	}
	return rules
}
