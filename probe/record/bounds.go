package record

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lasthop/lasthop/probe/model"
)

// Bounds of what is read: a few bytes of a recording may stand for anything.
const (
	// maxFrame and maxRaw bound the compressed and the decompressed content of a frame, maxHead the decompressed head.
	maxFrame = 64 << 20
	maxRaw   = 64 << 20
	maxHead  = 64 << 10
	// maxReadings is a reading a second for seven weeks.
	maxReadings = 1 << 22
	// maxStructs, maxValues and maxText bound a document: its structs, all its values, and the bytes of one text.
	maxStructs = 1 << 20
	maxValues  = 1 << 23
	maxText    = 1 << 20
)

// sizeError says that a reading holds more than a node has.
type sizeError struct {
	most int
	what string
}

func (e *sizeError) Error() string {
	return fmt.Sprintf("more than %d %s, the most that a reading may have: this is no node's state; record the node again", e.most, e.what)
}

// bound is how many entries one list of a kind may have. Judging takes more than twice as long for twice as many.
type bound struct {
	sizeError
	// has counts those of a snapshot.
	has    func(*model.Snapshot) int
	decode *json.Unmarshalers
}

// bounds are those of each kind of list that a snapshot may have much of.
var bounds = []bound{
	atMost(1<<14, "pods", func(s *model.Snapshot) []model.Pod { return s.Pods }),
	atMost(1<<16, "links", func(s *model.Snapshot) []model.Link { return s.Links }),
	atMost(1<<18, "routes", func(s *model.Snapshot) []model.Route { return s.Routes }),
	atMost(1<<18, "rules", func(s *model.Snapshot) []model.PacketRule { return s.PacketRules }),
	atMost(1<<16, "ebtables rules", func(s *model.Snapshot) []model.FrameRule { return s.FrameRules }),
	atMost(1<<18, "chains", func(s *model.Snapshot) []model.Chain { return s.Chains }),
	atMost(1<<14, "sources", func(s *model.Snapshot) []model.Source { return s.Sources }),
	atMost(1<<18, "hop counters", func(s *model.Snapshot) []model.HopCount { return s.Traffic.Hops }),
	atMost(1<<18, "peers", func(s *model.Snapshot) []model.Peer { return s.Traffic.Peers }),
	atMost(1<<16, "kinds of drops", func(s *model.Snapshot) []model.Drop { return s.Traffic.Drops }),
	atMost(1<<14, "findings", func(*model.Snapshot) []model.Tracked { return nil }),
	atMost(1<<16, "addresses of one kind", func(*model.Snapshot) []netip.Addr { return nil }),
	atMost(1<<16, "addresses of one link", func(*model.Snapshot) []netip.Prefix { return nil }),
}

func atMost[T any](most int, what string, of func(*model.Snapshot) []T) bound {
	b := bound{sizeError: sizeError{most, what}, has: func(s *model.Snapshot) int { return len(of(s)) }}
	b.decode = json.UnmarshalFromFunc(func(d *jsontext.Decoder, list *[]T) error {
		if d.PeekKind() != '[' {
			return errors.ErrUnsupported
		}
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		for *list = []T{}; d.PeekKind() != ']'; {
			if len(*list) == most {
				return &b.sizeError
			}
			var x T
			if err := json.UnmarshalDecode(d, &x); err != nil {
				return err
			}
			*list = append(*list, x)
		}
		_, err := d.ReadToken()
		return err
	})
	return b
}

// bounded decodes no list beyond its bound.
var bounded = json.WithUnmarshalers(json.JoinUnmarshalers(model.Map(bounds, func(b bound) *json.Unmarshalers { return b.decode })...))

// checkSnapshot refuses what could not be read again.
func checkSnapshot(s *model.Snapshot) error {
	for i := range bounds {
		if b := &bounds[i]; b.has(s) > b.most {
			return &b.sizeError
		}
	}
	return nil
}

// checkDocument bounds what a document decodes to, before it does.
func checkDocument(doc []byte) error {
	for _, b := range []struct {
		sizeError
		has int
	}{
		{sizeError{maxStructs, "structs"}, values(doc)},
		{sizeError{maxValues, "values"}, bytes.Count(doc, []byte(","))},
		{sizeError{maxText, "bytes of one text"}, longest(doc)},
	} {
		if b.has > b.most {
			return &b.sizeError
		}
	}
	return nil
}

// longest is how many bytes the longest text has, as it is written.
func longest(doc []byte) (most int) {
	for within, begin, at := false, 0, 0; ; {
		n := bytes.IndexByte(doc[at:], '"')
		if n < 0 {
			return most
		}
		before := doc[begin : at+n]
		at += n + 1
		switch escapes := len(before) - len(bytes.TrimRight(before, `\`)); {
		case within && escapes%2 == 1:
			continue // this quotation mark is part of the text
		case within:
			most = max(most, len(before))
		}
		within, begin = !within, at
	}
}
