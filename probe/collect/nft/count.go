package nft

import (
	"errors"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Counters are what the chains and rules of one family have counted, at one generation of the ruleset. Reading
// them again takes time for the chains that packets may have come to, not for all: a packet comes to a chain that
// is on no hook by a jump alone, and where the jump's rule counts, it has counted before.
type Counters struct {
	Generation uint32
	// Chains and Rules are in the order of Ruleset's.
	Chains []model.Counter
	Rules  []model.Counter
	// Changed is whether anything counted since the last reading.
	Changed bool

	// whole is whether all have to be read: the rules behind a jump may have been read before the jump.
	whole  bool
	chains []counted
	jumps  map[int]jump // by the place of their rule
}

// counted is a chain with the place of its rules. Those of one chain are in a row.
type counted struct {
	table, name string
	first, last int
	// always: packets may come to it unseen. counts: a rule in it has a counter.
	always, counts, base bool
	// of are the rules in it that jump.
	of []int
}

// jump is a rule that leads to another chain. It counts if a counter comes before the jump. moved is whether it
// had counted at the last reading since the one before, and came whether it had then or at the one before: a
// packet that it counted may have been on its way to the rules behind it, or these were read first.
type jump struct {
	to                  int
	counts, moved, came bool
}

// newCounters takes the counters of a ruleset that was read whole, nil where it is not consistent.
func newCounters(generation uint32, set Ruleset) *Counters {
	n := &Counters{Generation: generation, Changed: true, whole: true, jumps: map[int]jump{}}
	n.Rules = make([]model.Counter, len(set.Rules))
	place := map[[2]string]int{}
	for i, ch := range set.Chains {
		place[[2]string{ch.Table, ch.Name}] = i
		n.Chains = append(n.Chains, ch.Counter)
		n.chains = append(n.chains, counted{table: ch.Table, name: ch.Name, base: ch.Base, always: ch.Base})
	}
	mapped := map[string]bool{}
	for i, r := range set.Rules {
		at, ok := place[[2]string{r.Table, r.Chain}]
		if !ok {
			return nil
		}
		ch := &n.chains[at]
		if ch.last == 0 {
			ch.first = i
		}
		ch.last = i + 1
		counts := false
		for _, item := range r.Items {
			switch x := item.(type) {
			case model.Counter:
				n.Rules[i], counts, ch.counts = x, true, true
			case Verdict:
				if to, ok := place[[2]string{r.Table, x.Chain}]; ok && (x.Code == Jump || x.Code == Goto) {
					n.jumps[i], ch.of = jump{to: to, counts: counts}, append(ch.of, i)
				}
			case Match:
				mapped[r.Table] = mapped[r.Table] || x.Map
			}
		}
	}
	// Where a map decides, it may be any chain of its table.
	for i := range n.chains {
		n.chains[i].always = n.chains[i].always || mapped[n.chains[i].table]
	}
	return n
}

// perRequest is how many rules a dump of all has in the time of one chain's request.
const perRequest = 16

// socket is a dump.Conn.
type socket interface {
	Get(request uint16, body []byte, reply uint16, f func(m []byte) error) error
	Each(request uint16, body []byte, reply uint16, f func(m []byte) error) error
}

func (n *Counters) read(c socket, family nftables.TableFamily) error {
	n.Changed = false
	var next []int
	for i := range n.chains {
		ch := &n.chains[i]
		if ch.always {
			next = append(next, i)
		}
		if ch.base {
			if err := n.readPolicy(c, family, i); err != nil {
				return err
			}
		}
	}
	if n.whole {
		n.whole = false
		return n.readRules(c, header(family), 0, len(n.Rules))
	}
	seen, requests := make([]bool, len(n.chains)), 0
	for len(next) > 0 {
		i := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[i] {
			continue
		}
		seen[i] = true
		ch := &n.chains[i]
		if ch.counts {
			if requests++; requests > 1+len(n.Rules)/perRequest {
				return n.readRules(c, header(family), 0, len(n.Rules))
			}
			request := within(family, unix.NFTA_RULE_TABLE, ch.table, unix.NFTA_RULE_CHAIN, ch.name)
			if err := n.readRules(c, request, ch.first, ch.last); err != nil {
				return err
			}
		}
		for _, r := range ch.of {
			if j := n.jumps[r]; j.came || !j.counts {
				next = append(next, j.to)
			}
		}
	}
	return nil
}

// within requests what a chain or set of a table has, or the chain. The attributes hold the names.
func within(family nftables.TableFamily, tableAttr uint16, table string, attr uint16, name string) []byte {
	return dump.Append(dump.Append(header(family), tableAttr, append([]byte(table), 0)), attr, append([]byte(name), 0))
}

// readPolicy reads how many packets the policy of a chain on a hook decided on.
func (n *Counters) readPolicy(c socket, family nftables.TableFamily, i int) error {
	request := within(family, unix.NFTA_CHAIN_TABLE, n.chains[i].table, unix.NFTA_CHAIN_NAME, n.chains[i].name)
	err := c.Get(subsystem|unix.NFT_MSG_GETCHAIN, request, subsystem|unix.NFT_MSG_NEWCHAIN, func(m []byte) error {
		now, err := decodeChain(m)
		n.Changed, n.Chains[i] = n.Changed || now.Counter != n.Chains[i], now.Counter
		return err
	})
	return model.Either[error](errors.Is(err, unix.ENOENT), dump.ErrInterrupted, err)
}

// readRules reads the counters of the rules that a request is answered with.
func (n *Counters) readRules(c socket, request []byte, first, last int) error {
	i := first
	err := c.Each(subsystem|unix.NFT_MSG_GETRULE, request, subsystem|unix.NFT_MSG_NEWRULE, func(m []byte) error {
		now, err := decodeCount(m)
		if err != nil {
			return err
		}
		if i == last {
			return dump.ErrInterrupted
		}
		moved := now != n.Rules[i]
		if moved {
			n.Rules[i], n.Changed = now, true
		}
		if j, ok := n.jumps[i]; ok {
			j.moved, j.came = moved, moved || j.moved
			n.jumps[i] = j
		}
		i++
		return nil
	})
	if err == nil && i != last {
		err = dump.ErrInterrupted
	}
	return err
}
