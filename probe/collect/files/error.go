package files

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"strings"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
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
	line, column := bytes.Count(before, []byte{'\n'})+1, len(before)-bytes.LastIndexByte(before, '\n')
	return &Error{Path: path, Line: line, Column: column, Want: want, Err: err}
}

// maxFile limits the size of what the user names: 5,000 nodes as kubectl prints them are some 100 MiB.
// maxObjects limits the JSON objects in it, of which each takes memory, however short it is: as many as kubectl prints
// in so many bytes. maxBlank limits what may stand before them.
const (
	maxFile    = 256 << 20
	maxObjects = 2 << 20
	maxBlank   = 64 << 10
)

// mark is what Windows may write at the beginning of a text.
const mark = "\ufeff"

// Given reads the files that the user names.
type Given struct {
	// Stdin is what the name "-" stands for. It can be read once.
	Stdin io.Reader
}

// Read reads a file of limited size. It returns the name by which errors and reports call it, too. Every error is an
// *Error. Of standard input and of a pipe it reads one JSON value and does not wait for the end, which a container may
// never see: the runtime keeps its standard input open for the next to attach (stdinOnce is not set in debug pods).
func (g Given) Read(path string) (name string, text []byte, err error) {
	name, want := path, "a readable file, or a pipe with a writer"
	if path != "-" {
		text, err = readNamed(path)
	} else if name, want = "standard input", "a file"; g.Stdin == nil {
		err = errors.New("it is closed")
	} else {
		text, err = readValue(g.Stdin)
	}
	switch {
	case err == nil && len(text) == 0 && path == "-":
		err = errors.New("it is empty")
	case err == nil && len(text) > maxFile:
		err = &input.SizeError{Limit: maxFile}
	case err == nil && bytes.Count(text, []byte("{")) > maxObjects:
		err, want = errors.New("the file has too many objects"), fmt.Sprintf("at most %d JSON objects", maxObjects)
	}
	return name, text, fileError(name, want, err)
}

// readNamed reads a file, or a pipe such as <(kubectl …).
func readNamed(path string) ([]byte, error) {
	f, err := input.Open(path, input.Pipe)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().IsRegular() {
		text, err := input.All(f, maxFile)
		return bytes.TrimPrefix(text, []byte(mark)), err
	}
	text, err := readValue(f)
	if err == nil && len(text) == 0 {
		err = errors.New("no process writes to this pipe")
	}
	return text, err
}

// readValue reads up to the end of a JSON value, or to what is none, which the decoder of the text reports.
func readValue(r io.Reader) ([]byte, error) {
	in := bufio.NewReader(io.LimitReader(r, maxFile+1))
	if first, _ := in.Peek(1); string(first) == mark[:1] {
		if all, _ := in.Peek(len(mark)); string(all) == mark {
			_, _ = in.Discard(len(mark))
		}
	}
	var text bytes.Buffer
	var lost error
	source := readerFunc(func(b []byte) (int, error) {
		n, err := in.Read(b)
		text.Write(b[:n])
		if err != nil && !errors.Is(err, io.EOF) {
			lost = err
		}
		if text.Len() > maxBlank && len(bytes.TrimSpace(text.Bytes()[:maxBlank])) == 0 {
			err = io.EOF
		}
		return n, err
	})
	var skipped struct{}
	// What is wrong with the value shows again where it is decoded.
	_ = json.NewDecoder(source).Decode(&skipped)
	return text.Bytes(), lost
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// read reads a file of the node. Every error is an *Error.
func read(path string, limit int64) ([]byte, error) {
	text, err := input.Read(path, input.Regular, limit)
	return bytes.TrimPrefix(text, []byte(mark)), fileError(path, "a readable file", err)
}

// fileError is an error about a file: an *Error, unless there is none.
func fileError(path, want string, err error) error {
	var size *input.SizeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &size):
		want = "" // it says so
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		// The path is in Error already.
		err = p.Err
	}
	return &Error{Path: path, Want: want, Err: err}
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
		// The path to the field has the names of our own types.
		field := kind.Field[strings.LastIndexByte(kind.Field, '.')+1:]
		at := model.Either(field == "", "", fmt.Sprintf(" at %q", field))
		return NewError(path, text, kind.Offset-1, kindName(kind.Type)+at, fmt.Errorf("found %s", kind.Value))
	}
	return &Error{Path: path, Want: want, Err: err}
}

// kindName names a type in JSON's words.
func kindName(t reflect.Type) string {
	names := map[reflect.Kind]string{
		reflect.String: "a string", reflect.Slice: "a list", reflect.Struct: "an object", reflect.Map: "an object",
		reflect.Bool: "true or false", reflect.Int: "a number",
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
