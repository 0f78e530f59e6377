package files

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"

	"golang.org/x/sys/unix"
)

// Error says that a file cannot be read, or where its content is not what was expected.
type Error struct {
	Path string
	// Line and Column count from 1, columns in bytes. They are 0 if the place is not known.
	Line, Column int
	// Want is what was expected there.
	Want string
	Err  error
}

func (e *Error) Error() string {
	s := e.Path
	if e.Line > 0 {
		s = fmt.Sprintf("%s:%d:%d", e.Path, e.Line, e.Column)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Want != "" {
		s += ": want " + e.Want
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// NewError returns an error at an offset of the file's text.
func NewError(path string, text []byte, offset int64, want string, err error) *Error {
	offset = max(0, min(offset, int64(len(text))))
	before := text[:offset]
	return &Error{
		Path:   path,
		Line:   bytes.Count(before, []byte{'\n'}) + 1,
		Column: len(before) - bytes.LastIndexByte(before, '\n'),
		Want:   want,
		Err:    err,
	}
}

// maxFile limits a file's size: 5,000 nodes as kubectl prints them are some 100 MiB.
// maxObjects limits the JSON objects in it, of which each takes memory, however short it is: as many as kubectl prints
// in so many bytes.
const (
	maxFile    = 256 << 20
	maxObjects = 2 << 20
)

// Given reads the files that the user names.
type Given struct {
	// Stdin is what the name "-" stands for. It can be read once.
	Stdin io.Reader
}

// Read reads a file of limited size, as ReadText. It returns the name by which errors and reports call it, too.
// Of standard input it reads one JSON value and does not wait for the end, which a container may never see: the
// runtime keeps its standard input open for the next to attach (stdinOnce is not set in debug pods).
func (g Given) Read(path string) (name string, text []byte, err error) {
	const stdin = "standard input"
	if name = path; path != "-" {
		text, err = ReadText(path)
	} else if name = stdin; g.Stdin == nil {
		err = errors.New("it is closed")
	} else if text, err = readValue(g.Stdin); err == nil && len(text) == 0 {
		err = errors.New("it is empty")
	}
	switch {
	case err != nil && name == stdin:
		err = &Error{Path: stdin, Want: "a file", Err: err}
	case len(text) > maxFile:
		err = tooLarge(stdin, maxFile)
	case bytes.Count(text, []byte("{")) > maxObjects:
		err = &Error{Path: name, Want: fmt.Sprintf("at most %d JSON objects", maxObjects), Err: errors.New("the file has too many objects")}
	}
	return name, text, err
}

// readValue reads up to the end of a JSON value, or to what is none, which whoever decodes the text finds.
func readValue(r io.Reader) ([]byte, error) {
	var text bytes.Buffer
	var lost error
	source := readerFunc(func(b []byte) (int, error) {
		n, err := r.Read(b)
		text.Write(b[:n])
		if err != nil && !errors.Is(err, io.EOF) {
			lost = err
		}
		return n, err
	})
	var skipped struct{}
	// What is wrong with the value shows again where it is decoded.
	_ = json.NewDecoder(io.LimitReader(source, maxFile+1)).Decode(&skipped)
	return text.Bytes(), lost
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func tooLarge(path string, limit int64) *Error {
	return &Error{Path: path, Want: fmt.Sprintf("at most %d MiB", limit>>20), Err: errors.New("the file is too large")}
}

// ReadText reads a file of limited size, which may be a named pipe that somebody writes to. Every error is an *Error.
func ReadText(path string) ([]byte, error) { return readLimited(path, maxFile) }

// readLimited is ReadText with another limit, in bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	text, err := readText(path, limit)
	var bad *Error
	if err == nil || errors.As(err, &bad) {
		return text, err
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		// The path is in Error already.
		err = p.Err
	}
	return nil, &Error{Path: path, Want: "a readable file", Err: err}
}

func readText(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) == 0 && info.Mode().Type() == fs.ModeNamedPipe:
		return nil, &Error{Path: path, Want: "a file, or a pipe with a writer", Err: errors.New("no process writes to this pipe")}
	case int64(len(text)) > limit:
		return nil, tooLarge(path, limit)
	}
	return text, nil
}

// ReadRegular reads a file of limited size that is neither a link nor a device: what
// makes them may have written anything there.
func ReadRegular(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("larger than %d KiB", limit>>10)
	}
	return text, err
}

// Entries are the names in a directory, nil if it does not exist, and of too many some.
func Entries(dir string, most int, what string) ([]string, error) {
	d, err := os.Open(dir)
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

// DecodeJSON decodes the text of a file into v. Every error is an *Error.
func DecodeJSON(path string, text []byte, want string, v any) error {
	err := json.Unmarshal(text, v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		// The offset is that of the byte after the wrong one.
		return NewError(path, text, syntax.Offset-1, want, err)
	case errors.As(err, &kind):
		return NewError(path, text, kind.Offset-1, fmt.Sprintf("%s at %q", kindName(kind.Type), kind.Field),
			fmt.Errorf("found %s", kind.Value))
	}
	return &Error{Path: path, Want: want, Err: err}
}

// kindName names a type in JSON's words.
func kindName(t reflect.Type) string {
	names := map[reflect.Kind]string{
		reflect.String: "a string", reflect.Slice: "a list", reflect.Struct: "an object", reflect.Map: "an object",
	}
	return cmp.Or(names[t.Kind()], t.Kind().String())
}

// ValueError returns an error at the first string of the file that equals value.
func ValueError(path string, text []byte, value, want string, err error) *Error {
	quoted, _ := json.Marshal(value)
	if at := bytes.Index(text, quoted); at >= 0 {
		return NewError(path, text, int64(at), want, err)
	}
	return &Error{Path: path, Want: want, Err: err}
}
