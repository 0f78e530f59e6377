package record

import (
	"bytes"
	"errors"
	"io"

	"github.com/lasthop/lasthop/probe/model"
)

// Follows reports whether a recording goes on where another ends: both are of one
// observation, in one version of the format.
func (f *File) Follows(before *File) bool {
	return !f.Head.Began.IsZero() && f.Head.Began.Equal(before.Head.Began) && f.version == before.version &&
		f.At(0).After(before.At(before.Len()-1))
}

// Join makes one recording, of size bytes, of parts that follow each other. It has what is needed of the window: from the
// last key that is not later than its start, or the one before that if no state was read since, to the first reading that
// is not earlier than its end, or as far as the parts go.
func Join(parts []*File, w model.Window) (r io.ReaderAt, size int64, err error) {
	before, begin, end := place{}, place{}, place{len(parts) - 1, parts[len(parts)-1].Len() - 1}
	found, stated := false, false
	for i, f := range parts {
		if i > 0 && !f.Follows(parts[i-1]) {
			return nil, 0, errors.New("join recordings: they are not parts of one observation")
		}
		for n := range f.frames {
			at := f.At(n)
			switch {
			case f.frames[n].kind == kindKey && !at.After(w.Start):
				before, begin = begin, place{i, n}
			case !found && f.Whole(n):
				stated = true
			}
			if !found && !at.Before(w.End) {
				end, found = place{i, n}, true
			}
		}
	}
	if !stated {
		begin = before
	}
	var out joined
	out.add(parts[0].r, 0, parts[0].frames[0].offset-headSize)
	for i := begin.part; i <= end.part; i++ {
		f := parts[i]
		from, to := f.frames[0], f.frames[f.Len()-1]
		if i == begin.part {
			from = f.frames[begin.frame]
		}
		if i == end.part {
			to = f.frames[end.frame]
		}
		out.add(f.r, from.offset-headSize, to.offset+int64(to.length))
	}
	last := header(kindEnd, parts[end.part].At(end.frame), nil)
	out.add(bytes.NewReader(last), 0, int64(len(last)))
	return out, out.size(), nil
}

// place is a reading of one of several recordings.
type place struct{ part, frame int }

// joined reads pieces as if they were one file.
type joined []piece

type piece struct {
	io.ReaderAt
	// from is where the piece begins in its file, at and end where it is in the whole.
	from, at, end int64
}

func (j *joined) add(r io.ReaderAt, from, to int64) {
	at := j.size()
	*j = append(*j, piece{r, from, at, at + to - from})
}

func (j joined) size() int64 {
	if len(j) == 0 {
		return 0
	}
	return j[len(j)-1].end
}

// ReadAt reads what lies in several pieces, too.
func (j joined) ReadAt(b []byte, offset int64) (n int, err error) {
	for _, p := range j {
		if offset >= p.end || n == len(b) {
			continue
		}
		part := b[n:min(int64(len(b)), int64(n)+p.end-offset)]
		got, err := p.ReaderAt.ReadAt(part, p.from+offset-p.at)
		n, offset = n+got, offset+int64(got)
		if got < len(part) {
			return n, err
		}
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}
