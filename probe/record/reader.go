package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/lasthop/lasthop/probe/model"
)

// File is an open recording. It is not safe for concurrent use.
type File struct {
	Head Head
	// Damage is a *FormatError if the file cannot be read to its end, nil if it was closed properly.
	Damage error

	r       io.ReaderAt
	version uint16
	frames  []frame
	plain   *zstd.Decoder
	// key is the key that was decompressed last, state the last reading with a state of its own.
	key, state cached
	// spare is what the last frame was decompressed into.
	spare []byte
}

type frame struct {
	kind   byte
	at     time.Time
	offset int64
	length int
	// key and state are the numbers of the frames that it depends on.
	key, state int
}

type cached struct {
	number  int
	point   point
	unpacks *zstd.Decoder
}

// Open indexes the frames of a recording of size bytes. The error is a *FormatError if the file is no recording
// or has no complete reading. If it is damaged after that, Damage says where, and the readings before are valid.
func Open(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, key: cached{number: -1}, state: cached{number: -1}}
	defer f.Forget()
	front := make([]byte, FrontSize)
	n, err := r.ReadAt(front, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read recording: %w", err)
	}
	if err := CheckFront(front[:n]); err != nil {
		return nil, err
	}
	f.version = binary.BigEndian.Uint16(front[len(magic):])
	if err := f.scan(size); err != nil {
		if damage := (*FormatError)(nil); !errors.As(err, &damage) || len(f.frames) == 0 {
			return nil, err
		}
		f.Damage = err
	}
	if len(f.frames) == 0 {
		return nil, &FormatError{size, "the recording ends before its first reading"}
	}
	return f, nil
}

// CheckFront returns a *FormatError unless a recording begins with these FrontSize bytes, or all if it is shorter.
func CheckFront(front []byte) error {
	switch {
	case len(front) == 0:
		return &FormatError{0, "not a lasthop recording: the file is empty"}
	case len(front) < FrontSize || string(front[:len(magic)]) != magic:
		return &FormatError{0, `not a lasthop recording: want "lasthop\n" and the format version`}
	}
	if v := binary.BigEndian.Uint16(front[len(magic):]); v < oldest || v > Version {
		return &FormatError{int64(len(magic)), fmt.Sprintf("the recording has format version %d; this lasthop reads versions %d to %d", v, oldest, Version)}
	}
	return nil
}

func newUnpacker(o ...zstd.DOption) (*zstd.Decoder, error) {
	d, err := zstd.NewReader(nil, append(o, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRaw), zstd.WithDecoderLowmem(true))...)
	if err != nil {
		return nil, fmt.Errorf("read recording: %w", err)
	}
	return d, nil
}

// scan indexes the complete frames. It returns a *FormatError for damage, which does not affect the frames before it.
func (f *File) scan(size int64) error {
	offset, key, state := int64(FrontSize), -1, -1
	for first := true; ; first = false {
		fr, held, err := f.next(offset, size)
		if err != nil {
			return err
		}
		next := fr.offset + int64(fr.length)
		switch {
		case first != (fr.kind == kindHead):
			return &FormatError{offset, "want one head frame, at the beginning"}
		case first:
			if err := f.head(held); err != nil {
				return &FormatError{offset, "head frame: " + err.Error()}
			}
			offset = next
			continue
		case fr.kind == kindEnd && next == size:
			return nil
		case fr.kind == kindEnd:
			return &FormatError{next, fmt.Sprintf("%d bytes after the end of the recording", size-next)}
		case fr.kind != kindKey && key < 0:
			return &FormatError{offset, "want a key frame before other readings"}
		case len(f.frames) > 0 && !fr.at.After(f.frames[len(f.frames)-1].at):
			return &FormatError{offset, "this reading is not later than the previous one"}
		case len(f.frames) == maxReadings:
			return &FormatError{offset, fmt.Sprintf("more than %d readings", maxReadings)}
		}
		n := len(f.frames)
		if fr.kind == kindKey {
			key = n
		}
		if fr.kind != kindCounts {
			state = n
		}
		fr.key, fr.state = key, state
		f.frames = append(f.frames, fr)
		offset = next
	}
}

func (f *File) next(offset, size int64) (fr frame, held []byte, err error) {
	if size-offset < headSize {
		return fr, nil, &FormatError{offset, fmt.Sprintf("the recording is truncated: want a frame, got %d bytes", size-offset)}
	}
	head := make([]byte, headSize)
	if _, err := f.r.ReadAt(head, offset); err != nil {
		return fr, nil, fmt.Errorf("read recording: %w", err)
	}
	fr = frame{kind: head[0], at: time.Unix(0, int64(binary.BigEndian.Uint64(head[1:]))), offset: offset + headSize}
	length := binary.BigEndian.Uint32(head[9:])
	switch fr.kind {
	case kindHead, kindKey, kindDiff, kindCounts, kindEnd:
	default:
		return fr, nil, &FormatError{offset, fmt.Sprintf("unknown frame kind 0x%02x", fr.kind)}
	}
	if length > maxFrame {
		return fr, nil, &FormatError{offset, fmt.Sprintf("frame of %d bytes: want at most %d", length, maxFrame)}
	}
	if left := size - fr.offset; int64(length) > left {
		return fr, nil, &FormatError{offset, fmt.Sprintf("the recording is truncated: frame of %d bytes, got %d", length, left)}
	}
	fr.length = int(length)
	if held, err = f.held(fr); err == nil && sum(head[:headSize-4], held) != binary.BigEndian.Uint32(head[headSize-4:]) {
		err = &FormatError{offset, "wrong frame checksum"}
	}
	return fr, held, err
}

func (f *File) held(fr frame) ([]byte, error) {
	b := make([]byte, fr.length)
	if _, err := f.r.ReadAt(b, fr.offset); err != nil && fr.length > 0 {
		return nil, fmt.Errorf("read recording: %w", err)
	}
	return b, nil
}

func (f *File) head(held []byte) error {
	unpacks, err := f.unpacker(kindHead)
	if err != nil {
		return err
	}
	raw, err := unpacks.DecodeAll(held, nil)
	switch {
	case err != nil:
		return err
	case len(raw) > maxHead:
		return fmt.Errorf("%d bytes: want at most %d", len(raw), maxHead)
	}
	return json.Unmarshal(raw, &f.Head, decoded)
}

// Len returns the number of readings.
func (f *File) Len() int { return len(f.frames) }

// At returns the time of a reading.
func (f *File) At(n int) time.Time { return f.frames[n].at }

// Whole reports whether a reading has state of its own.
func (f *File) Whole(n int) bool { return f.frames[n].kind != kindCounts }

// Reading returns a reading's point and the recorded findings. It has no Snapshot of a window.
func (f *File) Reading(n int) (model.Reading, error) { return f.reading(n, true) }

// Findings returns the recorded findings of a reading.
func (f *File) Findings(n int) ([]model.Tracked, error) {
	r, err := f.reading(n, false)
	return r.Findings, err
}

// reading is Reading, where state is set. Otherwise the snapshot may have the window and the traffic alone.
func (f *File) reading(n int, state bool) (model.Reading, error) {
	fr := f.frames[n]
	p, err := f.point(n, state)
	if err != nil {
		return model.Reading{}, f.wrong(fr, err)
	}
	s := p.Snapshot
	switch {
	case !state:
	case f.Whole(n):
		f.state = cached{number: n, point: p}
	default:
		if f.state.number != fr.state {
			if f.state.point, err = f.point(fr.state, true); err != nil {
				return model.Reading{}, f.wrong(f.frames[fr.state], err)
			}
			f.state.number = fr.state
		}
		s = f.state.point.Snapshot
		s.Window, s.Traffic = p.Snapshot.Window, p.Snapshot.Traffic
	}
	s.Window.End = fr.at
	return model.Reading{
		At: fr.at, Findings: p.Findings, Judged: p.Judged, Replay: true,
		Point: model.Point{Snapshot: &s, Whole: f.Whole(n), After: p.After, Ready: p.Ready},
	}, nil
}

func (f *File) wrong(fr frame, err error) error {
	return &FormatError{fr.offset, "reading: " + err.Error()}
}

// point decompresses a frame and restores its traffic, and its state where that is asked for.
func (f *File) point(n int, state bool) (point, error) {
	fr := f.frames[n]
	switch n {
	case f.state.number:
		return f.state.point, nil
	case fr.key:
		if err := f.load(n); err != nil {
			return point{}, err
		}
		return f.key.point, nil
	}
	if err := f.load(fr.key); err != nil {
		return point{}, err
	}
	p, raw, counts, err := f.unpack(fr, f.spare[:0], state)
	if err != nil {
		return p, err
	}
	f.spare = raw
	p.Snapshot.Traffic, err = decodeTraffic(f.version, f.key.point.Snapshot.Traffic, p.Rest, counts, fr.at)
	return p, err
}

// load decompresses a key, unless it did so last.
func (f *File) load(n int) error {
	if f.key.number == n {
		return nil
	}
	p, raw, _, err := f.unpack(f.frames[n], nil, true)
	if err != nil {
		return err
	}
	unpacks, err := newUnpacker(zstd.WithDecoderDictRaw(dictionary, raw))
	if err != nil {
		return err
	}
	if f.key.unpacks != nil {
		f.key.unpacks.Close()
	}
	f.key = cached{number: n, point: p, unpacks: unpacks}
	return nil
}

// unpacker decompresses frames of a kind: a difference takes the latest key.
func (f *File) unpacker(kind byte) (_ *zstd.Decoder, err error) {
	if kind == kindDiff {
		return f.key.unpacks, nil
	}
	if f.plain == nil {
		f.plain, err = newUnpacker()
	}
	return f.plain, err
}

// decoded is how documents are read: as encoding/json does, but at once. What is wrong is an error sooner or later.
var decoded = json.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv1.ReportErrorsWithLegacySemantics(false), bounded)

type brief struct {
	point
	Snapshot struct{ Window model.Window }
}

func (f *File) unpack(fr frame, into []byte, state bool) (p point, raw, counts []byte, err error) {
	unpacks, err := f.unpacker(fr.kind)
	if err != nil {
		return p, nil, nil, err
	}
	held, err := f.held(fr)
	if err != nil {
		return p, nil, nil, err
	}
	if raw, err = unpacks.DecodeAll(held, into); errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		err = &sizeError{maxRaw, "bytes"}
	}
	if err != nil {
		return p, nil, nil, err
	}
	length, n := binary.Uvarint(raw)
	if n <= 0 || length > uint64(len(raw)-n) || length > math.MaxInt32 {
		return p, nil, nil, errors.New("the document is longer than its frame")
	}
	doc := raw[n : n+int(length)]
	if err := checkDocument(doc); err != nil {
		return p, nil, nil, err
	}
	if state {
		err = json.Unmarshal(doc, &p, decoded)
	} else {
		var b brief
		err = json.Unmarshal(doc, &b, decoded)
		p = b.point
		p.Snapshot.Window = b.Snapshot.Window
	}
	if big := (*sizeError)(nil); errors.As(err, &big) {
		err = big // it says all
	}
	return p, raw, raw[n+int(length):], err
}

// Forget frees what was decompressed, and the decompressors. What is asked for later is decompressed anew.
func (f *File) Forget() {
	for _, d := range []*zstd.Decoder{f.plain, f.key.unpacks} {
		if d != nil {
			d.Close()
		}
	}
	f.plain, f.spare = nil, nil
	f.key, f.state = cached{number: -1}, cached{number: -1}
}

// Close frees the decompressors. It does not close the underlying file.
func (f *File) Close() { f.Forget() }
