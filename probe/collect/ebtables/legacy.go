package ebtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/sockopt"
	"github.com/lasthop/lasthop/probe/collect/xt"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Socket options and structs of the legacy tables' interface on 64-bit kernels
// (include/uapi/linux/netfilter_bridge/ebtables.h).
const (
	soGetInfo    = 128
	soGetEntries = 129

	// struct ebt_replace. The pointers are those of the process that asks.
	replaceLen    = 120
	nameLen       = 32
	hooksAt       = 32
	rulesAt       = 36
	sizeAt        = 40
	countersAt    = 96
	counterListAt = 104
	entryListAt   = 112

	// struct ebt_counter.
	counterLen = 16

	// struct ebt_entries, the head of a chain, begins with a zero.
	chainLen    = 48
	chainNameAt = 4
	policyAt    = 40

	// struct ebt_entry, a rule.
	ruleLen    = 112
	flagsAt    = 0
	invertAt   = 4
	protoAt    = 8
	linksAt    = 10
	sourceAt   = 74
	destAt     = 86
	watchersAt = 100
	targetAt   = 104
	nextAt     = 108

	// struct ebt_entry_match, and those of watchers and targets.
	extensionLen     = 40
	extensionNameLen = 31
	extensionSizeAt  = 32
)

// Bits of a rule's flags, and of its inverted matches.
const (
	flagNoProto = 0x02
	flagLength  = 0x04
	flagSource  = 0x08
	flagDest    = 0x10

	invProto      = 0x01
	invIn         = 0x02
	invOut        = 0x04
	invLogicalIn  = 0x20
	invLogicalOut = 0x40
)

// wildcard stands for '+' at the end of an interface's name.
const wildcard = 1

// legacyTable is a table of legacy ebtables with the module that has it.
type legacyTable struct {
	name   string
	module kmod.Module
}

var legacyTables = []legacyTable{
	{"filter", kmod.EbtableFilter}, {"nat", kmod.EbtableNAT}, {"broute", kmod.EbtableBroute},
}

// readLegacy reads the legacy tables of the namespace. Detail says how much there is.
// With an error, what could be read is returned too.
func readLegacy(ns *netns.NS, kernel *kmod.Kernel) (out Tables, detail string, err error) {
	var states []kmod.State
	for _, t := range legacyTables {
		state := kernel.State(t.module)
		states = append(states, state)
		if state.Empty() {
			continue
		}
		got, failed := t.read(ns, kernel)
		out.Rules, out.Chains = append(out.Rules, got.Rules...), append(out.Chains, got.Chains...)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("read table %s of legacy ebtables: %w", t.name, failed))
		}
	}
	return out, "legacy: " + kmod.Rules(len(out.Rules), states...), err
}

// read reads a table that is loaded. Linux before 5.15 has it in all namespaces then; since, one that has none
// gets an empty one that accepts all, which nothing but asking shows.
func (t *legacyTable) read(ns *netns.NS, kernel *kmod.Kernel) (Tables, error) {
	if err := kernel.Check(t.module); err != nil {
		return Tables{}, err
	}
	var reply []byte
	if err := ns.Do(func() (err error) { reply, err = t.get(); return err }); err != nil {
		return Tables{}, err
	}
	return decode(reply)
}

// get fetches the table, in the namespace of the calling thread: struct ebt_replace,
// the entries, then the counters, all as the kernel writes them.
func (t *legacyTable) get() (reply []byte, err error) {
	// The kernel refuses a size that is not the table's.
	err = sockopt.Retry(unix.AF_INET, unix.EINVAL, func(fd int) error {
		info := make([]byte, replaceLen)
		copy(info, t.name)
		if err := sockopt.Get(fd, unix.SOL_IP, soGetInfo, info); err != nil {
			return err
		}
		rules, size := int(binary.NativeEndian.Uint32(info[rulesAt:])), int(binary.NativeEndian.Uint32(info[sizeAt:]))
		reply = append(info, make([]byte, size+rules*counterLen)...)
		var pin runtime.Pinner
		pin.Pin(&reply[0])
		defer pin.Unpin()
		binary.NativeEndian.PutUint32(reply[countersAt:], uint32(rules))
		pointers := map[int]int{entryListAt: replaceLen}
		if rules > 0 {
			pointers[counterListAt] = replaceLen + size
		}
		for field, to := range pointers {
			binary.NativeEndian.PutUint64(reply[field:], uint64(uintptr(unsafe.Pointer(&reply[to]))))
		}
		defer clear(reply[counterListAt:replaceLen])
		return sockopt.Get(fd, unix.SOL_IP, soGetEntries, reply)
	})
	return reply, err
}

// decoder walks a reply of get.
type decoder struct {
	Tables
	table             string
	entries, counters []byte
	// hooks are the bits of those that chains may stand on.
	hooks uint32
	// chains are the names of chains by their offset.
	chains map[int]string
}

// decode decodes a reply of get. With an error, what stands before it is returned too.
func decode(reply []byte) (Tables, error) {
	if len(reply) < replaceLen {
		return Tables{}, fmt.Errorf("reply of %d bytes, want %d and more", len(reply), replaceLen)
	}
	head, rest := reply[:replaceLen], reply[replaceLen:]
	size, rules := uint64(binary.NativeEndian.Uint32(head[sizeAt:])), uint64(binary.NativeEndian.Uint32(head[rulesAt:]))
	if uint64(len(rest)) != size+rules*counterLen {
		return Tables{}, fmt.Errorf("reply of %d bytes behind its head, want %d of entries and %d counters", len(rest), size, rules)
	}
	d := decoder{
		table: unix.ByteSliceToString(head[:nameLen]), entries: rest[:size], counters: rest[size:],
		hooks: binary.NativeEndian.Uint32(head[hooksAt:]), chains: map[int]string{},
	}
	// A jump may lead to a chain behind it.
	err := d.each(func(at, _ int, chain bool) error {
		if chain {
			d.chains[at] = unix.ByteSliceToString(d.entries[at+chainNameAt:][:nameLen])
		}
		return nil
	})
	if err == nil {
		err = d.each(d.take())
	}
	return d.Tables, err
}

// each calls f with the ends of each chain's head and each rule.
func (d *decoder) each(f func(at, end int, chain bool) error) error {
	for at := 0; at < len(d.entries); {
		left := len(d.entries) - at
		if left < chainLen {
			return fmt.Errorf("entry at %d of %d bytes", at, len(d.entries))
		}
		chain, n := d.u32(at+flagsAt) == 0, uint32(chainLen)
		if !chain {
			if left < ruleLen {
				return fmt.Errorf("rule at %d of %d bytes", at, len(d.entries))
			}
			n = d.u32(at + nextAt)
			if n < ruleLen+extensionLen || int64(n) > int64(left) {
				return fmt.Errorf("rule at %d of %d bytes: %d bytes long", at, len(d.entries), n)
			}
		}
		if err := f(at, at+int(n), chain); err != nil {
			return err
		}
		at += int(n)
	}
	return nil
}

// take returns what takes each entry: chains into Chains, rules into Rules.
func (d *decoder) take() func(at, end int, chain bool) error {
	number, counted := 0, 0
	return func(at, end int, chain bool) error {
		if chain {
			number, d.Chains = 0, append(d.Chains, d.chain(at))
			return nil
		}
		if len(d.Chains) == 0 {
			return fmt.Errorf("rule at %d before the first chain", at)
		}
		if len(d.counters) < (counted+1)*counterLen {
			return fmt.Errorf("rule at %d: no counter of %d is left", at, counted)
		}
		number++
		counter := d.counters[counted*counterLen:]
		counted++
		b := builder{FrameRule: model.FrameRule{
			Backend: model.Legacy, Table: d.table, Chain: d.Chains[len(d.Chains)-1].Name, Number: number,
			Counter: model.Counter{Packets: binary.NativeEndian.Uint64(counter), Bytes: binary.NativeEndian.Uint64(counter[8:])},
		}}
		if err := d.rule(&b, at, end); err != nil {
			return fmt.Errorf("table %s chain %s rule %d: %w", d.table, b.Chain, number, err)
		}
		d.Rules = append(d.Rules, b.build())
		return nil
	}
}

func (d *decoder) u32(at int) uint32 { return binary.NativeEndian.Uint32(d.entries[at:]) }

// chain decodes the head of a chain. The kernel has no flag for those on a hook: they have its name and come first.
func (d *decoder) chain(at int) model.Chain {
	c := model.Chain{Backend: model.Legacy, Family: "bridge", Table: d.table, Name: d.chains[at]}
	// That of a chain without a hook may also be to return, which is none.
	if v := verdicts[int32(d.u32(at+policyAt))]; v == model.TargetAccept || v == model.TargetDrop {
		c.Policy = string(v)
	}
	hook := slices.Index(hookNames, c.Name)
	taken := slices.ContainsFunc(d.Chains, func(o model.Chain) bool { return o.Name == c.Name })
	if hook >= 0 && d.hooks&(1<<hook) != 0 && !taken {
		c.Hook, c.Priority = c.Name, legacyPriority(d.table, hook)
	}
	return c
}

// legacyPriority is the priority of a table's chain on its hook (enum nf_br_hook_priorities).
func legacyPriority(table string, hook int) int {
	switch table {
	case "broute":
		return math.MinInt32
	case "nat":
		return map[string]int{"PREROUTING": -300, "OUTPUT": 100, "POSTROUTING": 300}[hookNames[hook]]
	}
	return model.Either(hookNames[hook] == "OUTPUT", 200, -200)
}

// rule decodes a rule: its own matches, then its extensions.
func (d *decoder) rule(b *builder, at, end int) error {
	e := d.entries[at:end:end]
	b.legacyLinks(e)
	b.legacyFrame(e)
	watchers, target := int64(d.u32(at+watchersAt)), int64(d.u32(at+targetAt))
	if watchers < ruleLen || watchers > target || target > int64(len(e)) {
		return fmt.Errorf("watchers at %d, target at %d of %d bytes", watchers, target, len(e))
	}
	// A watcher is no match, but is written among them.
	for next := ruleLen; next < int(target); {
		name, info, err := extension(e[:target], next)
		if err != nil {
			return err
		}
		b.matchExtension(name, info)
		next += extensionLen + len(info)
	}
	name, info, err := extension(e, int(target))
	if err != nil {
		return err
	}
	if name != "standard" {
		b.targetExtension(name, info)
		return nil
	}
	if len(info) < 4 {
		return fmt.Errorf("verdict of %d bytes", len(info))
	}
	return d.verdict(b, int32(binary.NativeEndian.Uint32(info)))
}

// extension decodes the head of the one at an offset.
func extension(e []byte, at int) (name string, info []byte, err error) {
	if len(e)-at < extensionLen {
		return "", nil, fmt.Errorf("extension at %d of %d bytes", at, len(e))
	}
	size, left := binary.NativeEndian.Uint32(e[at+extensionSizeAt:]), len(e)-at-extensionLen
	if int64(size) > int64(left) {
		return "", nil, fmt.Errorf("extension at %d: %d bytes, %d are left", at, size, left)
	}
	return unix.ByteSliceToString(e[at : at+extensionNameLen]), e[at+extensionLen:][:size:size], nil
}

// verdict takes that of the target standard: a decision, or the offset of a chain.
func (d *decoder) verdict(b *builder, v int32) error {
	if v >= 0 {
		chain, ok := d.chains[int(v)]
		if !ok {
			return fmt.Errorf("jump to %d, where no chain is", v)
		}
		b.Target, b.TargetName, b.target = model.TargetJump, chain, "-j "+chain
		return nil
	}
	t, ok := verdicts[v]
	if !ok {
		return fmt.Errorf("verdict %d", v)
	}
	b.Target, b.target = t, "-j "+string(t)
	return nil
}

// legacyLinks takes the names of interfaces.
func (b *builder) legacyLinks(e []byte) {
	invert, bits := binary.NativeEndian.Uint32(e[invertAt:]), [...]uint32{invIn, invLogicalIn, invOut, invLogicalOut}
	for i, l := range b.links() {
		name := unix.ByteSliceToString(e[linksAt+i*unix.IFNAMSIZ:][:unix.IFNAMSIZ])
		if name == "" {
			continue
		}
		// The kernel ignores what follows a wildcard.
		if known, _, ok := strings.Cut(name, string(rune(wildcard))); ok {
			name = known + "+"
		}
		b.matchLink(l, name, invert&bits[i] != 0)
	}
}

// legacyFrame takes the matches of the Ethernet header. The bytes of one that the rule does not have are anything.
func (b *builder) legacyFrame(e []byte) {
	flags, invert := binary.NativeEndian.Uint32(e[flagsAt:]), binary.NativeEndian.Uint32(e[invertAt:])
	not := invert&invProto != 0
	switch {
	case flags&flagLength != 0:
		b.proto = "-p " + xt.Not(not) + "Length"
		b.Unknown = append(b.Unknown, b.proto)
	case flags&flagNoProto == 0:
		b.EtherType, b.EtherTypeNot = binary.BigEndian.Uint16(e[protoAt:]), not
		b.proto = "-p " + xt.Not(not) + etherName(b.EtherType)
	}
	for i, at := range []int{sourceAt, destAt} {
		// The bits of both are the same in flags and invert.
		if bit := []uint32{flagSource, flagDest}[i]; flags&bit != 0 {
			b.matchMAC(at == sourceAt, e[at:][:macLen], e[at+macLen:][:macLen], invert&bit != 0)
		}
	}
}
