package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Item is one part of a rule, in the order in which the kernel evaluates it:
// a Match, Extension, model.Counter, Verdict, Write, NAT, Reject, Limit, Log or Other.
type Item any

// Source is where a loaded value comes from.
type Source string

// The sources that rules for pod traffic use.
const (
	FromMeta    Source = "meta"
	FromPayload Source = "payload"
	FromCT      Source = "ct"
	FromFIB     Source = "fib"
	// FromNumgen is a number that the kernel makes up: 0 to Key - 1.
	FromNumgen Source = "numgen"
	// FromOther is a value that was computed, or loaded in a way that is not decoded; Load.Name says by which expression.
	FromOther Source = "other"
)

// Load is a value that a rule takes from the packet or from what is known about it.
type Load struct {
	Source Source
	// Key is the number of the meta or ct field, or what fib looks up.
	Key uint32
	// Base, Offset and Len place a payload: the header and bytes in it.
	Base        expr.PayloadBase
	Offset, Len uint32
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
	// Set names the set that is looked up instead; Op is then equal or not equal. Keys are the values that are
	// looked up, and perhaps others behind them. A verdict map decides by itself and is no match: Map is set.
	Set  string
	Keys []Load
	Map  bool
}

// Padded are the value that is compared with, which a Load of that length has, and its
// mask, in so many bytes: of a prefix only the bytes that count are compared.
func (m Match) Padded(size int) (value, mask []byte) {
	value, mask = make([]byte, size), make([]byte, size)
	copy(mask, bytes.Repeat([]byte{0xff}, copy(value, m.Value[:m.Load.Len])))
	copy(mask, m.Mask)
	return value, mask
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

// Write sets a field of the packet, or its mark, to a value. Value is nil where it is not a constant: it is then what From loads,
// after Mask and Xor, if From is known.
type Write struct {
	Load, From Load
	Value      []byte
	Mask, Xor  []byte
}

// NAT translates addresses. Kind is "snat", "dnat", "masquerade" or "redirect"; Addr and Port are the constants
// that are written, nil where there is none. Map names the map that the address is looked up in instead.
type NAT struct {
	Kind                         string
	Addr, AddrMax, Port, PortMax []byte
	Map                          string
}

// Reject drops with an answer.
type Reject struct{}

// Limit matches up to a rate.
type Limit struct {
	// Rate is per Unit seconds; Bytes counts bytes and not packets.
	Rate, Unit  uint64
	Burst       uint32
	Over, Bytes bool
}

// Log tells a program that listens to its Group of a packet, or the kernel's log where it has none. Size is how
// many bytes of the packet, 0 all; Threshold how many packets are told at a time.
type Log struct {
	Prefix           string
	Group, Threshold uint16
	Grouped          bool
	Size             uint32
}

// Other is an expression that is not decoded.
type Other struct{ Name string }

// register is one of the 16 32-bit registers of the kernel's virtual machine; a value's first register stands for it.
type register struct {
	load            Load
	mask, xor, data []byte
	// set is the map that gave the value.
	set string
}

// decoder turns the expressions of one rule into items.
type decoder struct {
	regs  [16]register
	items []Item
	// attrs are those of the expression that is decoded, by number. None that is decoded here has more.
	attrs [16][]byte
	// err is the first error within the expression.
	err error
}

func decodeItems(list dump.Attrs) ([]Item, error) {
	var d decoder
	for list.Next() {
		name, data, e := "", dump.Attrs{}, list.Nested()
		for e.Next() {
			switch e.Type {
			case unix.NFTA_EXPR_NAME:
				name = e.String()
			case unix.NFTA_EXPR_DATA:
				data = e.Nested()
			}
		}
		list.Fail(e.Err())
		if d.expression(name, data); d.err != nil {
			list.Fail(fmt.Errorf("expression %q: %w", name, d.err))
		}
	}
	return d.items, list.Err()
}

func (d *decoder) add(i Item) { d.items = append(d.items, i) }

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// long is the numeric attribute n, of whatever size, 0 where the expression has none.
func (d *decoder) long(n int) (number uint64) {
	for _, b := range d.attrs[n] {
		number = number<<8 | uint64(b)
	}
	return number
}

func (d *decoder) number(n int) uint32 { return uint32(d.long(n)) }

func (d *decoder) text(n int) string { return unix.ByteSliceToString(d.attrs[n]) }

// value is the constant within the NFTA_*_DATA attribute n.
func (d *decoder) value(n int) []byte {
	data, _, err := value(dump.Parse(d.attrs[n]))
	d.fail(err)
	return data
}

// value reads NFTA_DATA attributes: a constant or a verdict.
func value(a dump.Attrs) (data []byte, v *Verdict, err error) {
	err = a.Decode(binary.BigEndian, dump.Fields{
		unix.NFTA_DATA_VALUE: &data,
		unix.NFTA_DATA_VERDICT: func(a *dump.Attrs) {
			v = &Verdict{}
			a.Fail(a.Nested().Decode(binary.BigEndian, dump.Fields{
				unix.NFTA_VERDICT_CODE: &v.Code, unix.NFTA_VERDICT_CHAIN: &v.Chain,
			}))
		},
	})
	return data, v, err
}

// register is the one that attribute n names.
func (d *decoder) register(n int) *register { return &d.regs[d.place(n)] }

// place is that of a register. The kernel knows four of 128 bits (1 to 4) and the same
// memory as sixteen of 32 bits (8 to 23).
func (d *decoder) place(n int) int {
	switch reg := d.number(n); {
	case reg >= unix.NFT_REG_1 && reg <= unix.NFT_REG_4:
		return int(reg-unix.NFT_REG_1) * 4
	case reg >= unix.NFT_REG32_00 && reg <= unix.NFT_REG32_15:
		return int(reg - unix.NFT_REG32_00)
	default:
		d.fail(fmt.Errorf("register %d", reg))
		return 0
	}
}

// constant is what the register that attribute n names holds, nil where it is
// no constant or there is no such attribute.
func (d *decoder) constant(n int) []byte {
	if d.number(n) == 0 {
		return nil
	}
	return d.register(n).data
}

// expression decodes one expression: a case for each that matters here.
func (d *decoder) expression(name string, data dump.Attrs) {
	if name == "counter" {
		c, err := counter(data)
		d.add(c)
		d.fail(err)
		return
	}
	clear(d.attrs[:])
	for data.Next() {
		if int(data.Type) < len(d.attrs) {
			d.attrs[data.Type] = data.Data
		}
	}
	if d.fail(data.Err()); d.err != nil {
		return
	}
	switch name {
	case "meta":
		d.loadOrWrite(Load{Source: FromMeta, Key: d.number(unix.NFTA_META_KEY)}, unix.NFTA_META_DREG, unix.NFTA_META_SREG)
	case "payload":
		d.loadOrWrite(Load{
			Source: FromPayload, Base: expr.PayloadBase(d.number(unix.NFTA_PAYLOAD_BASE)),
			Offset: d.number(unix.NFTA_PAYLOAD_OFFSET), Len: d.number(unix.NFTA_PAYLOAD_LEN),
		}, unix.NFTA_PAYLOAD_DREG, unix.NFTA_PAYLOAD_SREG)
	case "ct":
		d.loadOrWrite(Load{Source: FromCT, Key: d.number(unix.NFTA_CT_KEY)}, unix.NFTA_CT_DREG, unix.NFTA_CT_SREG)
	case "fib":
		*d.register(unix.NFTA_FIB_DREG) = register{load: Load{Source: FromFIB, Key: d.number(unix.NFTA_FIB_RESULT), Flags: d.number(unix.NFTA_FIB_FLAGS)}}
	case "bitwise":
		d.bitwise()
	case "cmp":
		d.match(unix.NFTA_CMP_SREG, Match{Op: expr.CmpOp(d.number(unix.NFTA_CMP_OP)), Value: d.value(unix.NFTA_CMP_DATA)})
	case "range":
		m := Match{Value: d.value(unix.NFTA_RANGE_FROM_DATA), High: d.value(unix.NFTA_RANGE_TO_DATA)}
		if d.number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ {
			m.Op = expr.CmpOpNeq
		}
		d.match(unix.NFTA_RANGE_SREG, m)
	case "lookup":
		d.lookup()
	case "numgen":
		kind := map[uint32]string{0: "inc", 1: "random"}[d.number(numgenType)]
		mod := d.number(numgenModulus)
		l := Load{Source: FromNumgen, Key: mod, Offset: d.number(numgenOffset), Name: fmt.Sprintf("numgen %s mod %d", kind, mod)}
		*d.register(numgenDReg) = register{load: l}
	case "immediate":
		d.immediate()
	case "match", "target":
		// Both have name, revision and bytes as attributes 1, 2 and 3.
		d.add(Extension{Target: name == "target", Name: d.text(1), Rev: d.number(2), Info: d.attrs[3]})
	case "nat":
		n := NAT{
			Kind: model.Either(d.number(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT, "dnat", "snat"),
			Addr: d.constant(unix.NFTA_NAT_REG_ADDR_MIN), AddrMax: d.constant(unix.NFTA_NAT_REG_ADDR_MAX),
			Port: d.constant(unix.NFTA_NAT_REG_PROTO_MIN), PortMax: d.constant(unix.NFTA_NAT_REG_PROTO_MAX),
		}
		if d.number(unix.NFTA_NAT_REG_ADDR_MIN) != 0 {
			n.Map = d.register(unix.NFTA_NAT_REG_ADDR_MIN).set
		}
		d.add(n)
	case "masq":
		d.add(NAT{Kind: "masquerade", Port: d.constant(unix.NFTA_MASQ_REG_PROTO_MIN), PortMax: d.constant(unix.NFTA_MASQ_REG_PROTO_MAX)})
	case "redir":
		d.add(NAT{Kind: "redirect", Port: d.constant(unix.NFTA_REDIR_REG_PROTO_MIN), PortMax: d.constant(unix.NFTA_REDIR_REG_PROTO_MAX)})
	case "reject":
		d.add(Reject{})
	case "log":
		d.add(Log{
			Prefix: d.text(unix.NFTA_LOG_PREFIX), Size: d.number(unix.NFTA_LOG_SNAPLEN),
			Group: uint16(d.number(unix.NFTA_LOG_GROUP)), Grouped: d.attrs[unix.NFTA_LOG_GROUP] != nil,
			Threshold: uint16(d.number(unix.NFTA_LOG_QTHRESHOLD)),
		})
	case "limit":
		d.add(Limit{
			Rate: d.long(unix.NFTA_LIMIT_RATE), Unit: d.long(unix.NFTA_LIMIT_UNIT), Burst: d.number(unix.NFTA_LIMIT_BURST),
			Bytes: d.number(unix.NFTA_LIMIT_TYPE) == unix.NFT_LIMIT_PKT_BYTES,
			Over:  d.number(unix.NFTA_LIMIT_FLAGS)&unix.NFT_LIMIT_F_INV != 0,
		})
	default:
		// Whichever register an unknown expression may write does not hold what it held before.
		for i := range d.regs {
			d.regs[i] = register{load: Load{Source: FromOther, Name: name}}
		}
		d.add(Other{Name: name})
	}
}

// loadOrWrite takes an expression that has either a register to load a value into or one whose value it writes.
func (d *decoder) loadOrWrite(l Load, dreg, sreg int) {
	if d.number(sreg) == 0 {
		*d.register(dreg) = register{load: l}
		return
	}
	r := d.register(sreg)
	d.add(Write{Load: l, From: r.load, Value: r.data, Mask: r.mask, Xor: r.xor})
}

func (d *decoder) match(sreg int, m Match) {
	r := d.register(sreg)
	if m.Load, m.Mask = r.load, r.mask; r.xor != nil {
		m.Load, m.Mask = Load{Source: FromOther, Name: "bitwise"}, nil // What is compared is computed.
	}
	if d.err == nil {
		d.add(m)
	}
}

// Attributes of numgen (enum nft_ng_attributes), which golang.org/x/sys/unix lacks.
const (
	numgenDReg    = 1
	numgenModulus = 2
	numgenType    = 3
	numgenOffset  = 4
)

// lookup takes a lookup of the values in the registers from one on: in a set, which is
// a match; in a verdict map; or in a map whose value goes to a register.
func (d *decoder) lookup() {
	m := Match{Set: d.text(unix.NFTA_LOOKUP_SET)}
	if d.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0 {
		m.Op = expr.CmpOpNeq
	}
	for i := d.place(unix.NFTA_LOOKUP_SREG); i < len(d.regs) && d.regs[i].load.Source != "" && d.regs[i].mask == nil; {
		m.Keys = append(m.Keys, d.regs[i].load)
		i += (d.regs[i].load.Size() + 3) / 4
	}
	to := d.attrs[unix.NFTA_LOOKUP_DREG]
	value := to != nil && d.number(unix.NFTA_LOOKUP_DREG) != unix.NFT_REG_VERDICT
	m.Map = to != nil && !value
	d.match(unix.NFTA_LOOKUP_SREG, m)
	if value {
		*d.register(unix.NFTA_LOOKUP_DREG) = register{load: Load{Source: FromOther, Name: "map @" + m.Set}, set: m.Set}
	}
}

// Size is how many bytes the value has.
func (l Load) Size() int {
	switch {
	case l.Source == FromPayload:
		return max(int(l.Len), 1)
	case l.Source == FromMeta && (l.Key == unix.NFT_META_IIFNAME || l.Key == unix.NFT_META_OIFNAME):
		return unix.IFNAMSIZ
	case l.Source == FromMeta && (l.Key == unix.NFT_META_L4PROTO || l.Key == unix.NFT_META_NFPROTO):
		return 1
	}
	return 4
}

// bitwiseOp is NFTA_BITWISE_OP (Linux 5.6), which golang.org/x/sys/unix lacks.
const bitwiseOp = 6

// bitwise keeps a plain mask; anything else makes a computed value.
func (d *decoder) bitwise() {
	r := *d.register(unix.NFTA_BITWISE_SREG)
	mask, xor := d.value(unix.NFTA_BITWISE_MASK), d.value(unix.NFTA_BITWISE_XOR)
	const maskAndXor = 0 // NFT_BITWISE_MASK_XOR
	if d.number(bitwiseOp) != maskAndXor || mask == nil || r.mask != nil {
		r.load, mask = Load{Source: FromOther, Name: "bitwise"}, nil
	} else if len(bytes.Trim(xor, "\x00")) == 0 {
		xor = nil
	}
	*d.register(unix.NFTA_BITWISE_DREG) = register{load: r.load, mask: mask, xor: xor}
}

func (d *decoder) immediate() {
	if d.number(unix.NFTA_IMMEDIATE_DREG) != unix.NFT_REG_VERDICT {
		*d.register(unix.NFTA_IMMEDIATE_DREG) = register{load: Load{Source: FromOther, Name: "immediate"}, data: d.value(unix.NFTA_IMMEDIATE_DATA)}
		return
	}
	_, v, err := value(dump.Parse(d.attrs[unix.NFTA_IMMEDIATE_DATA]))
	if v == nil {
		v = &Verdict{}
	}
	d.add(*v)
	d.fail(err)
}
