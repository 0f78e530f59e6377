package nft

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

const (
	// setElemKeyEnd is NFTA_SET_ELEM_KEY_END, elemCatchall NFT_SET_ELEM_CATCHALL, and the
	// handles are NFTA_TABLE_HANDLE and NFTA_SET_HANDLE, which golang.org/x/sys/unix lacks.
	setElemKeyEnd = 10
	elemCatchall  = 2
	tableHandle   = 4
	setHandle     = 16
)

// Parts are the elements of sets that are part of one rule, which nothing changes, by family: they are read once.
// The kernel looks for each in a list of all, so that those of 10,000 services take it four seconds.
type Parts map[nftables.TableFamily]map[part][]Element

// part is a set by the handles of its table and its own, which the kernel gives once.
type part struct{ table, set uint64 }

const constant = unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT

// MaxElements is how many elements of all sets of a family are kept. A kube-proxy with
// 10,000 services of a few endpoints has some 60,000.
const MaxElements = 1 << 18

// Set is a set or map that a rule looks something up in.
type Set struct {
	Table, Name   string
	KeyLen, Flags uint32
	handle        uint64
	Elements      []Element
	// Read is false where the elements are not known: packets add and remove them,
	// they are objects such as quotas, or there are too many.
	Read bool
}

// Anonymous reports whether the set is part of the one rule that uses it.
func (s *Set) Anonymous() bool { return s.Flags&unix.NFT_SET_ANONYMOUS != 0 }

// Element is one of a set. Its key has a field for each value that is looked up, each filled up to four bytes.
type Element struct {
	// Key and End are the first and the last value; End is nil for a single one. The
	// element without a Key is what a lookup finds that finds no other.
	Key, End []byte
	// Verdict is that of a verdict map, Data the value of another map.
	Verdict *Verdict
	Data    []byte
	Comment string
	// edge: the interval of a set that is not of concatenations ends before it.
	edge bool
}

type table struct {
	name   string
	handle uint64
}

// readSets reads the sets that the rules look something up in, but for those that parts
// has. What was read is there even where a change interrupts it.
func readSets(c *dump.Conn, family nftables.TableFamily, rules []Rule, parts Parts) (out []Set, err error) {
	used := map[[2]string]bool{}
	for i := range rules {
		for _, item := range rules[i].Items {
			if m, ok := item.(Match); ok && m.Set != "" {
				used[[2]string{rules[i].Table, m.Set}] = true
			}
		}
	}
	if len(used) == 0 {
		return nil, nil
	}
	all, err := list(c, unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, family, decodeSet)
	if err != nil {
		return nil, err
	}
	tables, err := list(c, unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, family, decodeTable)
	if err != nil {
		return nil, err
	}
	handles := model.Table(tables, func(t *table) (string, uint64) { return t.name, t.handle })
	if parts[family] == nil {
		parts[family] = map[part][]Element{}
	}
	before, now, left := parts[family], map[part][]Element{}, MaxElements
	for _, s := range all {
		if !used[[2]string{s.Table, s.Name}] {
			continue
		}
		at := part{handles[s.Table], s.handle}
		if s.Elements, s.Read = before[at], before[at] != nil; s.Read && len(s.Elements) <= left {
			left -= len(s.Elements)
			now[at], out = s.Elements, append(out, s)
			continue
		}
		s.Elements, s.Read = nil, false
		if s.Flags&(unix.NFT_SET_EVAL|unix.NFT_SET_OBJECT) == 0 && left > 0 {
			if err := s.read(c, family, left); errors.Is(err, unix.ENOENT) {
				// It went in between, and the generation tells.
				continue
			} else if err != nil {
				return out, fmt.Errorf("elements of %s %s: %w", s.Table, s.Name, err)
			}
			left -= len(s.Elements)
		}
		if s.Read && s.Flags&constant == constant && at.table != 0 && at.set != 0 {
			before[at], now[at] = s.Elements, s.Elements
		}
		out = append(out, s)
	}
	parts[family] = now
	return out, nil
}

// read reads the elements, unless there are more than so many.
func (s *Set) read(c *dump.Conn, family nftables.TableFamily, most int) error {
	body := within(family, unix.NFTA_SET_ELEM_LIST_TABLE, s.Table, unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	s.Read = true
	err := c.Each(subsystem|unix.NFT_MSG_GETSETELEM, body, subsystem|unix.NFT_MSG_NEWSETELEM, func(m []byte) error {
		if !s.Read {
			return nil
		}
		list, err := decodeElements(m)
		s.Elements = append(s.Elements, list...)
		s.Read = len(s.Elements) <= most
		return err
	})
	if !s.Read {
		s.Elements = nil
	}
	if s.Anonymous() {
		// They are in the text of their rule, by which that is known again.
		slices.SortFunc(s.Elements, func(a, b Element) int { return bytes.Compare(a.Key, b.Key) })
	}
	s.Elements = joinIntervals(s.Elements, s.Flags&unix.NFT_SET_INTERVAL != 0)
	return err
}

func decodeSet(m []byte) (Set, error) {
	var s Set
	err := decode(m, dump.Fields{
		unix.NFTA_SET_TABLE: &s.Table, unix.NFTA_SET_NAME: &s.Name, unix.NFTA_SET_FLAGS: &s.Flags,
		unix.NFTA_SET_KEY_LEN: &s.KeyLen, setHandle: &s.handle,
	})
	return s, err
}

func decodeTable(m []byte) (t table, err error) {
	err = decode(m, dump.Fields{unix.NFTA_TABLE_NAME: &t.name, tableHandle: &t.handle})
	return t, err
}

// decodeElements reads an NFT_MSG_NEWSETELEM message, without its netlink header.
func decodeElements(m []byte) (out []Element, err error) {
	err = decode(m, dump.Fields{unix.NFTA_SET_ELEM_LIST_ELEMENTS: func(a *dump.Attrs) {
		list := a.Nested()
		for list.Next() {
			e, err := decodeElement(list.Nested())
			out = append(out, e)
			list.Fail(err)
		}
		a.Fail(list.Err())
	}})
	return out, err
}

func decodeElement(a dump.Attrs) (e Element, err error) {
	for a.Next() {
		var err error
		switch a.Type {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key, _, err = value(a.Nested())
		case setElemKeyEnd:
			e.End, _, err = value(a.Nested())
		case unix.NFTA_SET_ELEM_DATA:
			e.Data, e.Verdict, err = value(a.Nested())
		case unix.NFTA_SET_ELEM_FLAGS:
			flags := a.BE32()
			e.edge = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0
			if flags&elemCatchall != 0 {
				e.Key = nil
			}
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = Comment(a.Data)
		}
		a.Fail(err)
	}
	return e, a.Err()
}

// joinIntervals makes elements with both ends of those of an interval set, which has
// the end of each, the first value that is not in it, as an element of its own.
func joinIntervals(list []Element, intervals bool) []Element {
	if !intervals || slices.ContainsFunc(list, func(e Element) bool { return e.End != nil }) {
		return list
	}
	slices.SortStableFunc(list, func(a, b Element) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.edge == b.edge {
			return c
		}
		return map[bool]int{true: -1, false: 1}[a.edge]
	})
	var out []Element
	for i, e := range list {
		switch {
		case e.edge:
			continue
		case e.Key == nil:
		case i+1 < len(list) && list[i+1].edge:
			e.End = before(list[i+1].Key)
		default:
			e.End = bytes.Repeat([]byte{0xff}, len(e.Key))
		}
		if bytes.Equal(e.Key, e.End) {
			e.End = nil
		}
		out = append(out, e)
	}
	return out
}

// before is the value before one, as a big-endian number.
func before(b []byte) []byte {
	b = bytes.Clone(b)
	for i := range slices.Backward(b) {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return b
}
