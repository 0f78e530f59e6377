package azure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/files"
)

// value is a JSON value with its offset in the text, for errors about its content.
type value struct {
	offset int64
	// any is nil, a bool, a string, a json.Number, []*value or object.
	any any
}

// object holds fields by their names in lower case: versions of az differ in the case of some.
type object map[string]*value

// kind names the value's type in JSON's words.
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

// parse reads the text into a tree.
func (d *decoder) parse() *value {
	var raw json.RawMessage
	if d.err = files.DecodeJSON(d.path, d.text, want, &raw); d.err != nil {
		return &value{}
	}
	dec := json.NewDecoder(bytes.NewReader(d.text))
	dec.UseNumber()
	return d.next(dec)
}

func (d *decoder) next(dec *json.Decoder) *value {
	// The decoder stands behind the last token. Separators are no tokens.
	v := &value{offset: int64(len(d.text) - len(bytes.TrimLeft(d.text[dec.InputOffset():], " \t\r\n,:")))}
	switch t := d.token(dec); t {
	case json.Delim('['):
		list := []*value{}
		for d.err == nil && dec.More() {
			list = append(list, d.next(dec))
		}
		v.any = list
		d.token(dec)
	case json.Delim('{'):
		o := object{}
		for d.err == nil && dec.More() {
			name := strings.ToLower(fmt.Sprint(d.token(dec)))
			o[name] = d.next(dec)
		}
		v.any = o
		d.token(dec)
	default:
		v.any = t
	}
	return v
}

func (d *decoder) token(dec *json.Decoder) json.Token {
	t, err := dec.Token()
	if err != nil && d.err == nil {
		d.err = files.NewError(d.path, d.text, dec.InputOffset(), want, err)
	}
	return t
}
