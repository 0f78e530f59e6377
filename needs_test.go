package lasthop_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"
)

// provided are programs that nobody installs: Go, what is built here, and the
// test itself.
var provided = []string{"go", "gofmt", "lasthop", "bin/lasthop", "/proc/self/exe", "lasthop-watched", "lasthop-unspent", "tools/need", "tools/timed", "tools/image", "tools/kernels/boot", "tools/kernels/modules", "tools/kernels/run",
	"kubectl", "kube-proxy", "helm", "tools/cluster/build", "tools/cluster/control", "tools/cluster/node", "../../../tools/cluster/run", "../../../tools/cilium/run", "../../../tools/cilium/pod", "../../../bin/cilium.test", "../../../bin/neighbors.test", "../../../bin/lasthop", "tools/neighbors/build", "cilium-dbg", "../cluster/build", "tools/kind/build", "tools/kind/image", "tools/kind/run"}

// essential are the commands that a script may run before it has installed
// anything, from packages that every Debian has.
var essential = []string{
	"awk", "cat", "dirname", "grep", "head", "id", "ln", "mkdir", "rm", "sed", "sh", "sort", "timeout", "uname", "xargs",
	// An installer cannot install itself, and git brings one the files.
	"apt-get", "git",
}

// builtins are commands of the shell itself.
var builtins = []string{
	":", "[", "break", "cd", "continue", "declare", "echo", "exit", "export", "fg", "getopts", "kill", "local", "printf", "pwd", "read", "return", "set", "shift", "test", "times", "trap", "ulimit",
	"true", "type", "unset", "wait",
}

// TestNeeds compares what tools/need installs for a target with what is run
// there: by the labs of `make demo`, by the tests, and by recipes and scripts.
func TestNeeds(t *testing.T) {
	needed := map[string][]string{}
	for _, target := range []string{"demo", "build", "plugin", "plugins", "generate", "fmt", "lint", "test", "test-all", "growth", "test-lab", "test-kernels", "fuzz", "bench", "bench-peers", "faults", "soak", "image-archive", "test-cluster", "test-cilium", "test-neighbors", "test-kind"} {
		recipe := parseShell(t, "make "+target, recipe(t, target))
		needed[target] = append(recipe.needs(t), provided...)
		check(t, recipe.runs, append(needed[target], essential...))
	}
	for _, script := range []string{".ci/run", "tools/need", "tools/timed"} {
		s := parseShell(t, script, read(t, script))
		check(t, s.runs, slices.Concat(s.needs(t), provided, essential))
	}
	check(t, parseShell(t, "tools/image", read(t, "tools/image")).runs, append(needed["image-archive"], essential...))
	// What tools/cluster/build builds and fetches.
	built := []string{"containerd", "ctr", "kubelet"}
	for _, script := range []string{"build", "control", "node", "run"} {
		script = "tools/cluster/" + script
		check(t, parseShell(t, script, read(t, script)).runs, slices.Concat(needed["test-cluster"], essential, built))
	}
	// What tools/cilium/build builds and fetches.
	built = []string{"cilium-agent", "cnitool", unknown + "/etcd/usr/bin/etcd", "tools/cilium/build", "tools/cilium/run", "tools/cilium/node", "tools/cilium/enter"}
	for _, script := range []string{"build", "enter", "node", "pod", "run"} {
		script = "tools/cilium/" + script
		check(t, parseShell(t, script, read(t, script)).runs, slices.Concat(needed["test-cilium"], essential, built))
	}
	// What tools/neighbors/build fetches.
	fetched := append(slices.Clone(needed["test-neighbors"]), "../../../tools/neighbors/host", "bird", "birdc", "/usr/lib/frr/frrinit.sh", "vtysh", "keepalived",
		"dbus-daemon", "gdbus", "firewalld", "firewall-cmd", "ufw", "docker", "dockerd", "podman")
	for _, script := range []string{"build", "host"} {
		script = "tools/neighbors/" + script
		check(t, parseShell(t, script, read(t, script)).runs, slices.Concat(needed["test-neighbors"], essential))
	}
	// What tools/kind/build builds and fetches.
	built = []string{"containerd", "dockerd", "docker", "kind", unknown + "/kubeadm"}
	for _, script := range []string{"build", "image", "run"} {
		script = "tools/kind/" + script
		check(t, parseShell(t, script, read(t, script)).runs, slices.Concat(needed["test-kind"], essential, built))
	}
	// All that tools/kernels/init runs is busybox's.
	for _, script := range []string{"boot", "inside", "modules", "run"} {
		script = "tools/kernels/" + script
		check(t, parseShell(t, script, read(t, script)).runs, slices.Concat(needed["test-kernels"], essential))
	}
	var labs, tests, peers, clusters []run
	source := &goSource{t, token.NewFileSet(), map[string]*ast.File{}}
	for _, file := range files(t) {
		switch {
		case strings.HasPrefix(file, "cmd/lasthop/neighbortest/") && strings.HasSuffix(file, ".go"):
			check(t, source.runs(file), slices.Concat(fetched, essential))
		case strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/nstest/"):
			tests = append(tests, source.runs(file)...)
		case strings.HasPrefix(file, "kind/peers/"):
			peers = append(peers, source.runs(file)...)
		case strings.HasPrefix(file, "kind/cluster/"):
			clusters = append(clusters, source.runs(file)...)
		case strings.HasSuffix(file, ".go"):
			labs = append(labs, source.runs(file)...)
		case strings.HasPrefix(file, "cmd/lasthop/testdata/kind/") && strings.HasSuffix(file, ".txtar"):
			check(t, scriptRuns(t, file), slices.Concat(needed["test-kind"], built))
		case strings.HasSuffix(file, ".txtar"):
			tests = append(tests, scriptRuns(t, file)...)
		}
	}
	check(t, labs, needed["demo"])
	// pwru takes its turn only where it is: older Debians have no package.
	check(t, peers, append(slices.Clone(needed["bench-peers"]), "pwru"))
	// Who wants labs on kind has both; lasthop says so where not.
	check(t, clusters, []string{"docker", "kind"})
	check(t, append(labs, tests...), needed["test"])
	for _, target := range []string{"growth", "test-lab", "fuzz", "bench", "soak"} {
		if !slices.Equal(needed[target], needed["test"]) {
			t.Errorf("make %s installs %v, and make test %v", target, needed[target], needed["test"])
		}
	}
}

// run is a command and where it is run.
type run struct{ command, where string }

func check(t *testing.T, runs []run, needed []string) {
	t.Helper()
	if len(runs) == 0 {
		t.Error("no command was found: the search is broken")
	}
	for _, r := range runs {
		if r.command != unknown && !slices.Contains(needed, r.command) {
			t.Errorf("%s runs %q, which tools/need does not install for it", r.where, r.command)
		}
	}
}

// files lists the files below this directory, those of Git aside.
func files(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == ".git" && d.IsDir() {
			return fs.SkipDir
		}
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// recipe is what make would run for a target.
func recipe(t *testing.T, target string) string {
	t.Helper()
	cmd := exec.Command("make", "-n", target, "GO=go")
	// A make that runs this test has passed its own flags on.
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("make -n %s: %v", target, err)
	}
	return string(out)
}

// unknown stands for text that is known only when the program runs.
const unknown = "UNKNOWN"

// shell is a text that a shell reads.
type shell struct {
	runs []run
	// calls are all commands with their arguments.
	calls [][]string
}

// needs lists what calls of tools/need in a script install. Only such things
// are linked.
func (s shell) needs(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, call := range s.calls {
		if call[0] != "tools/need" || len(call) > 1 && call[1] == "--link" {
			continue
		}
		out, err := exec.Command("bash", append([]string{"tools/need", "--list"}, call[1:]...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.Fields(string(out))...)
	}
	return all
}

func parseShell(t *testing.T, where, text string) shell {
	t.Helper()
	f, err := syntax.NewParser().Parse(strings.NewReader(text), where)
	if err != nil {
		t.Fatalf("%s: %v in\n%s", where, err, text)
	}
	var s shell
	functions := map[string]bool{}
	syntax.Walk(f, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.FuncDecl:
			functions[n.Name.Value] = true
		case *syntax.CallExpr:
			var words []string
			for _, w := range n.Args {
				words = append(words, wordText(w.Parts))
			}
			if len(words) > 0 {
				s.calls = append(s.calls, words)
			}
		}
		return true
	})
	for _, words := range s.calls {
		if !functions[words[0]] {
			s.runs = append(s.runs, commandRuns(t, where, words)...)
		}
	}
	return s
}

// wordText is a word of the shell without its quotes.
func wordText(parts []syntax.WordPart) string {
	var b strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			b.WriteString(p.Value)
		case *syntax.SglQuoted:
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			b.WriteString(wordText(p.Parts))
		default:
			b.WriteString(unknown)
		}
	}
	return b.String()
}

// commandRuns is what a command runs: itself, and what it is told to run.
func commandRuns(t *testing.T, where string, words []string) []run {
	t.Helper()
	runs := []run{{filepath.Clean(words[0]), where}}
	rest := words[1:]
	switch words[0] {
	case "sh", "bash":
		if len(rest) > 1 && rest[0] == "-c" {
			runs = append(runs, parseShell(t, where, rest[1]).runs...)
		}
		return runs
	case "exec", "command":
		runs = nil
	case "ip":
		i := slices.Index(rest, "exec")
		if i < 0 || len(rest) < i+3 {
			return runs
		}
		rest = rest[i+2:]
	case "nsenter", "setpriv", "timeout", "unshare", "xargs":
	default:
		if slices.Contains(builtins, words[0]) {
			return nil
		}
		return runs
	}
	for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
		if rest[0] == "-v" {
			return runs // command -v
		}
		if rest[0] == "--reuid" {
			rest = rest[1:]
		}
		rest = rest[1:]
	}
	if words[0] == "timeout" && len(rest) > 0 {
		rest = rest[1:]
	}
	if len(rest) > 0 {
		runs = append(runs, commandRuns(t, where, rest)...)
	}
	return runs
}

var scriptLine = regexp.MustCompile(`^(?:! )?(?:exec|exits [0-9]+) (.*)`)

// scriptRuns finds what a script of TestScripts runs. Its words are quoted as
// those of a shell.
func scriptRuns(t *testing.T, file string) []run {
	t.Helper()
	var runs []run
	for line := range strings.Lines(read(t, file)) {
		if m := scriptLine.FindStringSubmatch(line); m != nil {
			runs = append(runs, parseShell(t, file, m[1]).runs...)
		}
	}
	return runs
}

// The parameters by which a helper is told what to run have these names, so
// that its callers are found: a program, a program with its arguments, or what
// a shell reads.
var startParams = map[string]bool{"tool": true, "command": true, "argv": true, "script": true}

// helper is a function that runs what its parameter, at an index, says.
type helper struct {
	param string
	index int
}

// goSource holds the Go files that were parsed.
type goSource struct {
	t     *testing.T
	fset  *token.FileSet
	files map[string]*ast.File
}

// goDir is what is known of the Go files of a directory.
type goDir struct {
	*goSource
	helpers map[string]helper
	// values are what names stand for: constants, and functions (with
	// parentheses) that return one.
	values map[string][]ast.Expr
}

// nstest is the package through which tests run commands in namespaces.
const nstest = `"` + module + `/probe/netns/nstest"`

// runs finds what a Go file runs through os/exec, helpers of its directory and
// those of nstest.
func (s *goSource) runs(file string) []run {
	s.t.Helper()
	d := &goDir{s, map[string]helper{
		"exec.LookPath": {"tool", 0}, "exec.Command": {"command", 0}, "exec.CommandContext": {"command", 1},
	}, map[string][]ast.Expr{}}
	siblings, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*.go"))
	if err != nil {
		s.t.Fatal(err)
	}
	f := s.parse(file)
	if slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == nstest }) {
		siblings = append(siblings, "probe/netns/nstest/nstest.go")
	}
	starts := false
	for _, sibling := range siblings {
		f := s.parse(sibling)
		d.declare(f)
		starts = starts || slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"os/exec"` })
	}
	if !starts {
		return nil
	}
	var runs []run
	for _, decl := range f.Decls {
		_, inHelper := startParam(decl)
		ast.Inspect(decl, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				runs = append(runs, d.callRuns(call, inHelper)...)
			}
			return true
		})
	}
	return runs
}

func (s *goSource) parse(file string) *ast.File {
	s.t.Helper()
	if f := s.files[file]; f != nil {
		return f
	}
	f, err := parser.ParseFile(s.fset, file, nil, parser.SkipObjectResolution)
	if err != nil {
		s.t.Fatal(err)
	}
	s.files[file] = f
	return f
}

// declare notes what a file declares.
func (d *goDir) declare(f *ast.File) {
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.GenDecl:
			for _, s := range decl.Specs {
				if v, ok := s.(*ast.ValueSpec); ok && decl.Tok == token.CONST && len(v.Values) == len(v.Names) {
					for i, n := range v.Names {
						d.values[n.Name] = v.Values[i : i+1]
					}
				}
			}
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				name = "." + name
			}
			if h, ok := startParam(decl); ok {
				d.helpers[name] = h
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 1 {
					// Calls are not followed: they may go round in circles.
					if constant, ok := r.Results[0].(*ast.Ident); ok {
						d.values[name+"()"] = append(d.values[name+"()"], constant)
					}
				}
				return true
			})
		}
	}
}

// startParam is the parameter that makes a function a helper.
func startParam(d ast.Decl) (helper, bool) {
	f, ok := d.(*ast.FuncDecl)
	if !ok {
		return helper{}, false
	}
	index := 0
	for _, field := range f.Type.Params.List {
		for _, n := range field.Names {
			if startParams[n.Name] {
				return helper{n.Name, index}, true
			}
			index++
		}
	}
	return helper{}, false
}

func (d *goDir) callRuns(call *ast.CallExpr, inHelper bool) []run {
	d.t.Helper()
	name := calleeOf(call)
	h, ok := d.helpers[name]
	if !ok || len(call.Args) <= h.index {
		return nil
	}
	if _, test := call.Args[len(call.Args)-1].(*ast.FuncLit); test {
		return nil // testing.T has a method Run too
	}
	where := d.fset.Position(call.Pos()).String()
	args := call.Args[h.index:]
	var runs []run
	switch h.param {
	case "script":
		for _, arg := range args {
			for _, script := range d.texts(arg) {
				runs = append(runs, parseShell(d.t, where, script).runs...)
			}
		}
	case "tool":
		for _, tool := range d.texts(args[0]) {
			runs = append(runs, run{tool, where})
		}
	default:
		words := make([]string, len(args))
		for i, arg := range args {
			words[i] = d.texts(arg)[0]
		}
		for _, words[0] = range d.texts(args[0]) {
			if words[0] == unknown && !inHelper && strings.HasPrefix(name, "exec.") {
				d.t.Errorf("%s: which program does this run? Write its name here, or name the parameter that has it tool, command or script", where)
			}
			runs = append(runs, commandRuns(d.t, where, words)...)
		}
	}
	return runs
}

// calleeOf names what is called: a function, a method with a dot, or a function
// of os/exec.
func calleeOf(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok && (x.Name == "exec" || x.Name == "fmt") {
			return x.Name + "." + f.Sel.Name
		}
		return "." + f.Sel.Name
	}
	return ""
}

// texts are what an expression may be, as far as that can be seen here.
func (d *goDir) texts(e ast.Expr) []string {
	var all []string
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return []string{text}
		}
	case *ast.Ident:
		for _, v := range d.values[e.Name] {
			all = append(all, d.texts(v)...)
		}
	case *ast.BinaryExpr:
		for _, left := range d.texts(e.X) {
			for _, right := range d.texts(e.Y) {
				all = append(all, left+right)
			}
		}
	case *ast.CallExpr:
		name := calleeOf(e)
		if name == "fmt.Sprintf" {
			for _, format := range d.texts(e.Args[0]) {
				all = append(all, verb.ReplaceAllString(format, unknown))
			}
		}
		for _, v := range d.values[name+"()"] {
			all = append(all, d.texts(v)...)
		}
	}
	if len(all) == 0 {
		return []string{unknown}
	}
	return all
}

var verb = regexp.MustCompile(`%[a-z]`)
