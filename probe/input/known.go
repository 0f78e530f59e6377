package input

import (
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Known is what files held that are read again and again. It is not safe for concurrent use.
type Known[T any] struct{ last, next map[string]known[T] }

// known is what a file held, or why that is nothing.
type known[T any] struct {
	info  fs.FileInfo
	holds T
	err   error
}

// Read returns what decode makes of the text of a file that is no link and has at most limit bytes, and of the time at
// which it was written. A file that did not change is not read again.
func (k *Known[T]) Read(path string, limit int64, decode func(text []byte, written time.Time) (T, error)) (none T, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return none, err
	}
	x, ok := k.last[path]
	if !ok || !os.SameFile(x.info, info) || !x.info.ModTime().Equal(info.ModTime()) || x.info.Size() != info.Size() {
		text, err := Read(path, NoLink, limit)
		if err != nil {
			return none, err
		}
		x.info = info
		x.holds, x.err = decode(text, info.ModTime())
	}
	if k.next == nil {
		k.next = map[string]known[T]{}
	}
	k.next[path] = x
	return x.holds, x.err
}

// Forget forgets the files that were not read since it was called before.
func (k *Known[T]) Forget() { k.last, k.next = k.next, nil }

// Loss counts what could not be read, and has the first reason.
type Loss struct {
	n     int
	first error
}

// Add adds an error, unless there is none.
func (l *Loss) Add(err error) {
	if err != nil {
		if l.n++; l.n == 1 {
			l.first = err
		}
	}
}

// Err says what could not be read, nil if nothing.
func (l *Loss) Err() error {
	if l.n < 2 {
		return l.first
	}
	return fmt.Errorf("%w, and %d more", l.first, l.n-1)
}
