package nft

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/lasthop/lasthop/probe/model"
	"golang.org/x/sys/unix"
)

// Verdicts of a rule: netfilter's own, then nft's.
const (
	Drop     int32 = 0
	Accept   int32 = 1
	Continue int32 = unix.NFT_CONTINUE
	Break    int32 = unix.NFT_BREAK
	Jump     int32 = unix.NFT_JUMP
	Goto     int32 = unix.NFT_GOTO
	Return   int32 = unix.NFT_RETURN
)

// String is the verdict in nft's words.
func (v Verdict) String() string {
	switch v.Code {
	case Jump:
		return "jump " + v.Chain
	case Goto:
		return "goto " + v.Chain
	}
	names := map[int32]string{Drop: "drop", Accept: "accept", Continue: "continue", Break: "continue", Return: "return"}
	return cmp.Or(names[v.Code], fmt.Sprintf("verdict %d", v.Code))
}

// String describes the loaded value.
func (l Load) String() string {
	switch l.Source {
	case FromPayload:
		base := map[expr.PayloadBase]string{
			expr.PayloadBaseLLHeader: "ll", expr.PayloadBaseNetworkHeader: "nh", expr.PayloadBaseTransportHeader: "th",
		}[l.Base]
		// As nft writes a field it has no name for: bits.
		return fmt.Sprintf("@%s,%d,%d", base, l.Offset*8, l.Len*8)
	case FromOther, FromNumgen:
		return l.Name
	case "":
		return "unset"
	}
	return fmt.Sprintf("%s key %d", l.Source, l.Key)
}

// String describes a comparison that has no better words.
func (m Match) String() string {
	op := map[expr.CmpOp]string{
		expr.CmpOpEq: "", expr.CmpOpNeq: "!= ", expr.CmpOpLt: "< ",
		expr.CmpOpLte: "<= ", expr.CmpOpGt: "> ", expr.CmpOpGte: ">= ",
	}[m.Op]
	switch {
	case m.Map:
		return fmt.Sprintf("%s vmap @%s", m.Load, m.Set)
	case m.Set != "":
		return fmt.Sprintf("%s %s@%s", m.Load, op, m.Set)
	case m.High != nil:
		return fmt.Sprintf("%s %s0x%x-0x%x", m.Load, op, m.Value, m.High)
	case m.Mask != nil:
		return fmt.Sprintf("%s & 0x%x %s0x%x", m.Load, m.Mask, op, m.Value)
	}
	return fmt.Sprintf("%s %s0x%x", m.Load, op, m.Value)
}

// String describes what is written.
func (w Write) String() string { return fmt.Sprintf("%s set 0x%x", w.Load, w.Value) }

// String is the limit as iptables and ebtables write it behind --limit.
func (l Limit) String() string {
	unit := cmp.Or(map[uint64]string{1: "sec", 60: "min", 3600: "hour", 86400: "day"}[l.Unit], fmt.Sprintf("%ds", l.Unit))
	text := fmt.Sprintf("%s--limit %d%s/%s", model.Either(l.Over, "! ", ""), l.Rate, model.Either(l.Bytes, " bytes", ""), unit)
	const defaultBurst = 5
	if l.Burst != defaultBurst {
		text += fmt.Sprintf(" --limit-burst %d", l.Burst)
	}
	return text
}

// Interface is the name that a comparison of interface names wants: without
// its end, every longer name matches too, which iptables writes as "+".
func Interface(value []byte) string {
	name, _, ended := bytes.Cut(value, []byte{0})
	return string(name) + model.Either(ended || len(value) >= unix.IFNAMSIZ, "", "+")
}

// InterfaceText is an interface match in nft's words.
func InterfaceText(name string) string {
	if p, ok := strings.CutSuffix(name, "+"); ok {
		name = p + "*"
	}
	return `"` + name + `"`
}

// Differs is nft's negation of a comparison, or empty.
func Differs(invert bool) string { return model.Either(invert, "!= ", "") }

// Comment is what nft keeps beside a rule for people: attributes of one byte
// type, one byte length; type 0 is the comment (enum nftnl_udata_rule_types).
func Comment(userData []byte) string {
	const comment = 0
	for b := userData; len(b) >= 2 && len(b) >= 2+int(b[1]); b = b[2+int(b[1]):] {
		if b[0] == comment {
			return unix.ByteSliceToString(b[2 : 2+int(b[1])])
		}
	}
	return ""
}
