package azure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/files"
)

// value is a JSON value that knows its place in the text, so that an error
// about what it holds can name it.
type value struct {
	offset int64
	// any is nil, a bool, a string, a json.Number, []*value or object.
	any any
}

// object holds its fields by name in lower case: the command lines of several
// years differ in the case of some.
type object map[string]*value

// kind names what the value is, in JSON's words.
func (v *value) kind() string {
	switch v.any.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case []*value:
		return "a list"
	case object:
		return "an object"
	}
	return "a number"
}

// document is the text of one file.
type document struct {
	path string
	text []byte
}

// parse reads the text into a tree.
func (d *document) parse() (*value, error) {
	var raw json.RawMessage
	if err := files.DecodeJSON(d.path, d.text, want, &raw); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(d.text))
	dec.UseNumber()
	return d.next(dec)
}

func (d *document) next(dec *json.Decoder) (*value, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, files.NewError(d.path, d.text, dec.InputOffset(), want, err)
	}
	v := &value{offset: d.start(dec.InputOffset(), t)}
	switch t {
	default:
		v.any = t
	case json.Delim('['):
		list := []*value{}
		for dec.More() {
			item, err := d.next(dec)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		v.any = list
		_, err = dec.Token()
	case json.Delim('{'):
		o := object{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, files.NewError(d.path, d.text, dec.InputOffset(), want, err)
			}
			field, err := d.next(dec)
			if err != nil {
				return nil, err
			}
			o[strings.ToLower(fmt.Sprint(name))] = field
		}
		v.any = o
		_, err = dec.Token()
	}
	if err != nil {
		return nil, files.NewError(d.path, d.text, dec.InputOffset(), want, err)
	}
	return v, nil
}

// start is where the token that ends at the offset begins.
func (d *document) start(end int64, t json.Token) int64 {
	if _, ok := t.(string); !ok {
		return max(end-int64(len(fmt.Sprint(t))), 0)
	}
	// A quote within a string is behind a backslash.
	for at := end - 2; at >= 0; at-- {
		if d.text[at] == '"' && !escaped(d.text[:at]) {
			return at
		}
	}
	return end
}

// escaped reports whether what follows the text is behind a backslash.
func escaped(before []byte) bool {
	n := 0
	for n < len(before) && before[len(before)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// errorf says what is wrong at a value, and what was expected there.
func (d *document) errorf(at *value, want, format string, args ...any) error {
	return files.NewError(d.path, d.text, at.offset, want, fmt.Errorf(format, args...))
}
