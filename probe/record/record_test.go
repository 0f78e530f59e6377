package record

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// TestSize records a node with 250 pods, all of them busy: ten minutes must
// stay under 50 MiB. From one key to the next it is the same over and over.
func TestSize(t *testing.T) {
	n := newNode(250)
	w, err := NewWriter(io.Discard, Head{})
	check(t, err)
	const keys = 2
	for i := range keys * int(keyEvery/time.Second) {
		check(t, w.Write(n.second(i)))
	}
	size := w.Size() * int64(10*time.Minute/keyEvery) / keys
	t.Logf("%.1f MiB in ten minutes", float64(size)/(1<<20))
	if most := int64(50 << 20); size > most {
		t.Errorf("%d bytes, want at most %d", size, most)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// text is what a value is compared by.
func text(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	check(t, err)
	return string(b)
}

// recording records some seconds of a small node, and gives what it should
// hold.
func recording(t testing.TB, seconds int) (file []byte, points []string) {
	t.Helper()
	return recordingOf(t, newNode(2), seconds)
}

func recordingOf(t testing.TB, n *node, seconds int) (file []byte, points []string) {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, Head{Writer: "test", Node: "worker-7", Window: 10 * time.Second})
	check(t, err)
	for i := range seconds {
		if i == 6 {
			// Something new is counted, and something is not any more.
			n.pod(99, n.addr())
			n.t.MACs = n.t.MACs[1:]
		}
		r := n.second(i)
		r.Findings = []model.Tracked{{Finding: model.Finding{Code: "PolicyDrop", Packets: uint64(i)}, ID: 1}}
		points = append(points, text(t, r.Point)+text(t, r.Findings))
		check(t, w.Write(r))
	}
	check(t, w.Close())
	return b.Bytes(), points
}

// TestOlder reads a recording of version 2, which an earlier lasthop made of the same
// seconds. It has no pairs of addresses.
func TestOlder(t *testing.T) {
	file, err := os.ReadFile("testdata/version2.rec")
	check(t, err)
	f, err := Open(bytes.NewReader(file), int64(len(file)))
	check(t, err)
	defer f.Close()
	n := newNode(2)
	for i := range f.Len() {
		if i == 6 {
			n.pod(99, n.addr())
			n.t.MACs = n.t.MACs[1:]
		}
		want := n.second(i).Point
		want.Snapshot.Traffic.Pairs, want.Snapshot.Traffic.PairAddrs = nil, nil
		got, err := f.Reading(i)
		check(t, err)
		if got, want := text(t, got.Point), text(t, want); got != want {
			t.Fatalf("reading %d differs: %s", i, difference(got, want))
		}
	}
	if f.Len() != 8 || f.Damage != nil {
		t.Errorf("%d readings, %v", f.Len(), f.Damage)
	}
}

func TestRoundTrip(t *testing.T) {
	file, want := recording(t, 40)
	roundTrip(t, file, want)
}

// TestRoundTripLarge is of a node whose states are not written as differences.
func TestRoundTripLarge(t *testing.T) {
	n := newNode(2)
	n.s.PacketRules = newNode(1800).s.PacketRules
	seconds := 12
	if testing.Short() {
		seconds = 3
	}
	file, want := recordingOf(t, n, seconds)
	f := roundTrip(t, file, want)
	for i := range f.frames {
		if f.frames[i].kind == kindDiff {
			t.Errorf("reading %d is a difference", i)
		}
	}
}

func roundTrip(t *testing.T, file []byte, want []string) *File {
	t.Helper()
	f, err := Open(bytes.NewReader(file), int64(len(file)))
	check(t, err)
	t.Cleanup(func() { f.Close() })
	if f.Damage != nil || f.Len() != len(want) || f.Head != (Head{Writer: "test", Node: "worker-7", Window: 10 * time.Second}) {
		t.Fatalf("damage %v, %d readings, head %+v", f.Damage, f.Len(), f.Head)
	}
	// Forwards, then from place to place.
	for i := range 2 * f.Len() {
		n := i % f.Len()
		if i >= f.Len() {
			n = i * 7 % f.Len()
		}
		r, err := f.Reading(n)
		check(t, err)
		if got := text(t, r.Point) + text(t, r.Findings); got != want[n] {
			t.Fatalf("reading %d differs: %s", n, difference(got, want[n]))
		}
		if !r.At.Equal(f.At(n)) || !r.Replay || r.Point.Whole != f.Whole(n) {
			t.Errorf("reading %d: at %v, whole %v", n, r.At, r.Point.Whole)
		}
	}
	return f
}

// difference is where two texts first differ.
func difference(got, want string) string {
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	around := func(s string) string { return s[max(0, min(i, len(s))-60):min(len(s), i+60)] }
	return "\n got …" + around(got) + "\nwant …" + around(want)
}

// TestCutOff truncates a recording at every byte: complete frames are read, and
// Damage reports the rest.
func TestCutOff(t *testing.T) {
	file, want := recording(t, 4)
	whole := map[int]int{}
	f, err := Open(bytes.NewReader(file), int64(len(file)))
	check(t, err)
	for i, fr := range f.frames {
		whole[int(fr.offset)+fr.length] = i + 1
	}
	readings := 0
	for size := range len(file) {
		if n, ok := whole[size]; ok {
			readings = n
		}
		f, err := Open(bytes.NewReader(file[:size]), int64(size))
		var format *FormatError
		if readings == 0 {
			if !errors.As(err, &format) || format.Offset > int64(size) {
				t.Fatalf("%d bytes: %v, want a format error within", size, err)
			}
			continue
		}
		if err != nil || f.Len() != readings || !errors.As(f.Damage, &format) {
			t.Fatalf("%d bytes: %v, want %d readings and the damage", size, err, readings)
		}
		r, err := f.Reading(readings - 1)
		if err != nil || text(t, r.Point)+text(t, r.Findings) != want[readings-1] {
			t.Fatalf("%d bytes: reading %d: %v", size, readings-1, err)
		}
	}
}

// TestForeign opens what is no recording, or none that is understood.
func TestForeign(t *testing.T) {
	file, _ := recording(t, 2)
	newer := bytes.Clone(file)
	binary.BigEndian.PutUint16(newer[len(magic):], Version+1)
	older := bytes.Clone(file)
	binary.BigEndian.PutUint16(older[len(magic):], oldest-1)
	broken := bytes.Clone(file)
	broken[FrontSize+headSize+3] ^= 1
	long := bytes.Clone(file)
	binary.BigEndian.PutUint32(long[FrontSize+9:], maxFrame+1)
	for want, b := range map[string][]byte{
		"byte 0: not a lasthop recording:": []byte("\x0a\x0d\x0d\x0aand so on and so on"),
		"the file is empty":                nil,
		"format version 5; this lasthop":   newer,
		"lasthop reads versions 2 to 4":    older,
		"byte 10: wrong frame checksum":    broken,
		"byte 10: frame of":                long,
		"byte 10: unknown frame kind":      append(bytes.Clone(file[:FrontSize]), make([]byte, 40)...),
	} {
		_, err := Open(bytes.NewReader(b), int64(len(b)))
		var format *FormatError
		if !errors.As(err, &format) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f, err := Open(bytes.NewReader(append(file, 'x')), int64(len(file)+1))
	if err != nil || f.Damage == nil || f.Len() != 2 {
		t.Errorf("a byte too many: %v", err)
	}
}

// FuzzOpen reads whatever comes. The checksums are made right, so that what
// they protect is reached.
func FuzzOpen(f *testing.F) {
	file, _ := recording(f, 5)
	f.Add(file)
	f.Add(file[:len(file)/2])
	f.Fuzz(func(_ *testing.T, b []byte) {
		mend(b)
		r, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		defer r.Close()
		for i := range min(r.Len(), 8) {
			_, _ = r.Reading(i)
		}
	})
}

// FuzzDocument reads frames whose document and columns are whatever comes.
func FuzzDocument(f *testing.F) {
	n := newNode(1)
	key := n.second(0).Point.Snapshot
	rest, counts := encodeTraffic(key.Traffic, n.second(1).Point.Snapshot.Traffic, key.Window.End, key.Window.End)
	var b bytes.Buffer
	w, err := NewWriter(&b, Head{})
	check(f, err)
	first, err := w.content(point{Snapshot: *key}, nil, w.plain)
	check(f, err)
	check(f, w.frame(kindKey, time.Unix(1, 0), first))
	held, err := w.content(point{Rest: rest}, counts, w.plain)
	check(f, err)
	unpacks, err := newUnpacker()
	check(f, err)
	defer unpacks.Close()
	raw, err := unpacks.DecodeAll(held, nil)
	check(f, err)
	f.Add(raw)
	begun := b.Len()
	f.Fuzz(func(t *testing.T, raw []byte) {
		b.Truncate(begun)
		check(t, w.frame(kindCounts, time.Unix(2, 0), w.plain.EncodeAll(raw, nil)))
		r, err := Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
		check(t, err)
		defer r.Close()
		_, _ = r.Reading(1)
	})
}

// mend sets the checksums of the frames that there seem to be.
func mend(b []byte) {
	for at := FrontSize; at+headSize <= len(b); {
		length := int(binary.BigEndian.Uint32(b[at+9:]))
		end := at + headSize + length
		if length > len(b) || end > len(b) {
			return
		}
		binary.BigEndian.PutUint32(b[at+13:], sum(b[at:at+13], b[at+headSize:end]))
		at = end
	}
}

// TestSpan: a part of a recording is from one reading to another, with state or with counts alone.
func TestSpan(t *testing.T) {
	file, _ := recording(t, 70)
	f, err := Open(bytes.NewReader(file), int64(len(file)))
	check(t, err)
	defer f.Close()
	before := model.Window{Start: f.At(0).Add(-time.Minute), End: f.At(0).Add(-time.Second)}
	if _, err := f.Span(before); err == nil || !strings.Contains(err.Error(), "choose a window that ends after") {
		t.Errorf("before the first state: %v", err)
	}
	counts := 0
	for n := 10; n < 30; n++ {
		a, b := n, n+21
		before, err := f.Reading(a)
		check(t, err)
		after, err := f.Reading(b)
		check(t, err)
		if !f.Whole(a) && !f.Whole(b) {
			counts++
		}
		got, err := f.Span(model.Window{Start: f.At(a), End: f.At(b)})
		check(t, err)
		want := after.Point.Snapshot.Traffic.Hops[0].Packets - before.Point.Snapshot.Traffic.Hops[0].Packets
		// It begins when the first reading was complete.
		if !got.Window.Start.Equal(before.Point.Ready) || !got.Window.End.Equal(f.At(b)) || got.Traffic.Hops[0].Packets != want ||
			text(t, got.Node) != text(t, after.Point.Snapshot.Node) {
			t.Errorf("%d to %d: %v with %d packets, want %v to %v, %d", a, b, got.Window, got.Traffic.Hops[0].Packets, before.Point.Ready, f.At(b), want)
		}
	}
	if counts == 0 {
		t.Error("every reading has state")
	}
}

// TestWindow: the window of a recording is that of a timeline which got all readings, and ends with the last.
func TestWindow(t *testing.T) {
	file, _ := recording(t, 72)
	f, err := Open(bytes.NewReader(file), int64(len(file)))
	check(t, err)
	defer f.Close()
	for _, d := range []time.Duration{time.Second / 2, 2 * time.Second, 10 * time.Second, 0, time.Hour} {
		first := f.before(d)
		line := timeline.New(func(*model.Snapshot) (none model.Verdict) { return none }, 0)
		for n := range f.Len() {
			r, err := f.Reading(n)
			check(t, err)
			line.Add(r.Point)
			if n == first && n > 0 {
				line.Reset()
			}
		}
		want, _ := line.All()
		f.Forget()
		got, err := f.Window(d)
		check(t, err)
		if !got.Window.End.Equal(f.At(71)) || f.Whole(71) {
			t.Errorf("%v: it ends at %v", d, got.Window.End)
		}
		for _, s := range []*model.Snapshot{&got, &want} {
			for i := range s.Traffic.Hops {
				s.Traffic.Hops[i].First, s.Traffic.Hops[i].TTLs = time.Time{}, 0
			}
			if d == time.Second/2 || d == 2*time.Second {
				s.PacketRules = nil // it has no state of its own, so these are of the states before
			}
		}
		if got, want := text(t, got.Traffic.Hops)+text(t, got.PacketRules)+text(t, got.Window), text(t, want.Traffic.Hops)+text(t, want.PacketRules)+text(t, want.Window); got != want {
			t.Errorf("%v differs: %s", d, difference(got, want))
		}
	}
}
