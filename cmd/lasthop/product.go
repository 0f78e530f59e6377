package main

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/flags"
)

// product is what a command makes besides its report: a new file, a named pipe, or the standard output.
type product struct {
	io.Writer
	file   *os.File
	closed bool
}

// produce makes a product. The standard output is that of one product at most.
func (a *app) produce(what, name string) (*product, error) {
	if name != "-" && name != "/dev/stdout" {
		f, err := create(what, name)
		if err != nil {
			return nil, err
		}
		p := &product{Writer: f, file: f}
		a.made = append(a.made, p)
		return p, nil
	}
	switch {
	case a.stdoutTaken:
		return nil, usagef("%s %s: another FILE already uses standard output", what, name)
	case flags.Terminal(os.Stdout):
		return nil, usagef("%s %s: standard output is a terminal; use a file or a pipe", what, name)
	}
	a.stdoutTaken = true
	return &product{Writer: a.reader.to(os.Stdout), file: os.Stdout}, nil
}

func (p *product) isStdout() bool { return p.file == os.Stdout }

func (p *product) Close() error {
	p.closed = true
	return p.file.Close()
}

// Fd is for those who ask what kind of file it is.
func (p *product) Fd() uintptr { return p.file.Fd() }

// discard removes unfinished products: those that were not closed.
func (a *app) discard() error {
	var err error
	for _, p := range a.made {
		if !p.closed {
			err = errors.Join(err, discard(p.file))
		}
	}
	return err
}

// flush waits until a file is on disk. A pipe has no disk.
func (p *product) flush() error {
	if err := p.file.Sync(); !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// create creates a file that only its owner may read, or opens a named pipe. It never overwrites a file and follows no
// symbolic link: who may write in the directory must not choose what root writes to.
func create(what, name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) && isPipe(os.Lstat(name)) {
		f, err = os.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW, 0)
		if err == nil && !isPipe(f.Stat()) {
			f.Close()
			err = fs.ErrExist // it was replaced meanwhile
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, usagef("%s %s: the file exists, and lasthop does not overwrite files: use another name, or remove it", what, name)
	}
	if err != nil {
		return nil, usagef("%s: %w", what, err)
	}
	return f, nil
}

func isPipe(info fs.FileInfo, err error) bool {
	return err == nil && info.Mode().Type() == fs.ModeNamedPipe
}

// discard closes and removes a file that create made.
func discard(f *os.File) error {
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		err = os.Remove(f.Name())
	}
	return errors.Join(f.Close(), err)
}
