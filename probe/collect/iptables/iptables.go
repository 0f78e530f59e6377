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
	t.Rules, t.Chains, t.Sets = join(t.Rules, o.Rules), join(t.Chains, o.Chains), join(t.Sets, o.Sets)
}

// join joins lists that stay as they are.
func join[T any](a, b []T) []T {
	if len(b) == 0 {
		return a
	}
	return slices.Concat(a, b)
}

// Reader reads rules again and again. Those of nft it decodes when they have changed: else
// it reads what they counted, of those that packets may have come to. While nothing
// changes and nothing counts, it returns the same lists. It is safe for concurrent use.
type Reader struct {
	mu   sync.Mutex
	last map[nftables.TableFamily]family
	// joined are the families' tables in one.
	joined Tables
	// parts stay while the ruleset changes.
	parts nft.Parts
}

// family is what was decoded of one.
type family struct {
	counters *nft.Counters
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
	known := func(f nftables.TableFamily) *nft.Counters { return r.last[f].counters }
	last, same := map[nftables.TableFamily]family{}, true
	held, err := nft.Read(ctx, c, known, r.parts, func(f nftables.TableFamily, set nft.Ruleset) int {
		asked := len(named.names)
		now := family{set.Counters, r.last[f].Tables}
		if !set.Same {
			now.Tables = fromSet(set, f, named.name)
		}
		same = same && set.Same && !set.Counters.Changed
		if len(named.names) > asked {
			// Sets of ipset may change their names without a new generation.
			now.counters = nil
		}
		last[f] = now
		return len(now.Rules)
	}, families...)
	if t = r.joined; !same || len(r.last) != len(last) {
		t = joined(last)
	}
	r.last, r.joined = nil, Tables{}
	if err == nil {
		r.last, r.joined = last, t
	}
	legacy, more, failed := readLegacy(ns, kernel, named.name)
	t.add(legacy)
	return t, held + "; " + more, errors.Join(err, failed)
}

// families are those of nft that packets of the IP layer pass.
var families = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet}

// joined are the tables of all families, with what they have counted by now, in lists of
// their own, of which each family then has its part.
func joined(of map[nftables.TableFamily]family) Tables {
	var rules [][]model.PacketRule
	var chains [][]model.Chain
	var sets [][]model.Set
	for _, f := range families {
		rules, chains, sets = append(rules, of[f].Rules), append(chains, of[f].Chains), append(sets, of[f].Sets)
	}
	all := Tables{Rules: slices.Concat(rules...), Chains: slices.Concat(chains...), Sets: slices.Concat(sets...)}
	rest := all
	for _, name := range families {
		f := of[name]
		f.Rules, rest.Rules = rest.Rules[:len(f.Rules)], rest.Rules[len(f.Rules):]
		f.Chains, rest.Chains = rest.Chains[:len(f.Chains)], rest.Chains[len(f.Chains):]
		if f.counters != nil {
			f.count()
		}
		if _, read := of[name]; read {
			of[name] = f
		}
	}
	return all
}

// count sets what the rules and chains have counted by now.
func (f *family) count() {
	for i := range f.Rules {
		c := &f.Rules[i].Counter
		c.Packets, c.Bytes = f.counters.Rules[i].Packets, f.counters.Rules[i].Bytes
	}
	for i := range f.Chains {
		if f.Chains[i].Hook != "" {
			f.Chains[i].Counter = f.counters.Chains[i]
		}
	}
}
