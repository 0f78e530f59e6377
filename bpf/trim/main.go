// Command trim takes out of files that bpf2go wrote what nobody uses: what loads each object, into structs or not, since
// one function loads all of them, and what C alone needs.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
)

func main() {
	for _, name := range os.Args[1:] {
		if err := trim(name); err != nil {
			fmt.Fprintf(os.Stderr, "trim %s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

// unused are the names of those structs and functions, of the objects' bytes, and of the imports that these need, and
// of variables that tell bpf2go of a type.
var unused = regexp.MustCompile(`(Specs|Objects|Maps|Variables|Programs|Close|Bytes|Var\w+Type)$|^Load|` +
	`^"(io|bytes|embed|fmt|github.com/cilium/ebpf)"$`)

func trim(name string) error {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	comments := ast.NewCommentMap(files, f, f.Comments)
	f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
		if d, ok := d.(*ast.FuncDecl); ok {
			return unused.MatchString(d.Name.Name)
		}
		list := &d.(*ast.GenDecl).Specs
		*list = slices.DeleteFunc(*list, func(s ast.Spec) bool {
			switch s := s.(type) {
			case *ast.TypeSpec:
				return unused.MatchString(s.Name.Name)
			case *ast.ValueSpec:
				return unused.MatchString(s.Names[0].Name)
			case *ast.ImportSpec:
				return unused.MatchString(s.Path.Value)
			}
			return false
		})
		return len(*list) == 0
	})
	f.Comments = comments.Filter(f).Comments()
	var out bytes.Buffer
	if err := format.Node(&out, files, f); err != nil {
		return err
	}
	return os.WriteFile(name, out.Bytes(), 0o644)
}
