// Package ring keeps the last part of an observation in a directory, and reads a window of it back. The directory has
// segments: recordings of about a minute each, whose names begin with their number. That which is being written ends in
// ".part", the others in ".rec"; one to keep for a day has ".kept" before that.
//
// Each reading is written at once, so that what another process reads is at most one
// reading behind, and a process that is killed leaves a segment whose last reading alone
// may be cut off. The writer holds a lock on a file of the directory.
package ring

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

// segment is a file of the ring.
type segment struct {
	number uint64
	start  time.Time
	// end is when it was last written.
	end         time.Time
	size        int64
	kept, whole bool
}

const (
	stamp    = "20060102T150405.000Z"
	lockName = "lock"
)

func (s segment) name() string {
	kept, ending := model.Either(s.kept, ".kept", ""), model.Either(s.whole, ".rec", ".part")
	return fmt.Sprintf("%08d-%s%s%s", s.number, s.start.UTC().Format(stamp), kept, ending)
}

// length is how much time a segment covers, as far as the clock was not set meanwhile.
func (s segment) length() time.Duration {
	return min(max(s.end.Sub(s.start), time.Second), 2*segmentLength)
}

func named(name string) (s segment, ok bool) {
	number, rest, _ := strings.Cut(name, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return s, false
	}
	rest, s.whole = strings.CutSuffix(rest, ".rec")
	rest, part := strings.CutSuffix(rest, ".part")
	rest, s.kept = strings.CutSuffix(rest, ".kept")
	s.start, err = time.Parse(stamp, rest)
	s.number = n
	return s, err == nil && (s.whole || part)
}

// list returns the segments of a directory, oldest first.
func list(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []segment
	for _, e := range entries {
		s, ok := named(e.Name())
		if !ok {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		s.end, s.size = info.ModTime(), info.Size()
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b segment) int { return cmp.Compare(a.number, b.number) })
	return out, nil
}

// Running reports whether a process writes to the ring in a directory.
func Running(dir string) (bool, error) {
	file, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock)
	return lock.Type != unix.F_UNLCK, err
}

// Past is what a ring has of a window.
type Past struct {
	// Runs are the observations that overlap the window, oldest first: one where nothing
	// was started anew in it. Counts of different runs cannot be compared.
	Runs  []Run
	files []*os.File
}

// Run is one observation's part of a window: a recording of that part.
type Run struct {
	io.ReaderAt
	Size int64
	// Start and End are the times of the first and last reading.
	Start, End time.Time
}

// Read finds what the ring in a directory has of a window.
func Read(dir string, w model.Window) (*Past, error) {
	all, err := list(dir)
	if err != nil {
		return nil, err
	}
	p := &Past{}
	var parts []*record.File
	for i, s := range all {
		last := i+1 == len(all)
		if s.start.After(w.End) || !last && !s.end.Before(s.start) && s.end.Before(w.Start.Add(-stateEvery)) {
			continue
		}
		f, err := p.open(dir, s)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		if f == nil {
			continue
		}
		if len(parts) > 0 && !f.Follows(parts[len(parts)-1]) {
			err, parts = p.add(parts, w), nil
		}
		parts = append(parts, f)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if err := p.add(parts, w); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Latest is the last reading in a directory. Its error is fs.ErrNotExist if there is none.
func Latest(dir string) (model.Reading, error) {
	all, err := list(dir)
	if err != nil {
		return model.Reading{}, err
	}
	for _, s := range slices.Backward(all) {
		if _, r, err := lastOf(dir, s); r.Point.Snapshot != nil || err != nil {
			return r, err
		}
	}
	return model.Reading{}, fmt.Errorf("%s: no reading: %w", dir, fs.ErrNotExist)
}

// Each calls take with the last reading of each recording in a directory, and when that begins, oldest first.
func Each(dir string, take func(first time.Time, last model.Reading)) error {
	all, err := list(dir)
	for _, s := range all {
		first, r, failed := lastOf(dir, s)
		if err = errors.Join(err, failed); r.Point.Snapshot != nil {
			take(first, r)
		}
	}
	return err
}

// lastOf is the last reading of a segment, which has no snapshot if there is none.
func lastOf(dir string, s segment) (first time.Time, r model.Reading, err error) {
	p := &Past{}
	f, err := p.open(dir, s)
	if f != nil {
		first = f.At(0)
		r, err = f.Reading(f.Len() - 1)
		f.Close()
	}
	return first, r, errors.Join(err, p.Close())
}

// open opens a segment. It is nil if it has no reading, or is gone: the writer removes old ones.
func (p *Past) open(dir string, s segment) (*record.File, error) {
	file, err := os.Open(filepath.Join(dir, s.name()))
	if errors.Is(err, fs.ErrNotExist) {
		// It may have another name by now.
		now, failed := list(dir)
		if failed != nil {
			return nil, failed
		}
		if i := slices.IndexFunc(now, func(o segment) bool { return o.number == s.number }); i >= 0 {
			file, err = os.Open(filepath.Join(dir, now[i].name()))
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p.files = append(p.files, file)
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	f, err := record.Open(file, info.Size())
	if wrong := (*record.FormatError)(nil); errors.As(err, &wrong) {
		return nil, nil
	}
	return f, err
}

func (p *Past) add(parts []*record.File, w model.Window) error {
	if len(parts) == 0 {
		return nil
	}
	last := parts[len(parts)-1]
	run := Run{Start: parts[0].At(0), End: last.At(last.Len() - 1)}
	if run.Start.After(w.End) || run.End.Before(w.Start) {
		return nil
	}
	var err error
	run.ReaderAt, run.Size, err = record.Join(parts, w)
	if run.Start.Before(w.Start) {
		run.Start = w.Start
	}
	if run.End.After(w.End) {
		run.End = w.End
	}
	p.Runs = append(p.Runs, run)
	return err
}

// Close closes the files.
func (p *Past) Close() error { return errors.Join(model.Map(p.files, (*os.File).Close)...) }
