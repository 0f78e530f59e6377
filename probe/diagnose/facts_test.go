package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template/parse"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
)

// known are the names of the values that findings gave to each page of words, and objectsOf the objects of each kind that
// a finding had.
var known, objectsOf = map[string]map[string]bool{}, map[model.Code]map[string]bool{}

// noteFacts notes the values of the faults that a kind has proposed.
func noteFacts(k *fault.Kind, proposed []fault.Fault) {
	for f := range model.Each(proposed) {
		page := setOf(known, cmp.Or(f.Page, string(k.Code)))
		page["f"], page["lost"] = true, true // the engine adds these
		for name := range f.Facts {
			page[name] = true
		}
		objects := setOf(objectsOf, k.Code)
		for _, name := range strings.Fields(strings.Join(k.Objects, " ")) {
			path := strings.Split(name, ".")
			value := f.Facts[path[0]]
			if path[0] == "f" {
				value = &f.Finding
			}
			objects[name] = objects[name] || value != nil && leads(reflect.TypeOf(value), path[1:])
		}
	}
}

func setOf[K comparable](sets map[K]map[string]bool, k K) map[string]bool {
	if sets[k] == nil {
		sets[k] = map[string]bool{}
	}
	return sets[k]
}

// leads reports whether values of a type have what a path of names leads to.
func leads(t reflect.Type, path []string) bool {
	for _, name := range path {
		if m, is := t.MethodByName(name); is {
			t = m.Type.Out(0)
			continue
		}
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return false
		}
		field, is := t.FieldByName(name)
		if !is {
			return false
		}
		t = field.Type
	}
	return true
}

// misnamed are the names in the list of kinds and in pages that are no value's: of no finding in any snapshot that
// tests judge, and, as no test meets all, in no source of a kind.
func misnamed() (out []string) {
	for code, names := range objectsOf {
		for name, is := range names {
			if !is {
				out = append(out, fmt.Sprintf("%s: no finding has the object %s", code, name))
			}
		}
	}
	var source strings.Builder
	for _, pattern := range []string{"../fault/*.go", "../fault/*/*.go"} {
		for _, path := range must(filepath.Glob(pattern)) {
			source.Write(must(os.ReadFile(path)))
		}
	}
	for page, names := range known {
		for name := range namesOf(page) {
			if !names[name] && !strings.Contains(source.String(), strconv.Quote(name)) {
				out = append(out, fmt.Sprintf("page %s: no finding has the value %s", page, name))
			}
		}
	}
	slices.Sort(out)
	return out
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// namesOf are the values that a page names.
func namesOf(page string) map[string]bool {
	used := map[string]bool{}
	text := string(must(os.ReadFile("../words/pages/" + page + ".txt")))
	for _, l := range strings.Split(strings.ReplaceAll(text, "\n\t", " "), "\n") {
		head, body, _ := strings.Cut(l, ": ")
		part, rest, _ := strings.Cut(head, " ")
		if part == "page" {
			maps.Copy(used, namesOf(rest))
			continue
		}
		for _, how := range [][2]string{{" if ", "if"}, {" each ", "range"}} {
			if _, what, is := strings.Cut(head, how[0]); is {
				body = "{{" + how[1] + " " + what + "}}" + body + "{{end}}"
			}
		}
		t := parse.New(page)
		t.Mode = parse.SkipFuncCheck
		must(t.Parse(body, "", "", map[string]*parse.Tree{}))
		addNames(t.Root, true, used)
	}
	return used
}

// addNames adds what a text names of all values, where the dot is these and elsewhere.
func addNames(n parse.Node, dot bool, used map[string]bool) {
	branch := func(b *parse.BranchNode, inside bool) {
		addNames(b.Pipe, dot, used)
		addNames(b.List, inside, used)
		if b.ElseList != nil {
			addNames(b.ElseList, dot, used)
		}
	}
	switch n := n.(type) {
	case *parse.ListNode:
		for _, x := range n.Nodes {
			addNames(x, dot, used)
		}
	case *parse.ActionNode:
		addNames(n.Pipe, dot, used)
	case *parse.TemplateNode:
		if n.Pipe != nil {
			addNames(n.Pipe, dot, used)
		}
	case *parse.IfNode:
		branch(&n.BranchNode, dot)
	case *parse.WithNode:
		branch(&n.BranchNode, false)
	case *parse.RangeNode:
		branch(&n.BranchNode, false)
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			for _, a := range c.Args {
				addNames(a, dot, used)
			}
		}
	case *parse.ChainNode:
		addNames(n.Node, dot, used)
	case *parse.FieldNode:
		if dot {
			used[n.Ident[0]] = true
		}
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			used[n.Ident[1]] = true
		}
	}
}

// TestNames: what a page names of all values is found, and an object that no value has.
func TestNames(t *testing.T) {
	if used := namesOf("ConntrackRace"); !used["rivals"] || !used["unseen"] || used["Text"] {
		t.Errorf("the page names %v", used)
	}
	flow := reflect.TypeFor[*model.Flow]()
	if !leads(flow, []string{"Original", "Src", "Is4"}) || leads(flow, []string{"Original", "Source"}) {
		t.Error("a misspelt object is not told from one that is there")
	}
}
