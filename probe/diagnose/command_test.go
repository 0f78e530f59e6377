package diagnose

import (
	"reflect"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// hostile stands behind each link's name: whoever makes a link chooses it.
const hostile = "';$(reboot)"

// quoted wants no fix to hand a shell more than words: the same node, with links
// named to do harm.
func quoted(t *testing.T, s *model.Snapshot) {
	t.Helper()
	names := map[string]bool{}
	for _, l := range s.Links {
		names[l.Name] = true
	}
	for _, p := range s.Pods {
		names[p.Interface] = true
	}
	delete(names, "")
	named := renamed(reflect.ValueOf(*s), func(text string) string {
		if names[text] {
			return text + hostile
		}
		for _, of := range []string{".conf.", ".neigh."} {
			if before, rest, ok := strings.Cut(text, of); ok {
				if link, setting, ok := strings.Cut(rest, "."); ok && names[link] {
					return before + of + link + hostile + "." + setting
				}
			}
		}
		return text
	}).Interface().(model.Snapshot)
	for _, f := range Diagnose(&named) {
		for _, line := range f.Fix {
			bare, open := unquoted(line)
			if strings.Contains(bare, "$(") || strings.ContainsAny(bare, "<>") || open && strings.Contains(line, "reboot") {
				t.Errorf("%s: a shell reads more than words in %s", f.Code, line)
			}
		}
	}
}

// renamed is a copy of a value with other strings.
func renamed(v reflect.Value, rename func(string) string) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.String:
		out.SetString(rename(v.String()))
	case reflect.Slice:
		if v.IsNil() {
			return out
		}
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(renamed(v.Index(i), rename))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				return out // an address or a time
			}
			out.Field(i).Set(renamed(v.Field(i), rename))
		}
	}
	return out
}

// unquoted is what a shell reads of a line outside of single quotes, up to a
// comment, and whether a quote is left open.
func unquoted(line string) (bare string, open bool) {
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\'':
			open = !open
		case open:
		case c == '\\':
			i++
		case c == '#' && i > 0 && line[i-1] == ' ':
			return b.String(), open
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), open
}

func TestUnquoted(t *testing.T) {
	for line, want := range map[string]string{
		`ip link set dev 'a;$(b)' up`:          `ip link set dev  up`,
		`x --hop <node's`:                      `x --hop <node`,
		`tc show # of <it>`:                    `tc show `,
		words.Quote("a"+hostile) + " x":        ` x`,
		"sysctl -w " + words.Quote("a#b") + "": `sysctl -w `,
	} {
		if got, _ := unquoted(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
