//go:build mutate

package lasthop_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var every = flag.Int("every", 1, "try each `n`-th change")

// judging are the packages whose conditions are changed, and proving those whose unit tests should notice.
var (
	judging = []string{"probe/loss", "probe/path", "probe/node", "probe/fault", "probe/fault/*", "probe/diagnose", "probe/join"}
	proving = []string{"probe/diagnose", "probe/path", "probe/join", "probe/loss"}
)

// mutating is what conditions are replaced by calls of. One of them is another when the environment says so, so that all
// changes need one compilation.
const mutating = `// Package mutated changes one condition of the judge.
package mutated

import (
	"os"
	"strconv"
	"sync"
)

var (
	number = func() int { n, err := strconv.Atoi(os.Getenv("MUTANT")); if err != nil { return -1 }; return n }()
	reached = os.Getenv("REACHED")
	seen sync.Map
)

func is(n int) bool {
	if _, old := seen.LoadOrStore(n, true); reached != "" && !old {
		f, _ := os.OpenFile(reached, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		f.WriteString(strconv.Itoa(n)+"\n")
		f.Close()
	}
	return n == number
}

// Not is a condition, or its contrary.
func Not(n int, is_ bool) bool { return is_ != is(n) }

// Shift is a comparison, or the one that differs where both sides are equal.
func Shift(n int, is_ bool, other func() bool) bool {
	if is(n) {
		return other()
	}
	return is_
}
`

// mutant is a changed condition.
type mutant struct{ at, change string }

// TestMutate changes the conditions of the judge one by one, and lists the changes that no unit test notices.
func TestMutate(t *testing.T) {
	dir := t.TempDir()
	overlay := map[string]string{}
	var all []mutant
	replace := func(file, text string) {
		path, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		overlay[path] = filepath.Join(dir, fmt.Sprint(len(overlay))+".go")
		if err := os.WriteFile(overlay[path], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace("probe/mutated/mutated.go", mutating)
	for _, pkg := range judging {
		files, err := filepath.Glob(pkg + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") }) {
			if text := changed(t, file, &all); text != "" {
				replace(file, text)
			}
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	listed := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(listed, list, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, pkg := range proving {
		build := exec.Command("go", "test", "-vet=off", "-c", "-overlay", listed, "-o", filepath.Join(dir, strconv.Itoa(i)+".test"), "./"+pkg)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	run := func(i int, env ...string) (string, error) {
		return proof(filepath.Join(dir, strconv.Itoa(i)+".test"), proving[i], env...)
	}
	reached := make([]map[int]bool, len(proving))
	for i, pkg := range proving {
		file := filepath.Join(dir, "reached"+strconv.Itoa(i))
		if out, err := run(i, "REACHED="+file); err != nil {
			t.Fatalf("%s fails with nothing changed: %s", pkg, out)
		}
		text, _ := os.ReadFile(file)
		reached[i] = map[int]bool{}
		for line := range strings.Lines(string(text)) {
			if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
				reached[i][n] = true
			}
		}
	}
	for n := range all {
		if !slices.ContainsFunc(reached, func(r map[int]bool) bool { return r[n] }) {
			fmt.Printf("%s: no test comes here: %s\n", all[n].at, all[n].change)
		}
	}
	tried, noticed, began := 0, 0, time.Now()
	for n := *every / 2; n < len(all); n += *every {
		tried++
		caught := false
		for i := range proving {
			if reached[i][n] && !caught {
				_, err := run(i, "MUTANT="+strconv.Itoa(n))
				caught = err != nil
			}
		}
		if caught {
			noticed++
		} else {
			fmt.Printf("%s: %s\n", all[n].at, all[n].change)
		}
	}
	fmt.Printf("noticed %d of %d changes of %d (%.0f %%), in %v\n", noticed, tried, len(all), 100*float64(noticed)/float64(max(1, tried)), time.Since(began).Round(time.Second))
}

// proof runs the tests of a package.
func proof(command, dir string, env ...string) (string, error) {
	cmd := exec.Command(command, "-test.short", "-test.failfast", "-test.timeout", "5m")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// changed is a file with a call in place of each condition, and adds what these may change to all.
func changed(t *testing.T, file string, all *[]mutant) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	type edit struct {
		at   int
		text string
	}
	var edits []edit
	offset := func(p token.Pos) int { return set.Position(p).Offset }
	source := func(n ast.Node) string { return string(text[offset(n.Pos()):offset(n.End())]) }
	wrap := func(e ast.Expr) {
		n := len(*all)
		at := set.Position(e.Pos())
		where := fmt.Sprintf("%s:%d", at.Filename, at.Line)
		before, after := fmt.Sprintf("mutated.Not(%d, ", n), ")"
		what := mutant{where, "not " + source(e)}
		if b, ok := e.(*ast.BinaryExpr); ok {
			if other := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}[b.Op]; other != "" {
				shifted := source(b.X) + " " + other + " " + source(b.Y)
				before, after = fmt.Sprintf("mutated.Shift(%d, ", n), ", func() bool { return "+shifted+" })"
				what.change = source(e) + " as " + shifted
			}
		}
		*all = append(*all, what)
		edits = append(edits, edit{offset(e.Pos()), before}, edit{offset(e.End()), after})
	}
	var conditions func(e ast.Expr)
	conditions = func(e ast.Expr) {
		switch x := e.(type) {
		case *ast.ParenExpr:
			conditions(x.X)
		case *ast.UnaryExpr:
			if x.Op == token.NOT {
				conditions(x.X)
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				conditions(x.X)
				conditions(x.Y)
				return
			}
			wrap(x)
		case *ast.CallExpr, *ast.Ident, *ast.SelectorExpr, *ast.IndexExpr:
			// A call may hold a function whose conditions are changed themselves.
			if !slices.ContainsFunc([]string{"func(", "func ("}, func(f string) bool { return strings.Contains(source(e), f) }) {
				wrap(x)
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.IfStmt:
			conditions(x.Cond)
		case *ast.ForStmt:
			// A loop that never ends shows nothing.
		case *ast.CaseClause:
		case *ast.SwitchStmt:
			if x.Tag == nil {
				for _, c := range x.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						conditions(e)
					}
				}
			}
		case *ast.ReturnStmt:
			for _, e := range x.Results {
				if b, ok := e.(*ast.BinaryExpr); ok && (b.Op == token.LAND || b.Op == token.LOR) {
					conditions(b)
				}
			}
		}
		return true
	})
	if len(edits) == 0 {
		return ""
	}
	// On the same line, so that lines keep their numbers.
	edits = append(edits, edit{offset(tree.Name.End()), "; import \"" + module + "/probe/mutated\""})
	slices.SortStableFunc(edits, func(a, b edit) int { return a.at - b.at })
	var out bytes.Buffer
	from := 0
	for _, e := range edits {
		out.Write(text[from:e.at])
		out.WriteString(e.text)
		from = e.at
	}
	out.Write(text[from:])
	return out.String()
}
