package scenario

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Error is one mistake in a file, and where it is.
type Error struct {
	File         string
	Line, Column int
	Msg          string
}

func (e Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// Errors are all mistakes in a file, in the order of its lines.
type Errors []Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// maxErrors bounds how many mistakes are reported: the rest is seldom news.
const maxErrors = 100

// decoder reads a tree of YAML nodes into structs and collects what is wrong.
//
// A field's tag has its name in the file and, where the type alone does not say
// how a scalar is read, the name of its parser: `file:"name,parser"`. A struct
// with a field that is tagged `file:"name,parser,alone"` can be written as that
// field's value.
//
// The YAML package decodes structs too, but its errors have no column, do not
// list the fields that exist, and an UnmarshalYAML method that fails hides all
// mistakes behind it.
type decoder struct {
	file string
	errs Errors
}

func (d *decoder) errorf(at *yaml.Node, format string, args ...any) {
	if len(d.errs) < maxErrors {
		d.errs = append(d.errs, Error{d.file, max(at.Line, 1), max(at.Column, 1), fmt.Sprintf(format, args...)})
	}
}

// err returns all mistakes, sorted by place; nil when there are none.
func (d *decoder) err() error {
	if len(d.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(d.errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return d.errs
}

// value is what was read, and where; at is nil when it was not in the file.
type value[T any] struct {
	v  T
	at *yaml.Node
}

func (v value[T]) set() bool { return v.at != nil }

// or returns the value, or the default when it was not in the file.
func (v value[T]) or(def T) T {
	if v.set() {
		return v.v
	}
	return def
}

// where is the value's place, or that of what should have held it.
func (v value[T]) where(parent *yaml.Node) *yaml.Node { return cmp.Or(v.at, parent) }

func (v *value[T]) decode(d *decoder, n *yaml.Node, what, parser string) bool {
	ok := d.decode(n, what, parser, reflect.ValueOf(&v.v).Elem())
	if ok {
		v.at = n
	}
	return ok
}

// decodable is a type that decodes itself.
type decodable interface {
	decode(d *decoder, n *yaml.Node, what, parser string) bool
}

// place is embedded in structs that need to know where they were in the file.
type place struct{ at *yaml.Node }

func (p *place) put(n *yaml.Node) { p.at = n }

// decode reads a node into v and reports whether there is a value in it. In
// errors the node is called what.
func (d *decoder) decode(n *yaml.Node, what, parser string, v reflect.Value) bool {
	if own, ok := v.Addr().Interface().(decodable); ok {
		return own.decode(d, n, what, parser)
	}
	if parse, ok := parserOf(parser, v.Type()); ok {
		return d.scalar(n, what, parse, v)
	}
	if v.Kind() == reflect.Slice {
		return d.list(n, what, parser, v)
	}
	d.mapping(n, what, v)
	return true
}

// scalar reads a value by its parser, whose error says what it accepts.
func (d *decoder) scalar(n *yaml.Node, what string, parse, v reflect.Value) bool {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		d.errorf(n, "%s: want a value, got %s", what, describe(n))
		return false
	}
	out := parse.Call([]reflect.Value{reflect.ValueOf(n.Value)})
	if err := out[1].Interface(); err != nil {
		d.errorf(n, "%s: %v", what, err)
		return false
	}
	v.Set(out[0])
	return true
}

// list reads a sequence. One of values can also be written as a lone scalar.
func (d *decoder) list(n *yaml.Node, what, parser string, v reflect.Value) bool {
	elem := v.Type().Elem()
	_, values := reflect.New(elem).Interface().(decodable)
	items := n.Content
	switch {
	case n.Kind == yaml.SequenceNode || isNull(n):
	case n.Kind == yaml.ScalarNode && values:
		items = []*yaml.Node{n}
	default:
		d.errorf(n, "%s: want a list, got %s", what, describe(n))
		return false
	}
	if !values {
		what = strings.TrimSuffix(what, "s")
	}
	for _, item := range items {
		x := reflect.New(elem).Elem()
		if d.decode(item, what, parser, x) {
			v.Set(reflect.Append(v, x))
		}
	}
	return true
}

// mapping reads a mapping's fields. It reports unknown and repeated ones.
func (d *decoder) mapping(n *yaml.Node, what string, v reflect.Value) {
	if p, ok := v.Addr().Interface().(interface{ put(*yaml.Node) }); ok {
		p.put(n)
	}
	type field struct {
		parser string
		v      reflect.Value
		line   int
	}
	fields := map[string]*field{}
	var names []string
	for _, f := range reflect.VisibleFields(v.Type()) {
		tag, ok := f.Tag.Lookup("file")
		if !ok {
			continue
		}
		parts := append(strings.Split(tag, ","), "", "")
		if parts[2] == "alone" && n.Kind == yaml.ScalarNode {
			d.decode(n, what, parts[1], v.FieldByIndex(f.Index))
			return
		}
		fields[parts[0]] = &field{parser: parts[1], v: v.FieldByIndex(f.Index)}
		names = append(names, parts[0])
	}
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.errorf(n, "%s: want a mapping, got %s", what, describe(n))
		return
	}
	slices.Sort(names)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		f, ok := fields[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			d.errorf(key, "%s: unknown field %s, want one of %s", what, describe(key), strings.Join(names, ", "))
		case f.line != 0:
			d.errorf(key, "%s: field %q is already set in line %d", what, key.Value, f.line)
		default:
			f.line = key.Line
			d.decode(val, key.Value, f.parser, f.v)
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	}
	return strconv.Quote(short(n.Value))
}

// short keeps a value from the file printable in a message.
func short(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
