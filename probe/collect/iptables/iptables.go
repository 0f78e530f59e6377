// Package iptables reads the rules of the node's IP layer with their counters: iptables in both its backends, and
// what nft itself holds in the families ip, ip6 and inet.
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

// Reader reads rules again and again. It decodes those that have changed: of the others it reads what they
// counted, and of nft's only those that packets may have come to. While nothing changes and nothing counts, it
// returns the same lists. It is safe for concurrent use.
type Reader struct {
	mu     sync.Mutex
	last   []part
	joined Tables
	// parts stay while the ruleset changes.
	parts nft.Parts
}

// source is a family of nft, or one of legacy iptables' tables.
type source struct{ family, table string }

// part is what was decoded of a source, and what it has counted by now. Of a source that
// was not read whole it has neither counters nor bytes, and is decoded the next time.
type part struct {
	source
	Tables
	// names are those of the ipsets in the rules, which may change while the rules do not.
	names    map[uint16]string
	counters *nft.Counters
	bytes    *table
	// rules and chains are the counters of those. Only of chains on a hook they are used.
	rules, chains []model.Counter
}

type reading struct {
	last, now []part
	named     *sets
	// same is whether each part is that of the last reading and has counted nothing.
	same bool
}

// known is what the last reading has of a source, if the ipsets still have their names.
func (r *reading) known(from source) part {
	for _, p := range r.last {
		if p.source == from && r.named.still(p.names) {
			return p
		}
	}
	return part{source: from, names: map[uint16]string{}}
}

func (r *reading) add(p part, same bool) { r.now, r.same = append(r.now, p), r.same && same }

// Read reads the rules of both backends in the namespace, which is that of nft's socket. Detail says how many
// each holds. With an error, what could be read is returned too.
func (r *Reader) Read(ctx context.Context, ns *netns.NS, kernel *kmod.Kernel, c *dump.Netfilter) (t Tables, detail string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named, err := openSets(ns)
	if err != nil {
		return t, "", fmt.Errorf("get set names: %w", err)
	}
	defer func() { err = errors.Join(err, named.close()) }()
	if r.parts == nil {
		r.parts = nft.Parts{}
	}
	now := &reading{last: r.last, named: named, same: true}
	held, err := now.nft(ctx, c, r.parts)
	legacy, failed := now.legacy(ns, kernel)
	if !now.same || len(now.now) != len(r.last) {
		r.joined = joined(now.now)
	}
	r.last = now.now
	return r.joined, held + "; " + legacy, errors.Join(err, failed)
}

// families are those of nft that packets of the IP layer pass.
var families = []nftables.TableFamily{
	nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet, nftables.TableFamilyNetdev,
}

func (r *reading) nft(ctx context.Context, c *dump.Netfilter, parts nft.Parts) (detail string, err error) {
	of := func(f nftables.TableFamily) part { return r.known(source{family: familyNames[f]}) }
	known := func(f nftables.TableFamily) *nft.Counters { return of(f).counters }
	detail, err = nft.Read(ctx, c, known, parts, func(f nftables.TableFamily, set nft.Ruleset) int {
		p := of(f)
		if !set.Same {
			p = part{source: p.source, names: map[uint16]string{}}
			p.Tables = fromSet(set, f, r.named.noting(p.names))
		}
		if p.counters = set.Counters; p.counters != nil {
			p.rules, p.chains = p.counters.Rules, p.counters.Chains
		}
		r.add(p, set.Same && !p.counters.Changed)
		return len(p.Rules)
	}, families...)
	for i := range r.now {
		if err != nil {
			r.now[i].counters = nil
		}
	}
	return detail, err
}

// joined are the tables of all parts, with what they have counted by now, in lists of
// their own, of which each part then has its own.
func joined(of []part) Tables {
	all := Tables{
		Rules:  slices.Concat(model.Map(of, func(p part) []model.PacketRule { return p.Rules })...),
		Chains: slices.Concat(model.Map(of, func(p part) []model.Chain { return p.Chains })...),
		Sets:   slices.Concat(model.Map(of, func(p part) []model.Set { return p.Sets })...),
	}
	rest := all
	for p := range model.Each(of) {
		p.Rules, rest.Rules = rest.Rules[:len(p.Rules)], rest.Rules[len(p.Rules):]
		p.Chains, rest.Chains = rest.Chains[:len(p.Chains)], rest.Chains[len(p.Chains):]
		for i, n := range p.rules {
			c := &p.Rules[i].Counter
			c.Packets, c.Bytes = n.Packets, n.Bytes
		}
		for i, n := range p.chains {
			if p.Chains[i].Hook != "" {
				p.Chains[i].Counter = n
			}
		}
	}
	return all
}
