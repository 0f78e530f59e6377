package words

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/lasthop/lasthop/probe/model"
)

// field is a value that a text shows: the names by which it is found in the values, or in an
// element of the list that the text is about.
type field struct {
	name string
	path []string
	// ofAll: it is one of the values, though the text is about an element.
	ofAll bool
}

// shown are the fields that a text shows wherever it is said, also by a shared text about the
// same. What it shows of something else, by with and range, are not.
func shown(shared *template.Template, list *parse.ListNode) []field {
	var out []field
	add := func(path []string, ofAll bool) {
		if f := (field{fieldName(path), path, ofAll}); !slices.ContainsFunc(out, func(x field) bool { return x.name == f.name }) {
			out = append(out, f)
		}
	}
	addAll := func(fields []field) {
		for _, f := range fields {
			add(f.path, f.ofAll)
		}
	}
	pipe := func(p *parse.PipeNode) {
		if p == nil {
			return
		}
		for _, c := range p.Cmds {
			if c.Args[0].String() == "ttls" {
				continue // a set of bits, whose number means nothing to a reader
			}
			for _, arg := range c.Args {
				switch n := arg.(type) {
				case *parse.FieldNode:
					add(n.Ident, false)
				case *parse.VariableNode:
					if n.Ident[0] == "$" && len(n.Ident) > 1 {
						add(n.Ident[1:], true)
					}
				}
			}
		}
	}
	if list == nil {
		return nil
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.ActionNode:
			pipe(n.Pipe)
		case *parse.TemplateNode:
			pipe(n.Pipe)
			if t := shared.Lookup(n.Name); t != nil && t.Tree != nil && n.Pipe != nil && n.Pipe.String() == "." {
				addAll(shown(shared, t.Root))
			}
		case *parse.IfNode:
			addAll(shown(shared, n.List))
			addAll(shown(shared, n.ElseList))
		}
	}
	return out
}

// fieldName is a field's name in documents: .control.Link is controlLink, and what a finding
// itself has, .f.Packets, is packets.
func fieldName(path []string) string {
	if path[0] == "f" && len(path) > 1 {
		path = path[1:]
	}
	var b strings.Builder
	for i, p := range path {
		if i == 0 {
			// As far as capitals go: mac, and macPair.
			n := len(p) - len(strings.TrimLeft(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
			if n > 1 && n < len(p) {
				n--
			}
			b.WriteString(strings.ToLower(p[:n]) + p[n:])
		} else {
			b.WriteString(strings.ToUpper(p[:1]) + p[1:])
		}
	}
	return b.String()
}

// values are the fields' values as a JSON object; empty if there are none to tell.
func values(fields []field, facts Facts, element any) model.Values {
	out := map[string]any{}
	for _, f := range fields {
		from := element
		if f.ofAll || element == nil {
			from = facts
		}
		if v, ok := plain(find(reflect.ValueOf(from), f.path)); ok {
			out[f.name] = v
		}
	}
	if len(out) == 0 {
		return ""
	}
	text, err := json.Marshal(out)
	if err != nil {
		return "" // of plain values there is none
	}
	return model.Values(text)
}

// Cause are the values that tell a finding from others of its code: what is known already, and of the lines of names
// the values of the first of which all are there.
func Cause(known string, facts Facts, lines []string) string {
	for _, l := range lines {
		parts, names := []string{known}, strings.Fields(l)
		for _, name := range names {
			v := find(reflect.ValueOf(facts), strings.Split(name, "."))
			if x, ok := plain(v); ok && !reflect.ValueOf(x).IsZero() {
				parts = append(parts, fmt.Sprint(name, "=", x))
			}
		}
		if len(parts) > len(names) {
			return strings.TrimSpace(strings.Join(parts, " "))
		}
	}
	return known
}

// find follows names through maps and structs; the zero Value is found for what is not there.
func find(v reflect.Value, path []string) reflect.Value {
	for _, name := range path {
		for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().Kind() != reflect.Struct {
			v = v.Elem()
		}
		if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return reflect.Value{}
		}
		if m := v.MethodByName(name); m.IsValid() && m.Type().NumIn() == 0 && m.Type().NumOut() == 1 {
			v = m.Call(nil)[0]
			continue
		}
		v = reflect.Indirect(v)
		switch v.Kind() {
		case reflect.Map:
			v = v.MapIndex(reflect.ValueOf(name))
		case reflect.Struct:
			v = v.FieldByName(name)
		default:
			return reflect.Value{}
		}
	}
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	return v
}

// mostValues bounds the elements of a list in a document.
const mostValues = 16

// plain is a value as documents have it: a number, a truth, a text, or a list of such.
func plain(v reflect.Value) (any, bool) {
	for v.IsValid() && v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, false
	}
	if x, is := v.Interface().(interface{ IsValid() bool }); is && !x.IsValid() {
		return nil, false // no address, or no range
	}
	switch x := v.Interface().(type) {
	case *model.Pod:
		return PodName(x), true
	case *model.FrameRule:
		return x.Text, true
	case *model.PacketRule:
		return x.Text, true
	case fmt.Stringer:
		return x.String(), true
	}
	switch v.Kind() {
	case reflect.Bool, reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Interface(), true
	case reflect.Slice:
		out := []any{}
		for i := range min(v.Len(), mostValues) {
			if x, ok := plain(v.Index(i)); ok {
				out = append(out, x)
			}
		}
		return out, len(out) > 0 || v.Len() == 0
	}
	return nil, false
}
