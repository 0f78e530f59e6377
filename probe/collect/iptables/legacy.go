package iptables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/sockopt"
	"github.com/lasthop/lasthop/probe/collect/xt"
	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Socket options and sizes of the legacy tables' interface
// (include/uapi/linux/netfilter_ipv4/ip_tables.h); IPv6 has the same numbers.
const (
	soGetInfo    = 64
	soGetEntries = 65
	nameLen      = 32
	infoLen      = 84
	entriesHead  = 40
	hooks        = 5
	extHead      = 32
	extNameLen   = 29
	countersLen  = 16
)

// layout is where an entry's fields are, which differs by family.
type layout struct {
	// family is the table's: "ip" or "ip6".
	family                 string
	level, domain, addrLen int
	// iface is where the interface names start, proto and what follows.
	iface, proto, flags, invert int
	target, counters, elems     int
	gotoFlag, fragFlag          uint8
	names                       string
	module                      kmod.Module
}

var (
	layout4 = layout{
		family: "ip", level: unix.SOL_IP, domain: unix.AF_INET, addrLen: 4,
		iface: 16, proto: 80, flags: 82, invert: 83, target: 88, counters: 96, elems: 112,
		gotoFlag: 2, fragFlag: 1, names: "/proc/thread-self/net/ip_tables_names", module: kmod.IPTables,
	}
	layout6 = layout{
		family: "ip6", level: unix.SOL_IPV6, domain: unix.AF_INET6, addrLen: 16,
		iface: 64, proto: 128, flags: 131, invert: 132, target: 140, counters: 152, elems: 168,
		gotoFlag: 4, names: "/proc/thread-self/net/ip6_tables_names", module: kmod.IP6Tables,
	}
)

// Bits of an entry's inverted matches, the same in both families.
const (
	invIn    = 1 << 0
	invOut   = 1 << 1
	invSrc   = 1 << 3
	invDst   = 1 << 4
	invFrag  = 1 << 5
	invProto = 1 << 6
)

// table is a legacy table as the kernel gives it.
type table struct {
	layout
	getinfo
	name    string
	setName func(uint16) string
	blob    []byte
	// spare is room for another reading of a table of this size.
	spare []byte
	// starts are where the entries begin, rules and chains where those are that have the
	// counters of each rule and each chain on a hook.
	starts, rules, chains []int
}

// getinfo is struct ipt_getinfo.
type getinfo struct {
	Name             [nameLen]byte
	ValidHooks       uint32
	Hook, Underflow  [hooks]uint32
	NumEntries, Size uint32
}

// legacy reads the legacy tables of the namespace, both families. It asks only for tables that exist: the request
// would create the others. Detail says how much there is.
func (r *reading) legacy(ns *netns.NS, kernel *kmod.Kernel) (detail string, err error) {
	var tables []*table
	var states []kmod.State
	err = ns.Do(func() (err error) {
		for _, l := range []layout{layout4, layout6} {
			// The list has those that this namespace has. It is there with the module.
			names, failed := input.Read(l.names, input.Regular, 1<<16)
			state := kmod.Loaded
			if errors.Is(failed, os.ErrNotExist) {
				state = kernel.State(l.module)
			}
			states = append(states, state)
			if failed != nil && !state.Empty() {
				err = errors.Join(err, fmt.Errorf("list legacy tables: %w", failed))
			}
			for name := range strings.FieldsSeq(string(names)) {
				t := &table{layout: l, name: name}
				if failed := t.read(r.known(source{l.family, name}).bytes); failed != nil {
					err = errors.Join(err, fmt.Errorf("read legacy table %s: %w", name, failed))
					continue
				}
				tables = append(tables, t)
			}
		}
		return err
	})
	held := 0
	for _, t := range tables {
		p, same, bad := r.decode(t)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("read legacy table %s: %w", t.name, bad))
		}
		r.add(p, same)
		held += len(p.Rules)
	}
	return "legacy: " + kmod.Rules(held, states...), err
}

// read fetches a table, in the namespace of the calling thread, with the room that it had the last time.
func (t *table) read(last *table) error {
	if len(t.name) >= nameLen {
		return fmt.Errorf("name of %d bytes", len(t.name))
	}
	return sockopt.Retry(t.domain, unix.EAGAIN, func(fd int) error {
		info := make([]byte, infoLen)
		copy(info, t.name)
		if err := sockopt.Get(fd, t.level, soGetInfo, info); err != nil {
			return err
		}
		if _, err := binary.Decode(info, binary.NativeEndian, &t.getinfo); err != nil {
			return err
		}
		if last != nil {
			t.spare = last.spare
		}
		if size := entriesHead + int(t.Size); len(t.spare) != size {
			t.spare = make([]byte, size)
		}
		entries := t.spare
		// Of a name the kernel writes no more than its text.
		clear(entries)
		copy(entries, t.name)
		binary.NativeEndian.PutUint32(entries[nameLen:], t.Size)
		t.blob = entries[entriesHead:]
		return sockopt.Get(fd, t.level, soGetEntries, entries)
	})
}

// decode returns a table's rules and chains with what they have counted: those of the last
// reading if nothing else is different, and whether those counted nothing since.
func (r *reading) decode(t *table) (p part, same bool, err error) {
	p = r.known(source{t.family, t.name})
	if same = p.bytes != nil && t.is(p.bytes); same {
		p.bytes.spare = t.spare
	} else {
		p = part{source: p.source, names: map[uint16]string{}, bytes: t}
		t.setName, t.spare = r.named.noting(p.names), nil
		p.Tables, err = t.decode()
		p.rules, p.chains = make([]model.Counter, len(t.rules)), make([]model.Counter, len(t.chains))
	}
	at := p.bytes
	same = t.count(p.rules, at.rules) && same
	same = t.count(p.chains, at.chains) && same
	if err != nil {
		p.bytes = nil
	}
	return p, same, err
}

// is reports whether both are one table, whatever it has counted.
func (t *table) is(last *table) bool {
	if t.getinfo != last.getinfo || len(t.blob) != len(last.blob) {
		return false
	}
	from := 0
	for _, at := range last.starts {
		if to := at + t.counters; !bytes.Equal(t.blob[from:to], last.blob[from:to]) {
			return false
		}
		from = at + t.counters + countersLen
	}
	return bytes.Equal(t.blob[from:], last.blob[from:])
}

// count reads the counters of the entries, and reports whether they are as before.
func (t *table) count(before []model.Counter, entries []int) bool {
	same := true
	for i, at := range entries {
		c := t.blob[at+t.counters:]
		now := model.Counter{Packets: binary.NativeEndian.Uint64(c), Bytes: binary.NativeEndian.Uint64(c[8:])}
		same, before[i] = same && now == before[i], now
	}
	return same
}

// extension reads the match or target at an offset, which may not reach beyond end.
func (t *table) extension(at, end int) (x xt.Extension, err error) {
	if at < 0 || end > len(t.blob) || at+extHead > end {
		return x, fmt.Errorf("extension at %d of %d bytes", at, end)
	}
	size := int(binary.NativeEndian.Uint16(t.blob[at:]))
	if size < extHead || at+size > end {
		return x, fmt.Errorf("extension at %d of %d bytes: size %d", at, end, size)
	}
	return xt.Extension{
		Name: unix.ByteSliceToString(t.blob[at+2 : at+2+extNameLen]), Rev: uint32(t.blob[at+extHead-1]),
		Info: t.blob[at+extHead : at+size], SetName: t.setName,
	}, nil
}

// entry is one entry of the blob, with its target.
type entry struct {
	at, next int
	// matches end where the target begins.
	matches int
	target  xt.Extension
}

// endsChain reports whether the entry is the head of the next chain, or the end of the table.
func (e *entry) endsChain() bool { return e.target.Name == "ERROR" }

func (t *table) entries() ([]entry, error) {
	var out []entry
	for at := 0; at < len(t.blob); {
		if at+t.elems > len(t.blob) {
			return out, fmt.Errorf("entry at %d of %d bytes", at, len(t.blob))
		}
		e := entry{
			at:      at,
			matches: at + int(binary.NativeEndian.Uint16(t.blob[at+t.target:])),
			next:    at + int(binary.NativeEndian.Uint16(t.blob[at+t.target+2:])),
		}
		if e.matches < at+t.elems || e.matches+extHead > e.next || e.next > len(t.blob) {
			return out, fmt.Errorf("entry at %d: target at %d, next at %d of %d bytes", at, e.matches, e.next, len(t.blob))
		}
		var err error
		if e.target, err = t.extension(e.matches, e.next); err != nil {
			return out, err
		}
		out, at = append(out, e), e.next
	}
	return out, nil
}

// decode finds the chains of the blob, then its rules.
func (t *table) decode() (Tables, error) {
	var out Tables
	entries, err := t.entries()
	if err != nil {
		return out, err
	}
	add := func(c model.Chain, at int) {
		c.Backend, c.Family, c.Table = model.Legacy, t.family, t.name
		out.Chains, t.chains = append(out.Chains, c), append(t.chains, at)
	}
	// The chain that starts at an offset, and the hook whose policy is there.
	chains, policies := map[int]string{}, map[int]int{}
	for h := range hooks {
		if t.ValidHooks&(1<<h) != 0 {
			chains[int(t.Hook[h])] = hookNames[h]
			policies[int(t.Underflow[h])] = h
		}
	}
	for _, e := range entries {
		if e.endsChain() && e.next < len(t.blob) {
			chains[e.next] = unix.ByteSliceToString(e.target.Info)
		}
	}
	chain, number := "", 0
	for i, e := range entries {
		t.starts = append(t.starts, e.at)
		if name, ok := chains[e.at]; ok {
			chain, number = name, 0
			if !slices.Contains(hookNames[:], name) {
				add(model.Chain{Name: name}, e.at)
			}
		}
		if e.endsChain() {
			continue
		}
		if h, ok := policies[e.at]; ok {
			c, err := t.policy(h, e)
			if err != nil {
				return out, err
			}
			add(c, e.at)
			continue
		}
		if i+1 < len(entries) && !slices.Contains(hookNames[:], chain) && entries[i+1].endsChain() {
			// The RETURN that the kernel puts at a chain's end.
			continue
		}
		number++
		r, err := t.rule(e, chains)
		if err != nil {
			return out, fmt.Errorf("chain %s rule %d: %w", chain, number, err)
		}
		r.Chain, r.Number = chain, number
		out.Rules, t.rules = append(out.Rules, r), append(t.rules, e.at)
	}
	return out, nil
}

// policy reads the entry at the end of a hook's chain.
func (t *table) policy(hook int, e entry) (model.Chain, error) {
	v, err := decision(e.target)
	if err != nil {
		return model.Chain{}, err
	}
	name, policy := hookNames[hook], model.Either(v == decisionDrop, "DROP", "ACCEPT")
	return model.Chain{Name: name, Hook: name, Priority: legacyPriority(t.name, hook), Policy: policy}, nil
}

// legacyPriority is the priority of a table's chain on its hook (enum nf_ip_hook_priorities).
func legacyPriority(table string, hook int) int {
	switch table {
	case "raw":
		return -300
	case "mangle":
		return -150
	case "security":
		return 50
	case "nat":
		return model.Either(hookNames[hook] == "PREROUTING" || hookNames[hook] == "OUTPUT", -100, 100)
	}
	return 0
}

// Decisions of the standard target: -1 minus netfilter's number; zero and above is the offset of a chain.
const decisionDrop = -1

var decisions = map[int]string{decisionDrop: "DROP", -2: "ACCEPT", -4: "QUEUE", -5: "RETURN"}

func decision(x xt.Extension) (int, error) {
	if x.Name != "" || len(x.Info) < 4 {
		return 0, fmt.Errorf("target %q is not the standard target", x.Name)
	}
	return int(int32(binary.NativeEndian.Uint32(x.Info))), nil
}

func (t *table) rule(e entry, chains map[int]string) (model.PacketRule, error) {
	b := newBuilder(model.PacketRule{Backend: model.Legacy, Family: t.family, Table: t.name})
	t.ip(b, t.blob[e.at:e.at+t.elems])
	for at := e.at + t.elems; at < e.matches; {
		m, err := t.extension(at, e.matches)
		if err != nil {
			return b.PacketRule, err
		}
		b.options = append(b.options, xt.Match(&b.PacketRule, m))
		at += extHead + len(m.Info)
	}
	if e.target.Name != "" {
		b.target = xt.Target(&b.PacketRule, e.target)
		return b.build(), nil
	}
	n, err := decision(e.target)
	switch {
	case err != nil:
		return b.PacketRule, err
	case n == e.next:
		// A rule without a target goes on to the next.
		return b.build(), nil
	case n >= 0:
		b.Target, b.Goto = chains[n], t.blob[e.at+t.flags]&t.gotoFlag != 0
	default:
		b.Target = decisions[n]
	}
	if b.Target == "" {
		return b.PacketRule, fmt.Errorf("decision %d", n)
	}
	b.target = jumpOption(b.Goto) + b.Target
	return b.build(), nil
}

// ip decodes what every entry matches: struct ipt_ip, struct ip6t_ip6.
func (t *table) ip(b *builder, e []byte) {
	flags, invert, n := e[t.flags], e[t.invert], t.addrLen
	for i, source := range []bool{true, false} {
		a, mask := e[i*n:(i+1)*n], e[(i+2)*n:(i+3)*n]
		if len(bytes.Trim(mask, "\x00")) == 0 {
			continue
		}
		inv := invert&[]uint8{invSrc, invDst}[i] != 0
		m, text, ok := xt.Addr(a, mask, inv)
		b.matchAddr(source, m, text, inv, ok)
	}
	for i, in := range []bool{true, false} {
		// Two names, then their two masks.
		name, mask := e[t.iface+i*unix.IFNAMSIZ:], e[t.iface+(i+2)*unix.IFNAMSIZ:]
		if s := xt.Interface(name[:unix.IFNAMSIZ], mask[:unix.IFNAMSIZ]); s != "" {
			b.matchLink(in, model.IfMatch{Name: s, Not: invert&[]uint8{invIn, invOut}[i] != 0})
		}
	}
	if p := binary.NativeEndian.Uint16(e[t.proto:]); p != 0 && p <= 0xff {
		b.matchProto(uint8(p), invert&invProto != 0)
	}
	if flags&t.fragFlag != 0 {
		b.fragment = xt.Not(invert&invFrag != 0) + "-f"
		b.unknown(b.fragment)
	}
}
