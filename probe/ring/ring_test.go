package ring

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

var begin = time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)

// reading is of some seconds after the beginning, when a pod had sent as many packets.
func reading(began time.Time, second int, findings ...model.Tracked) model.Reading {
	at := began.Add(time.Duration(second) * time.Second)
	s := &model.Snapshot{Window: model.Window{Start: began, End: at}, Node: model.Node{Name: "aks-1"}}
	s.Traffic.Hops = []model.HopCount{{Addr: netip.MustParseAddr("10.244.0.5"), IfIndex: 7, Link: "veth7", Packets: uint64(second), Last: at}}
	return model.Reading{At: at, Findings: findings, Point: model.Point{Snapshot: s, Whole: second%10 == 0, Ready: at}}
}

// fill writes readings of each second from one to another.
func fill(t *testing.T, r *Ring, from, to int, findings func(second int) []model.Tracked) {
	t.Helper()
	for i := from; i < to; i++ {
		var list []model.Tracked
		if findings != nil {
			list = findings(i)
		}
		check(t, r.Write(reading(begin, i, list...)))
		if size := onDisk(t, r.Dir); size > r.Space {
			t.Fatalf("second %d: %d bytes, want at most %d", i, size, r.Space)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func onDisk(t *testing.T, dir string) (size int64) {
	t.Helper()
	for _, s := range segments(t, dir) {
		size += s.size
	}
	return size
}

func segments(t *testing.T, dir string) []segment {
	t.Helper()
	all, err := list(dir)
	check(t, err)
	return all
}

func options(t *testing.T) Options {
	return Options{Dir: filepath.Join(t.TempDir(), "ring"), Keep: 10 * time.Minute, Space: 1 << 20, Head: record.Head{Window: 10 * time.Second}}
}

func window(from, to int) model.Window {
	return model.Window{Start: begin.Add(time.Duration(from) * time.Second), End: begin.Add(time.Duration(to) * time.Second)}
}

// counts are the packets that each run of a window counted, with its times.
func counts(t *testing.T, dir string, w model.Window) []string {
	t.Helper()
	p, err := Read(dir, w)
	check(t, err)
	defer func() { check(t, p.Close()) }()
	var out []string
	for _, run := range p.Runs {
		f, err := record.Open(run, run.Size)
		check(t, err)
		if f.Damage != nil {
			t.Error(f.Damage)
		}
		s, err := f.Window(0)
		check(t, err)
		n := uint64(0)
		for _, h := range s.Traffic.Hops {
			n += h.Packets
		}
		out = append(out, fmt.Sprintf("%s-%s: %d", s.Window.Start.UTC().Format("15:04:05"), s.Window.End.UTC().Format("15:04:05"), n))
	}
	return out
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRing: the ring has the last minutes, in whole recordings of a minute, and a window of it
// has what was counted in that, while it is written too.
func TestRing(t *testing.T) {
	o := options(t)
	r := New(o)
	fill(t, r, 0, 3605, nil)
	all := segments(t, o.Dir)
	if n := len(all); n != 12 || !all[0].start.Equal(begin.Add(49*time.Minute)) || all[11].whole || !all[10].whole {
		t.Fatalf("%d segments: %v", n, all)
	}
	equal(t, counts(t, o.Dir, window(3300, 3420)), "03:55:00-03:57:00: 120")
	equal(t, counts(t, o.Dir, window(3590, 3605)), "03:59:30-04:00:04: 34")
	equal(t, counts(t, o.Dir, window(0, 60)))
	file, err := os.Open(filepath.Join(o.Dir, all[3].name()))
	check(t, err)
	defer file.Close()
	f, err := record.Open(file, all[3].size)
	check(t, err)
	s, err := f.Window(0)
	check(t, err)
	if f.Damage != nil || f.Len() != 60 || s.Traffic.Hops[0].Packets != 59 {
		t.Errorf("a segment: %v, %d readings, %+v", f.Damage, f.Len(), s.Traffic.Hops)
	}
	check(t, r.Close())
}

// TestSpace: the ring is never larger than its space, and the latest is in it.
func TestSpace(t *testing.T) {
	o := options(t)
	o.Space = 30_000
	r := New(o)
	fill(t, r, 0, 600, nil)
	all := segments(t, o.Dir)
	if len(all) < 2 || all[0].start.Equal(begin) || !r.last.Equal(begin.Add(599*time.Second)) {
		t.Errorf("%d segments: %v", len(all), all)
	}
	check(t, r.Close())
	// Where not one reading fits in, that is an error, and nothing is left.
	o = options(t)
	o.Space = 200
	r = New(o)
	if err := r.Write(reading(begin, 0)); err == nil || onDisk(t, o.Dir) > 0 {
		t.Errorf("%v, %d bytes", err, onDisk(t, o.Dir))
	}
	check(t, r.Close())
}

// TestKept: what a finding was in when it opened and closed stays, with the minute before,
// until it is a day old.
func TestKept(t *testing.T) {
	o := options(t)
	r := New(o)
	row := func(second int) []model.Tracked {
		f := model.Tracked{ID: 1, First: begin.Add(900 * time.Second), Closed: second >= 1500, Finding: model.Finding{Code: "MissingUDR", Severity: model.Critical}}
		if second < 900 {
			return nil
		}
		return []model.Tracked{f}
	}
	fill(t, r, 0, 3600, row)
	kept := func() (out []string) {
		for _, s := range segments(t, o.Dir) {
			if s.kept {
				out = append(out, s.start.UTC().Format("15:04"))
			}
		}
		return out
	}
	equal(t, kept(), "03:14", "03:15", "03:25")
	equal(t, counts(t, o.Dir, window(840, 960)), "03:14:00-03:15:59: 119")
	// Another process takes that over, and its own observation is another.
	check(t, r.Close())
	r = New(o)
	later := begin.Add(2 * time.Hour)
	for i := range 700 {
		check(t, r.Write(reading(later, i)))
	}
	equal(t, kept(), "03:14", "03:15", "03:25")
	check(t, r.Close())
	r = New(o)
	later = begin.Add(25 * time.Hour)
	for i := range 100 {
		check(t, r.Write(reading(later, i)))
	}
	equal(t, kept())
	check(t, r.Close())
}

// TestKilled: a ring goes on behind what a process left that was killed while it wrote.
func TestKilled(t *testing.T) {
	o := options(t)
	r := New(o)
	fill(t, r, 0, 75, nil)
	last := segments(t, o.Dir)[1]
	check(t, os.Truncate(r.path(last), last.size-5))
	if err := New(o).Write(reading(begin, 80)); !errors.Is(err, ErrHeld) {
		t.Fatalf("a second writer: %v", err)
	}
	if running, err := Running(o.Dir); !running || err != nil {
		t.Errorf("running: %v, %v", running, err)
	}
	check(t, r.lock.Close()) // as the kernel does
	if running, err := Running(o.Dir); running || err != nil {
		t.Errorf("running: %v, %v", running, err)
	}
	equal(t, counts(t, o.Dir, window(30, 80)), "03:00:30-03:01:13: 43")
	r = New(o)
	later := begin.Add(80 * time.Second)
	for i := range 31 {
		check(t, r.Write(reading(later, i)))
	}
	check(t, r.Close())
	equal(t, counts(t, o.Dir, window(30, 120)), "03:00:30-03:01:13: 43", "03:01:20-03:01:50: 30")
}

// TestClock: a clock that is set back makes another run, not an error.
func TestClock(t *testing.T) {
	o := options(t)
	r := New(o)
	fill(t, r, 600, 700, nil)
	fill(t, r, 300, 420, nil)
	fill(t, r, 7000, 7100, nil)
	check(t, r.Close())
	equal(t, counts(t, o.Dir, window(330, 390)), "03:05:30-03:06:30: 60")
	equal(t, counts(t, o.Dir, window(600, 660)), "03:10:00-03:11:00: 60")
	equal(t, counts(t, o.Dir, window(7030, 7060)), "04:57:10-04:57:40: 30")
}

// TestNoDirectory: where nothing can be written the ring says so, and goes on once it can.
func TestNoDirectory(t *testing.T) {
	o := options(t)
	check(t, os.WriteFile(o.Dir, nil, 0o600))
	r := New(o)
	for i := range 30 {
		if err := r.Write(reading(begin, i)); err == nil {
			t.Fatal("no error")
		}
	}
	check(t, os.Remove(o.Dir))
	fill(t, r, 30, 50, nil)
	check(t, r.Close())
}

// writes writes readings of each second from one to another. An error is returned for those that cannot be read back,
// and for no others: the first and the last of these are returned, or -1.
func writes(t *testing.T, r *Ring, from, to int, before func()) (first, last int) {
	t.Helper()
	first, last = -1, -1
	for i := from; i < to; i++ {
		before()
		now := reading(begin, i)
		for link := range 100 {
			now.Point.Snapshot.Traffic.Hops = append(now.Point.Snapshot.Traffic.Hops, model.HopCount{IfIndex: 100 + link, Packets: rand.Uint64(), Bytes: rand.Uint64()})
		}
		err := r.Write(now)
		read, _ := Latest(r.Dir)
		if recorded := read.At.Equal(begin.Add(time.Duration(i) * time.Second)); recorded != (err == nil) {
			t.Fatalf("second %d: recorded %v, error %v", i, recorded, err)
		}
		if err != nil {
			first, last = model.Either(first < 0, i, first), i
		}
	}
	return first, last
}

// TestGone takes away what a ring has written, while it writes. It says so with each reading that is lost by that, begins
// anew with the next state, and holds the directory again.
func TestGone(t *testing.T) {
	for _, tt := range []struct {
		name string
		// lost are the seconds of the readings from 95 on that are not recorded.
		lost [2]int
		gone func(t *testing.T, dir string, all []segment)
	}{
		{"the directory", [2]int{95, 99}, func(t *testing.T, dir string, _ []segment) { check(t, os.RemoveAll(dir)) }},
		{"and its parent", [2]int{95, 99}, func(t *testing.T, dir string, _ []segment) { check(t, os.RemoveAll(filepath.Dir(dir))) }},
		{"the directory, for an empty one", [2]int{95, 99}, func(t *testing.T, dir string, _ []segment) {
			check(t, os.Rename(dir, dir+".old"))
			check(t, os.Mkdir(dir, 0o700))
		}},
		{"the directory, for a copy", [2]int{95, 99}, func(t *testing.T, dir string, _ []segment) {
			check(t, os.Rename(dir, dir+".old"))
			check(t, os.CopyFS(dir, os.DirFS(dir+".old")))
		}},
		{"all files", [2]int{95, 99}, func(t *testing.T, dir string, all []segment) {
			for _, s := range all {
				check(t, os.Remove(filepath.Join(dir, s.name())))
			}
			check(t, os.Remove(filepath.Join(dir, lockName)))
		}},
		{"the file that is written", [2]int{95, 99}, func(t *testing.T, dir string, all []segment) {
			check(t, os.Remove(filepath.Join(dir, all[len(all)-1].name())))
		}},
		{"what is in the file that is written", [2]int{95, 99}, func(t *testing.T, dir string, all []segment) {
			check(t, os.Truncate(filepath.Join(dir, all[len(all)-1].name()), 0))
		}},
		{"the lock", [2]int{95, 99}, func(t *testing.T, dir string, _ []segment) { check(t, os.Remove(filepath.Join(dir, lockName))) }},
		{"an older file", [2]int{-1, -1}, func(t *testing.T, dir string, all []segment) {
			check(t, os.Remove(filepath.Join(dir, all[0].name())))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t)
			o.Dir = filepath.Join(o.Dir, "inner")
			r := New(o)
			writes(t, r, 0, 95, func() {})
			tt.gone(t, o.Dir, segments(t, o.Dir))
			if first, last := writes(t, r, 95, 96, func() {}); first != tt.lost[0] || first != last {
				t.Errorf("second %d to %d not recorded, want %v", first, last, tt.lost)
			}
			if _, last := writes(t, r, 96, 300, func() {}); last != tt.lost[1] {
				t.Errorf("not recorded until %d, want %v", last, tt.lost)
			}
			if err := New(o).Write(reading(begin, 300)); !errors.Is(err, ErrHeld) {
				t.Errorf("a second writer: %v", err)
			}
			if size, _ := r.Size(); size != onDisk(t, o.Dir) {
				t.Errorf("%d bytes, of which %d are on the disk", size, onDisk(t, o.Dir))
			}
			one(t, o.Dir, window(120, 290))
			check(t, r.Close())
		})
	}
}

// TestFullDisk has a disk of 2 MiB that is smaller than the ring may be, and another process that takes what is left of
// it, once and then whenever there is space. The ring gives up its oldest for the latest, says so while it cannot write,
// and goes on once there is space.
func TestFullDisk(t *testing.T) {
	o := options(t)
	o.Dir, o.Space = filepath.Join(tmpfs(t, "2m"), "ring"), 4<<20
	r := New(o)
	idle := func() {}
	if first, last := writes(t, r, 0, 1200, idle); first >= 0 || onDisk(t, o.Dir) < 1<<20 {
		t.Fatalf("a disk that is full of the ring: not recorded from %d to %d, %d bytes", first, last, onDisk(t, o.Dir))
	}
	hog, err := os.Create(filepath.Join(filepath.Dir(o.Dir), "full"))
	check(t, err)
	t.Cleanup(func() { hog.Close() })
	fills := func() {
		for err = nil; err == nil; {
			_, err = hog.Write(make([]byte, 4096))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	fills()
	if first, last := writes(t, r, 1200, 1500, idle); first >= 0 {
		t.Errorf("a disk that is full once: not recorded from %d to %d", first, last)
	}
	first, last := writes(t, r, 1500, 2005, fills)
	if first < 0 || last != 2004 {
		t.Errorf("a disk that is kept full: not recorded from %d to %d", first, last)
	}
	check(t, hog.Truncate(0))
	if first, last = writes(t, r, 2005, 2300, idle); first != 2005 || last != 2009 {
		t.Errorf("once there is space: not recorded from %d to %d", first, last)
	}
	one(t, o.Dir, window(2010, 2299))
	check(t, r.Close())
}

// one wants one run of a window.
func one(t *testing.T, dir string, w model.Window) {
	t.Helper()
	p, err := Read(dir, w)
	check(t, err)
	defer func() { check(t, p.Close()) }()
	if len(p.Runs) != 1 || p.Runs[0].Start.After(w.Start) || p.Runs[0].End.Before(w.End) {
		t.Errorf("%v, want all of %v", p.Runs, w)
	}
}

// tmpfs is a disk of a size, until the test ends.
func tmpfs(t *testing.T, size string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	check(t, unix.Mount("none", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
