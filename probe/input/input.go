// Package input opens and reads files that others made: the host's, the user's. A device or a pipe may have no end,
// and a file any size, so each read has a limit, and what is no regular file is refused unless the caller wants it.
package input

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Kind says what is opened.
type Kind int

// The kinds: a regular file, also by a link; one that is no link, where others may make those; what a user names,
// which may be a pipe.
const (
	Regular Kind = iota
	NoLink
	Pipe
)

// Open opens a file of a kind for reading.
func Open(path string, kind Kind) (*os.File, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for a writer.
	flags := os.O_RDONLY | syscall.O_NONBLOCK
	if kind == NoLink {
		flags |= noFollow
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	return Opened(f, kind)
}

// Opened is Open of what was opened otherwise, without waiting. It closes what is refused.
func Opened(f *os.File, kind Kind) (*os.File, error) {
	info, err := f.Stat()
	if err == nil && kind == Pipe && info.Mode().Type() == fs.ModeNamedPipe {
		return f, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: f.Name(), Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// SizeError says that a file is larger than its limit, in bytes.
type SizeError struct{ Limit int64 }

func (e *SizeError) Error() string {
	size := fmt.Sprintf("%d KiB", e.Limit>>10)
	if e.Limit >= 1<<20 {
		size = fmt.Sprintf("%d MiB", e.Limit>>20)
	}
	return "the file is too large: want at most " + size
}

// Read reads a file of a kind and of at most limit bytes.
func Read(path string, kind Kind, limit int64) ([]byte, error) {
	f, err := Open(path, kind)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return All(f, limit)
}

// All reads r to its end, which comes before limit.
func All(r io.Reader, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	if int64(len(text)) > limit {
		return nil, &SizeError{limit}
	}
	return text, err
}

// maxLines is more than any list of modules or of a kernel's symbols has, in bytes.
const maxLines = 64 << 20

// Lines calls f with each line of a file.
func Lines(path string, f func(string)) error {
	file, err := Open(path, Regular)
	if err != nil {
		return err
	}
	defer file.Close()
	s := bufio.NewScanner(io.LimitReader(file, maxLines))
	// A line of modules.dep has all that a module needs.
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		f(s.Text())
	}
	return s.Err()
}

// Entries are the names in a directory, nil if it does not exist, and of too many some.
func Entries(dir string, most int, what string) ([]string, error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|directory, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(most + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if len(names) > most {
		names, err = names[:most], fmt.Errorf("%s: more than %d %s", dir, most, what)
	}
	return append([]string{}, names...), err
}
