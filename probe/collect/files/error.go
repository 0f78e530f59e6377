package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"

	"golang.org/x/sys/unix"
)

// Error says where a file is not what it should be.
type Error struct {
	Path string
	// Line and Column count from 1, columns in bytes; 0 where the place is
	// not known.
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

// NewError places an error at an offset of the file's text.
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

// ReadJSON reads a file into v. An error of its text is an *Error that says
// where and what was expected.
func ReadJSON(path, want string, v any) ([]byte, error) {
	text, err := ReadText(path)
	if err != nil {
		return nil, err
	}
	return text, DecodeJSON(path, text, want, v)
}

// maxFile bounds a file: 5,000 nodes, as kubectl prints them, are some 100 MiB.
const maxFile = 256 << 20

// ReadText reads a file of a bounded size; a pipe that somebody writes to will
// do.
func ReadText(path string) ([]byte, error) {
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
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) == 0 && info.Mode().Type() == fs.ModeNamedPipe {
		return nil, &Error{Path: path, Want: "a file, or a pipe that is being written to", Err: errors.New("nothing writes to this pipe")}
	}
	if len(text) > maxFile {
		return nil, &Error{Path: path, Want: fmt.Sprintf("at most %d MiB", maxFile>>20), Err: errors.New("the file goes on")}
	}
	return text, nil
}

// DecodeJSON is ReadJSON for text that is already there.
func DecodeJSON(path string, text []byte, want string, v any) error {
	err := json.Unmarshal(text, v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		// The offset is behind the byte that was wrong.
		return NewError(path, text, syntax.Offset-1, want, err)
	case errors.As(err, &kind):
		return NewError(path, text, kind.Offset-1, fmt.Sprintf("%s at %q", kindName(kind.Type), kind.Field),
			fmt.Errorf("found %s", kind.Value))
	}
	return &Error{Path: path, Want: want, Err: err}
}

// kindName names a type in JSON's words.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return t.Kind().String()
}

// ValueError places an error at a text value within the file, where it is
// found.
func ValueError(path string, text []byte, value, want string, err error) *Error {
	quoted, _ := json.Marshal(value)
	if at := bytes.Index(text, quoted); at >= 0 {
		return NewError(path, text, int64(at), want, err)
	}
	return &Error{Path: path, Want: want, Err: err}
}
