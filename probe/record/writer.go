package record

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/lasthop/lasthop/probe/model"
)

// Writer appends readings to a recording, each with one Write to the underlying
// writer: a process that dies leaves complete frames.
type Writer struct {
	w     io.Writer
	plain *zstd.Encoder
	// diff compresses with the latest key as its dictionary. keyed is the
	// key's time, key its traffic.
	diff  *zstd.Encoder
	keyed time.Time
	key   model.Traffic
	last  time.Time
	size  int64
}

// NewWriter starts a recording.
func NewWriter(w io.Writer, h Head) (*Writer, error) {
	plain, err := zstd.NewWriter(nil, options()...)
	if err != nil {
		return nil, fmt.Errorf("begin recording: %w", err)
	}
	r := &Writer{w: w, plain: plain}
	front := binary.BigEndian.AppendUint16([]byte(magic), Version)
	if err := r.write(front); err != nil {
		return nil, err
	}
	held, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("begin recording: %w", err)
	}
	return r, r.frame(kindHead, time.Unix(0, 0), plain.EncodeAll(held, nil))
}

// options configure a compressor whose window holds a key and what follows.
func options(more ...zstd.EOption) []zstd.EOption {
	return append(more, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault),
		zstd.WithWindowSize(16<<20), zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
}

// Size returns the bytes written.
func (w *Writer) Size() int64 { return w.size }

// Write appends a reading's point and findings. It skips readings before the
// first whole one, and a reading that is not later than the one before.
func (w *Writer) Write(r model.Reading) error {
	s := r.Point.Snapshot
	at := s.Window.End
	if w.diff == nil && !r.Point.Whole || !at.After(w.last) {
		return nil
	}
	w.last = at
	p := point{Snapshot: *s, After: r.Point.After, Ready: r.Point.Ready, Findings: r.Findings, Judged: r.Judged}
	kind, pack, counts := byte(kindCounts), w.plain, []byte(nil)
	switch {
	case !r.Point.Whole:
		p.Snapshot = model.Snapshot{Window: s.Window}
	case w.diff == nil || at.Sub(w.keyed) >= keyEvery:
		kind = kindKey
	default:
		kind, pack = kindDiff, w.diff
	}
	if kind != kindKey {
		p.Snapshot.Traffic = model.Traffic{}
		p.Rest, counts = encodeTraffic(w.key, s.Traffic, w.keyed, at)
	}
	raw, err := document(p, counts)
	if err != nil {
		return err
	}
	if kind == kindKey {
		w.keyed, w.key = at, s.Traffic
		if w.diff, err = zstd.NewWriter(nil, options(zstd.WithEncoderDictRaw(dictionary, raw))...); err != nil {
			return fmt.Errorf("write recording: %w", err)
		}
	}
	return w.frame(kind, at, pack.EncodeAll(raw, nil))
}

func document(p point, counts []byte) ([]byte, error) {
	doc, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("write recording: %w", err)
	}
	raw := append(append(binary.AppendUvarint(nil, uint64(len(doc))), doc...), counts...)
	if n := values(doc); len(raw) > maxRaw || n > maxValues {
		return nil, fmt.Errorf("write recording: the state of this node is too large: %d bytes, %d values", len(raw), n)
	}
	return raw, nil
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
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}
