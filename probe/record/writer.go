package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/lasthop/lasthop/probe/model"
)

// Writer appends readings to a recording, each with one Write to the underlying
// writer: a process that dies leaves complete frames.
type Writer struct {
	w     io.Writer
	plain *zstd.Encoder
	// diff compresses with the latest key as its dictionary; it is nil until a difference comes, since a node's state may
	// be large. keyed is the key's time, key its traffic, and held its content; it is nil until there is a key.
	diff  *zstd.Encoder
	keyed time.Time
	key   model.Traffic
	held  []byte
	// length is that of the latest state before it was compressed, doc the latest document.
	length int
	doc    document
	last   time.Time
	size   int64
	// Readings is how many were written, Failed whether one could not be: later ones may rest on it.
	Readings int
	Failed   bool
}

// NewWriter starts a recording.
func NewWriter(w io.Writer, h Head) (*Writer, error) {
	plain, err := zstd.NewWriter(nil, options(zstd.SpeedFastest, plainWindow)...)
	if err != nil {
		return nil, fmt.Errorf("start recording: %w", err)
	}
	r := &Writer{plain: plain}
	return r, r.Begin(w, h)
}

// Begin starts another recording, with the memory that the one before took.
func (w *Writer) Begin(to io.Writer, h Head) error {
	*w = Writer{w: to, plain: w.plain, doc: w.doc}
	if err := w.write(binary.BigEndian.AppendUint16([]byte(magic), Version)); err != nil {
		return err
	}
	held, err := json.Marshal(h, jsonv1.DefaultOptionsV1())
	if err != nil {
		return fmt.Errorf("start recording: %w", err)
	}
	return w.frame(kindHead, time.Unix(0, 0), w.plain.EncodeAll(held, nil))
}

// The windows of compressors, which take as much memory: what is alike in a state is near, but
// that of a difference has to hold the key and what follows. With tens of thousands of rules that takes three times the
// memory of the state, so there each state is a key.
const (
	plainWindow = 1 << 20
	mostDiffed  = 4 << 20
)

func options(level zstd.EncoderLevel, window int, more ...zstd.EOption) []zstd.EOption {
	return append(more, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(level),
		zstd.WithWindowSize(window), zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
}

// Size returns the bytes written.
func (w *Writer) Size() int64 { return w.size }

// Write appends a reading's point and findings. It skips readings before the
// first whole one, and a reading that is not later than the one before.
func (w *Writer) Write(r model.Reading) error {
	s := r.Point.Snapshot
	at := s.Window.End
	if w.held == nil && !r.Point.Whole || !at.After(w.last) {
		return nil
	}
	w.last = at
	p := point{Snapshot: *s, After: r.Point.After, Ready: r.Point.Ready, Findings: r.Findings, Judged: r.Judged}
	kind, pack, counts := byte(kindCounts), w.plain, []byte(nil)
	switch {
	case !r.Point.Whole:
		p.Snapshot = model.Snapshot{Window: s.Window}
	case w.held == nil || at.Sub(w.keyed) >= keyEvery || w.length > mostDiffed:
		kind = kindKey
	default:
		if err := w.differ(); err != nil {
			return err
		}
		kind, pack = kindDiff, w.diff
	}
	if kind != kindKey {
		p.Snapshot.Traffic = model.Traffic{}
		p.Rest, counts = encodeTraffic(w.key, s.Traffic, w.keyed, at)
	}
	held, err := w.content(p, counts, pack)
	if err != nil {
		return err
	}
	if kind == kindKey {
		w.keyed, w.key, w.held, w.diff = at, s.Traffic, held, nil
	}
	if err := w.frame(kind, at, held); err != nil {
		return err
	}
	w.Readings++
	return nil
}

// differ makes the compressor of differences to the latest key.
func (w *Writer) differ() error {
	if w.diff != nil {
		return nil
	}
	unpacks, err := newUnpacker()
	if err != nil {
		return err
	}
	defer unpacks.Close()
	raw, err := unpacks.DecodeAll(w.held, nil)
	if err == nil {
		window := plainWindow
		for window < 2*len(raw) {
			window *= 2
		}
		w.diff, err = zstd.NewWriter(nil, options(zstd.SpeedDefault, window, zstd.WithEncoderDictRaw(dictionary, raw))...)
	}
	if err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}

// encoded is how documents are written: as encoding/json does, without fields that are zero, which is most of a rule.
var encoded = json.JoinOptions(jsonv1.DefaultOptionsV1(), json.OmitZeroStructFields(true))

// content is that of a frame, compressed. A large document is not held, but encoded twice: first for its length, which
// comes before it.
func (w *Writer) content(p point, counts []byte, pack *zstd.Encoder) ([]byte, error) {
	w.doc = document{held: w.doc.held[:0]}
	err := checkSnapshot(&p.Snapshot)
	if err == nil {
		err = json.MarshalWrite(&w.doc, p, encoded)
	}
	front := binary.AppendUvarint(nil, uint64(w.doc.bytes))
	all := len(front) + w.doc.bytes + len(counts)
	var held []byte
	switch {
	case err != nil:
	case all > maxRaw || w.doc.values > maxStructs:
		err = fmt.Errorf("the state of this node is too large: %d bytes, %d values", all, w.doc.values)
	case len(w.doc.held) == w.doc.bytes:
		held = pack.EncodeAll(slices.Concat(front, w.doc.held, counts), nil)
	default:
		var packed bytes.Buffer
		pack.ResetContentSize(&packed, int64(all))
		_, before := pack.Write(front)
		doc := json.MarshalWrite(pack, p, encoded)
		_, after := pack.Write(counts)
		err = errors.Join(before, doc, after, pack.Close())
		held = packed.Bytes()
	}
	if err != nil {
		return nil, fmt.Errorf("write recording: %w", err)
	}
	if p.Snapshot.Links != nil {
		w.length = all
	}
	return held, nil
}

// document is a writer that holds what it gets, up to plainWindow.
type document struct {
	held          []byte
	bytes, values int
}

func (d *document) Write(b []byte) (int, error) {
	d.bytes += len(b)
	d.values += values(b)
	if d.bytes <= plainWindow {
		d.held = append(d.held, b...)
	}
	return len(b), nil
}

// values bounds the large values that a document decodes to: structs.
func values(raw []byte) int { return bytes.Count(raw, []byte("{")) }

// Close ends the recording. It does not close the underlying writer.
func (w *Writer) Close() error { return w.frame(kindEnd, w.last, nil) }

func (w *Writer) frame(kind byte, at time.Time, held []byte) error {
	return w.write(append(header(kind, at, held), held...))
}

func (w *Writer) write(b []byte) error {
	n, err := w.w.Write(b)
	w.size += int64(n)
	if err != nil {
		w.Failed = true
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}
