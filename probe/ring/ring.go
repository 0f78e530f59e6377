package ring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

const (
	// A segment ends after segmentLength, or with 1/sizeShare of the space.
	segmentLength = time.Minute
	sizeShare     = 16
	stateEvery    = 30 * time.Second
	// keptFor is how long the segments of a finding are kept, and keptShare of the space
	// they may take together: 1/keptShare.
	keptFor   = 24 * time.Hour
	keptShare = 2
)

// ErrHeld says that another process writes to the directory.
var ErrHeld = errors.New("another agent writes to it")

// errState says why a reading of counts alone cannot begin a recording.
var errState = errors.New("a recording begins with the next reading of the node's state")

// Options say where a ring is, and how much of it is kept.
type Options struct {
	Dir string
	// Keep is how much recorded time is kept, Space how many bytes of recordings there may be at any time.
	Keep  time.Duration
	Space int64
	// Head is that of the recordings, but for Node and Began.
	Head record.Head
}

// Ring writes readings. It is not safe for concurrent use.
type Ring struct {
	Options
	lock     *os.File
	segments []segment // oldest first
	// file is that of the last segment while it is written, else nil.
	file        *os.File
	writer      *record.Writer
	last, began time.Time
	// stated is when a state was written last.
	stated time.Time
	// open are the findings that were open at the last reading.
	open map[int]bool
	// failed is why the last reading was not recorded, nil if it was.
	failed error
}

// New returns a ring. It opens the directory with the first reading, again and again until that succeeds.
func New(o Options) *Ring { return &Ring{Options: o, open: map[int]bool{}} }

// Size returns the bytes and the recorded time of the ring.
func (r *Ring) Size() (bytes int64, span time.Duration) {
	for _, s := range r.segments {
		bytes += s.size
		span += s.length()
	}
	return bytes, span
}

// Write appends a reading. If it returns nil, the reading can be read back from the directory. After an error it begins
// again with the next reading that has state, with what the directory has then. The ring is never larger than its space.
func (r *Ring) Write(now model.Reading) error {
	r.failed = r.write(now)
	if r.failed == nil {
		return nil
	}
	if err := r.finish(); err != nil {
		r.failed = errors.Join(r.failed, err)
	}
	r.segments, _ = list(r.Dir) // none if it is gone
	return fmt.Errorf("record in %s: %w", r.Dir, r.failed)
}

func (r *Ring) write(now model.Reading) error {
	due := func(s *segment) bool { return now.At.Sub(s.start) >= segmentLength || s.size >= r.Space/sizeShare }
	began := now.Point.Snapshot.Window.Start
	if !began.Equal(r.began) {
		r.open = map[int]bool{}
	}
	if r.file != nil && now.Point.Whole && due(r.current()) || !began.Equal(r.began) || !now.At.After(r.last) {
		// Where the clock was set back a recording cannot go on.
		if err := r.finish(); err != nil {
			return err
		}
	}
	r.last, r.began = now.At, began
	// While nothing is wrong a state each half minute suffices: a node's may be large.
	if r.file != nil && quiet(now) && now.At.Sub(r.stated) < stateEvery {
		now.Point.Whole = false
	}
	if now.Point.Whole {
		r.stated = now.At
	}
	err := model.Either(r.failed != nil, r.failed, errState)
	switch {
	case r.file != nil:
		err = r.leads(lockName, r.lock)
	case now.Point.Whole:
		err = r.begin(now)
	}
	if err == nil {
		err = errors.Join(r.mark(now), r.writer.Write(now))
	}
	if err != nil {
		return err
	}
	s := r.current()
	s.end = now.At
	return r.leads(s.name(), r.file)
}

// leads returns an error unless a name in the directory leads to a file that was opened by that name, of the
// size that was written.
func (r *Ring) leads(name string, file *os.File) error {
	there, err := os.Stat(filepath.Join(r.Dir, name))
	if err != nil {
		return err
	}
	opened, err := file.Stat()
	if err == nil && (!os.SameFile(there, opened) || file == r.file && there.Size() != r.current().size) {
		err = fmt.Errorf("%s was replaced by another process", name)
	}
	return err
}

// quiet reports whether nothing was found that was not closed.
func quiet(r model.Reading) bool {
	return !slices.ContainsFunc(r.Findings, func(f model.Tracked) bool { return !f.Closed || f.Last.Add(stateEvery).After(r.At) })
}

// Close ends the segment that is being written, and gives the directory up.
func (r *Ring) Close() error { return errors.Join(r.finish(), r.release()) }

func (r *Ring) release() (err error) {
	if r.lock != nil {
		err, r.lock = r.lock.Close(), nil
	}
	return err
}

func (r *Ring) current() *segment { return &r.segments[len(r.segments)-1] }

// take takes over what is in the directory, and makes and locks that unless it is still locked.
func (r *Ring) take() (err error) {
	if r.lock == nil || r.leads(lockName, r.lock) != nil {
		if err := errors.Join(r.release(), os.MkdirAll(r.Dir, 0o700)); err != nil {
			return err
		}
		lock, err := os.OpenFile(filepath.Join(r.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
				err = ErrHeld
			}
			return errors.Join(err, lock.Close())
		}
		r.lock = lock
	}
	r.segments, err = list(r.Dir)
	return err
}

func (r *Ring) begin(now model.Reading) error {
	if err := r.take(); err != nil {
		return err
	}
	for i := range r.segments {
		if !r.segments[i].whole {
			if err := r.rename(&r.segments[i], func(s *segment) { s.whole = true }); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(r.expire(now.At), r.room(0)); err != nil {
		return err
	}
	s := segment{number: 1, start: now.At, end: now.At}
	if len(r.segments) > 0 {
		s.number = r.current().number + 1
	}
	file, err := os.OpenFile(r.path(s), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	r.segments, r.file = append(r.segments, s), file
	head := r.Head
	head.Node, head.Began = now.Point.Snapshot.Node.Name, r.began
	if r.writer != nil {
		return r.writer.Begin(appending{r}, head)
	}
	r.writer, err = record.NewWriter(appending{r}, head)
	return err
}

func (r *Ring) path(s segment) string { return filepath.Join(r.Dir, s.name()) }

// rename changes what a segment's name says of it, if it is still there.
func (r *Ring) rename(s *segment, how func(*segment)) error {
	to := *s
	how(&to)
	if err := unlessGone(os.Rename(r.path(*s), r.path(to))); err != nil {
		return err
	}
	*s = to
	return nil
}

// finish ends the segment that is being written, if there is one. One without a reading is removed.
func (r *Ring) finish() error {
	if r.file == nil {
		return nil
	}
	var err error
	if r.writer != nil && !r.writer.Failed {
		err = r.writer.Close()
	}
	err = errors.Join(err, r.file.Close())
	empty := r.writer == nil || r.writer.Readings == 0
	r.file = nil
	if empty {
		return errors.Join(err, r.remove(len(r.segments)-1))
	}
	s := r.current()
	return errors.Join(err, r.rename(s, func(s *segment) { s.whole = true }), unlessGone(os.Chtimes(r.path(*s), s.end, s.end)))
}

// appending is the file that is being written, as its writer sees it.
type appending struct{ *Ring }

// Write makes room first.
func (a appending) Write(b []byte) (int, error) {
	err := a.room(int64(len(b)))
	if err == nil {
		err = a.add(b)
	}
	if i := a.oldest(); errors.Is(err, unix.ENOSPC) && i >= 0 {
		// The latest is worth more than the oldest. That alone goes: while something reads it, this frees nothing.
		if err = a.remove(i); err == nil {
			err = a.add(b)
		}
	}
	return model.Either(err == nil, len(b), 0), err
}

// add takes back what was written in part.
func (a appending) add(b []byte) error {
	s := a.current()
	if _, err := a.file.Write(b); err != nil {
		return errors.Join(err, a.file.Truncate(s.size))
	}
	s.size += int64(len(b))
	return nil
}

// mark keeps the segments of a finding that opens, with the one before, and of one that closes.
func (r *Ring) mark(now model.Reading) error {
	open, back := map[int]bool{}, 0
	for _, f := range now.Findings {
		if f.Severity.Rank() < model.Warning.Rank() {
			continue
		}
		switch open[f.ID] = !f.Closed; {
		case !f.Closed && !r.open[f.ID]:
			back = 2
		case f.Closed && r.open[f.ID]:
			back = max(back, 1)
		}
	}
	r.open = open
	for i := max(0, len(r.segments)-back); i < len(r.segments); i++ {
		if !r.segments[i].kept {
			if err := r.rename(&r.segments[i], func(s *segment) { s.kept = true }); err != nil {
				return err
			}
		}
	}
	return nil
}

// expire removes what is older than is to be kept. Of ordinary segments recorded time counts:
// neither a pause nor a clock that is set makes them old.
func (r *Ring) expire(now time.Time) error {
	var span time.Duration
	var kept int64
	for i := len(r.segments) - 1; i >= 0; i-- {
		s, old := &r.segments[i], span >= r.Keep
		if s.kept {
			kept += s.size
			old = now.Sub(s.end) >= keptFor || old && kept > r.Space/keptShare
		} else {
			span += s.length()
		}
		if old {
			if err := r.remove(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// room removes old segments until so many bytes fit in.
func (r *Ring) room(more int64) error {
	for {
		size, _ := r.Size()
		if size+more <= r.Space {
			return nil
		}
		i := r.oldest()
		if i < 0 {
			return fmt.Errorf("%d bytes do not fit in a space of %d", size+more, r.Space)
		}
		if err := r.remove(i); err != nil {
			return err
		}
	}
}

// oldest is the segment that is worth least: the oldest ordinary one, but a kept one where
// these have more than their share. It is -1 if there is none but that being written.
func (r *Ring) oldest() int {
	done := r.segments
	if r.file != nil {
		done = done[:len(done)-1]
	}
	var kept int64
	for _, s := range done {
		if s.kept {
			kept += s.size
		}
	}
	first := func(kept bool) int { return slices.IndexFunc(done, func(s segment) bool { return s.kept == kept }) }
	if i := first(false); i >= 0 && kept <= r.Space/keptShare {
		return i
	}
	if i := first(true); i >= 0 {
		return i
	}
	return first(false)
}

func (r *Ring) remove(i int) error {
	if err := unlessGone(os.Remove(r.path(r.segments[i]))); err != nil {
		return err
	}
	r.segments = slices.Delete(r.segments, i, i+1)
	return nil
}

// unlessGone is an error about a file that another process has not removed.
func unlessGone(err error) error { return model.Unless(err, fs.ErrNotExist) }
