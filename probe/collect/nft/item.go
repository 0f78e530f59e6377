package nft

import (
	"bytes"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
)

// Item is one part of a rule, in the order in which the kernel evaluates it:
// a Match, Extension, model.Counter, Verdict, Write, NAT, Reject, Limit or Other.
type Item any

// Source is where a loaded value comes from.
type Source string

// The sources that rules for pod traffic use.
const (
	FromMeta    Source = "meta"
	FromPayload Source = "payload"
	FromCT      Source = "ct"
	FromFIB     Source = "fib"
	// FromOther is a value that was computed, or loaded in a way that is
	// not decoded; Load.Name says by which expression.
	FromOther Source = "other"
)

// Load is a value that a rule takes from the packet or from what is known
// about it.
type Load struct {
	Source Source
	// Key is the number of the meta or ct field, or what fib looks up.
	Key uint32
	// Base, Offset and Len place a payload: the header and bytes in it.
	Base   expr.PayloadBase
	Offset uint32
	Len    uint32
	// Flags are those of fib: which address it looks up.
	Flags uint32
	Name  string
}

// Match compares a loaded value with constants.
type Match struct {
	Load Load
	Op   expr.CmpOp
	// Mask is applied first; nil for the whole value.
	Mask []byte
	// Value is compared with; High is the end of an inclusive range.
	Value, High []byte
	// Set names the set that is looked up instead; Op is then equal or not
	// equal. A verdict map decides by itself and is no match: Map is set.
	Set string
	Map bool
}

// Extension is an iptables or ebtables match, target or watcher.
type Extension struct {
	Target bool
	Name   string
	Rev    uint32
	Info   []byte
}

// Verdict ends the evaluation or goes to another chain. Code is the kernel's:
// NF_ACCEPT, NF_DROP, or one of the negative nft verdicts.
type Verdict struct {
	Code  int32
	Chain string
}

// Write sets a field of the packet, or its mark, to a value. Value is nil
// where it is not a constant.
type Write struct {
	Load  Load
	Value []byte
}

// NAT translates addresses. Kind is "snat", "dnat", "masquerade" or
// "redirect"; Addr and Port are the constants that are written, nil where
// there is none.
type NAT struct {
	Kind                         string
	Addr, AddrMax, Port, PortMax []byte
	Flags                        uint32
}

// Reject drops with an answer.
type Reject struct {
	Type uint32
	Code uint8
}

// Limit matches up to a rate.
type Limit struct {
	// Rate is per Unit seconds; Bytes counts bytes and not packets.
	Rate, Unit uint64
	Burst      uint32
	Over       bool
	Bytes      bool
}

// Other is an expression that is not decoded.
type Other struct{ Name string }

// registers are the 16 32-bit registers of the kernel's virtual machine; a
// value's first register stands for it.
type registers [16]struct {
	load Load
	mask []byte
	data []byte
}

// slot numbers the registers by 32 bits: the kernel knows four of 128 bits
// (1 to 4) and the same memory as sixteen (8 to 23).
func slot(reg uint32) (int, error) {
	switch {
	case reg >= unix.NFT_REG_1 && reg <= unix.NFT_REG_4:
		return int(reg-unix.NFT_REG_1) * 4, nil
	case reg >= unix.NFT_REG32_00 && reg <= unix.NFT_REG32_15:
		return int(reg - unix.NFT_REG32_00), nil
	}
	return 0, fmt.Errorf("register %d", reg)
}

// decoder turns the expressions of one rule into items.
type decoder struct {
	regs  registers
	items []Item
}

func decodeItems(list dump.Attrs) ([]Item, error) {
	var d decoder
	for list.Next() {
		name, data := "", dump.Attrs{}
		e := list.Nested()
		for e.Next() {
			switch e.Type {
			case unix.NFTA_EXPR_NAME:
				name = e.String()
			case unix.NFTA_EXPR_DATA:
				data = e.Nested()
			}
		}
		list.Fail(e.Err())
		if err := d.expression(name, data); err != nil {
			list.Fail(fmt.Errorf("expression %q: %w", name, err))
		}
	}
	return d.items, list.Err()
}

func (d *decoder) add(i Item) { d.items = append(d.items, i) }

// fields are an expression's attributes by number. No expression that is
// decoded here has more.
type fields [16][]byte

func (f *fields) read(a dump.Attrs) error {
	for a.Next() {
		if int(a.Type) < len(f) {
			f[a.Type] = a.Data
		}
	}
	return a.Err()
}

func (f *fields) uint32(n int) uint32 {
	if len(f[n]) < 4 {
		return 0
	}
	return uint32(f[n][0])<<24 | uint32(f[n][1])<<16 | uint32(f[n][2])<<8 | uint32(f[n][3])
}

func (f *fields) uint64(n int) uint64 {
	if len(f[n]) < 8 {
		return 0
	}
	low := fields{f[n][4:]}
	return uint64(f.uint32(n))<<32 | uint64(low.uint32(0))
}

func (f *fields) text(n int) string {
	s, _, _ := bytes.Cut(f[n], []byte{0})
	return string(s)
}

// value is the constant within an NFTA_*_DATA attribute.
func (f *fields) value(n int) ([]byte, error) {
	a := dump.Parse(f[n])
	for a.Next() {
		if a.Type == unix.NFTA_DATA_VALUE {
			return a.Data, nil
		}
	}
	return nil, a.Err()
}

// expression decodes one expression. Its cases are as many as there are
// expressions that matter here; each is short.
func (d *decoder) expression(name string, data dump.Attrs) error {
	if name == "counter" {
		c, err := counter(data)
		d.add(c)
		return err
	}
	var f fields
	if err := f.read(data); err != nil {
		return err
	}
	switch name {
	case "meta":
		load := Load{Source: FromMeta, Key: f.uint32(unix.NFTA_META_KEY)}
		return d.loadOrWrite(load, f.uint32(unix.NFTA_META_DREG), f.uint32(unix.NFTA_META_SREG))
	case "payload":
		return d.loadOrWrite(Load{
			Source: FromPayload,
			Base:   expr.PayloadBase(f.uint32(unix.NFTA_PAYLOAD_BASE)),
			Offset: f.uint32(unix.NFTA_PAYLOAD_OFFSET),
			Len:    f.uint32(unix.NFTA_PAYLOAD_LEN),
		}, f.uint32(unix.NFTA_PAYLOAD_DREG), f.uint32(unix.NFTA_PAYLOAD_SREG))
	case "ct":
		load := Load{Source: FromCT, Key: f.uint32(unix.NFTA_CT_KEY)}
		return d.loadOrWrite(load, f.uint32(unix.NFTA_CT_DREG), f.uint32(unix.NFTA_CT_SREG))
	case "fib":
		load := Load{Source: FromFIB, Key: f.uint32(unix.NFTA_FIB_RESULT), Flags: f.uint32(unix.NFTA_FIB_FLAGS)}
		return d.load(load, f.uint32(unix.NFTA_FIB_DREG))
	case "bitwise":
		return d.bitwise(&f)
	case "cmp":
		v, err := f.value(unix.NFTA_CMP_DATA)
		if err != nil {
			return err
		}
		return d.match(f.uint32(unix.NFTA_CMP_SREG), Match{Op: expr.CmpOp(f.uint32(unix.NFTA_CMP_OP)), Value: v})
	case "range":
		return d.between(&f)
	case "lookup":
		m := Match{Set: f.text(unix.NFTA_LOOKUP_SET), Map: f[unix.NFTA_LOOKUP_DREG] != nil}
		if f.uint32(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0 {
			m.Op = expr.CmpOpNeq
		}
		return d.match(f.uint32(unix.NFTA_LOOKUP_SREG), m)
	case "immediate":
		return d.immediate(&f)
	case "match", "target":
		// Both have name, revision and bytes as attributes 1, 2 and 3.
		d.add(Extension{Target: name == "target", Name: f.text(1), Rev: f.uint32(2), Info: f[3]})
	case "nat", "masq", "redir":
		return d.nat(name, &f)
	case "reject":
		r := Reject{Type: f.uint32(unix.NFTA_REJECT_TYPE)}
		if code := f[unix.NFTA_REJECT_ICMP_CODE]; len(code) > 0 {
			r.Code = code[0]
		}
		d.add(r)
	case "limit":
		d.add(Limit{
			Rate:  f.uint64(unix.NFTA_LIMIT_RATE),
			Unit:  f.uint64(unix.NFTA_LIMIT_UNIT),
			Burst: f.uint32(unix.NFTA_LIMIT_BURST),
			Bytes: f.uint32(unix.NFTA_LIMIT_TYPE) == unix.NFT_LIMIT_PKT_BYTES,
			Over:  f.uint32(unix.NFTA_LIMIT_FLAGS)&unix.NFT_LIMIT_F_INV != 0,
		})
	default:
		d.other(name)
	}
	return nil
}

// other keeps the name of an expression that is not decoded. Whichever
// register it may write does not hold what it held before.
func (d *decoder) other(name string) {
	for i := range d.regs {
		d.regs[i].load = Load{Source: FromOther, Name: name}
		d.regs[i].mask, d.regs[i].data = nil, nil
	}
	d.add(Other{Name: name})
}

func (d *decoder) load(l Load, dreg uint32) error {
	i, err := slot(dreg)
	if err != nil {
		return err
	}
	d.regs[i].load, d.regs[i].mask, d.regs[i].data = l, nil, nil
	return nil
}

func (d *decoder) loadOrWrite(l Load, dreg, sreg uint32) error {
	if sreg == 0 {
		return d.load(l, dreg)
	}
	i, err := slot(sreg)
	if err != nil {
		return err
	}
	d.add(Write{Load: l, Value: d.regs[i].data})
	return nil
}

func (d *decoder) match(sreg uint32, m Match) error {
	i, err := slot(sreg)
	if err != nil {
		return err
	}
	m.Load, m.Mask = d.regs[i].load, d.regs[i].mask
	d.add(m)
	return nil
}

func (d *decoder) between(f *fields) error {
	low, err := f.value(unix.NFTA_RANGE_FROM_DATA)
	if err != nil {
		return err
	}
	high, err := f.value(unix.NFTA_RANGE_TO_DATA)
	if err != nil {
		return err
	}
	m := Match{Value: low, High: high}
	if f.uint32(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ {
		m.Op = expr.CmpOpNeq
	}
	return d.match(f.uint32(unix.NFTA_RANGE_SREG), m)
}

// bitwiseOp is NFTA_BITWISE_OP (Linux 5.6), which golang.org/x/sys/unix lacks.
const bitwiseOp = 6

// bitwise keeps a plain mask; anything else makes a computed value.
func (d *decoder) bitwise(f *fields) error {
	from, err := slot(f.uint32(unix.NFTA_BITWISE_SREG))
	if err != nil {
		return err
	}
	to, err := slot(f.uint32(unix.NFTA_BITWISE_DREG))
	if err != nil {
		return err
	}
	mask, err := f.value(unix.NFTA_BITWISE_MASK)
	if err != nil {
		return err
	}
	xor, err := f.value(unix.NFTA_BITWISE_XOR)
	if err != nil {
		return err
	}
	r := d.regs[from]
	const maskAndXor = 0 // NFT_BITWISE_MASK_XOR
	if f.uint32(bitwiseOp) != maskAndXor || mask == nil || r.mask != nil || len(bytes.Trim(xor, "\x00")) > 0 {
		r.load = Load{Source: FromOther, Name: "bitwise"}
		mask = nil
	}
	r.mask, r.data = mask, nil
	d.regs[to] = r
	return nil
}

func (d *decoder) immediate(f *fields) error {
	dreg := f.uint32(unix.NFTA_IMMEDIATE_DREG)
	if dreg != unix.NFT_REG_VERDICT {
		v, err := f.value(unix.NFTA_IMMEDIATE_DATA)
		if err != nil {
			return err
		}
		i, err := slot(dreg)
		if err != nil {
			return err
		}
		d.regs[i].load, d.regs[i].mask, d.regs[i].data = Load{Source: FromOther, Name: "immediate"}, nil, v
		return nil
	}
	var v Verdict
	a := dump.Parse(f[unix.NFTA_IMMEDIATE_DATA])
	for a.Next() {
		if a.Type != unix.NFTA_DATA_VERDICT {
			continue
		}
		in := a.Nested()
		for in.Next() {
			switch in.Type {
			case unix.NFTA_VERDICT_CODE:
				v.Code = int32(in.BE32())
			case unix.NFTA_VERDICT_CHAIN:
				v.Chain = in.String()
			}
		}
		a.Fail(in.Err())
	}
	d.add(v)
	return a.Err()
}

func (d *decoder) nat(name string, f *fields) error {
	var n NAT
	constant := func(attr int) []byte {
		i, err := slot(f.uint32(attr))
		if err != nil {
			return nil
		}
		return d.regs[i].data
	}
	switch name {
	case "nat":
		n.Kind = "snat"
		if f.uint32(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
			n.Kind = "dnat"
		}
		n.Addr, n.AddrMax = constant(unix.NFTA_NAT_REG_ADDR_MIN), constant(unix.NFTA_NAT_REG_ADDR_MAX)
		n.Port, n.PortMax = constant(unix.NFTA_NAT_REG_PROTO_MIN), constant(unix.NFTA_NAT_REG_PROTO_MAX)
		n.Flags = f.uint32(unix.NFTA_NAT_FLAGS)
	case "masq":
		n.Kind = "masquerade"
		n.Port, n.PortMax = constant(unix.NFTA_MASQ_REG_PROTO_MIN), constant(unix.NFTA_MASQ_REG_PROTO_MAX)
		n.Flags = f.uint32(unix.NFTA_MASQ_FLAGS)
	case "redir":
		n.Kind = "redirect"
		n.Port, n.PortMax = constant(unix.NFTA_REDIR_REG_PROTO_MIN), constant(unix.NFTA_REDIR_REG_PROTO_MAX)
		n.Flags = f.uint32(unix.NFTA_REDIR_FLAGS)
	}
	d.add(n)
	return nil
}
