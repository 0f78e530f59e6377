package lasthop_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/lasthop/lasthop"

// direction says which packages of the module a part of it may rest on,
// directly or through others, besides itself.
type direction struct {
	part   string
	on     []string
	reason string
}

// directions is the house: kernel state becomes plain values once, at the
// edge; judgement is pure; display is another thing. A part that is not listed
// fails the test, so that whoever adds one says where it belongs.
var directions = []direction{
	{"probe/model", nil, "the vocabulary belongs to nobody: it must not know who speaks it"},
	{"probe/netns", nil, "a tool of the edge, below every collector"},
	{"probe/input", nil, "a tool of the edge: whoever reads a file of others reads it with a bound"},
	{"probe/claim", nil, "a tool of the edge, as collectors and counters have to agree about it"},
	{"probe/loss", []string{"probe/model"}, "what was lost, and what excuses it, is said once, for prediction, judgement and display alike"},
	{"probe/path", []string{"probe/model", "probe/loss", "probe/words"}, "prediction is pure: values in, values out"},
	{"probe/ledger", []string{"probe/model", "probe/loss"}, "the account is pure: it adds up what was counted, and knows nothing of how"},
	{"probe/reach", []string{"probe/model"}, "who reaches whom is summed up from what was counted and judged, and judges nothing"},
	{"probe/plugin", []string{"probe/model"}, "a plugin is recognised by what was read, wherever that was"},
	{"probe/words", []string{"probe/model"}, "sentences are made of values, and nothing rests on what they say"},
	{"probe/node", []string{"probe/model", "probe/loss", "probe/path", "probe/words"}, "the index of a node is pure, and knows no finding"},
	{"probe/fault", []string{"probe/model", "probe/loss", "probe/path", "probe/words", "probe/node"}, "a kind proposes faults for losses, and sees neither the engine nor another family"},
	{"probe/diagnose", []string{"probe/model", "probe/loss", "probe/path", "probe/words", "probe/node", "probe/fault"}, "judgement is pure: the same snapshot must give the same findings on any machine"},
	{"probe/audit", []string{"probe/model", "probe/loss", "probe/path", "probe/words", "probe/node", "probe/fault", "probe/diagnose"}, "what would die is judged as what dies is: values in, findings out"},
	{"probe/redact", []string{"probe/model"}, "what is hidden is decided by what was read, before anything is judged of it"},
	{"probe/catalogue", []string{"probe/model", "probe/loss", "probe/path", "probe/words", "probe/node", "probe/fault", "probe/diagnose"}, "what a finding means is text, and no judgement depends on it"},
	{"probe/join", []string{"probe/model", "probe/loss", "probe/node", "probe/fault", "probe/diagnose", "probe/path", "probe/words"}, "several nodes are judged as one is: values in, findings out"},
	{"probe/agree", []string{"probe/model", "probe/loss", "probe/path", "probe/words"}, "tests alone use it: findings and paths are held against each other as values"},
	{"probe/growth", nil, "tests alone use it: it knows nothing of what it counts the work of"},
	{"probe/report", []string{"probe/model", "probe/loss"}, "display shows what was judged; it judges and reads nothing"},
	{"probe/pcap", []string{"probe/model", "probe/loss", "probe/report"}, "samples are shown as packets: values in, bytes out"},
	{"probe/timeline", []string{"probe/model", "probe/loss"}, "windows are cut from values, live or recorded alike"},
	{"probe/record", []string{"probe/model", "probe/loss", "probe/timeline"}, "a recording is of the model, not of what filled it"},
	{"probe/ring", []string{"probe/model", "probe/loss", "probe/timeline", "probe/record"}, "recordings that are kept for a while are files, whoever makes their readings"},
	{"probe/collect", []string{"probe/model", "probe/netns", "probe/input", "probe/claim", "probe/plugin"}, "a collector turns kernel state into the model and knows nothing of its use"},
	{"probe/traffic", []string{"probe/model", "probe/netns", "probe/input", "probe/claim", "probe/collect/dump", "probe/collect/kmod", "probe/collect/program", "bpf"}, "the counters become the model here and nowhere else"},
	{"probe/active", []string{"probe/model", "probe/netns"}, "what to ask is planned by judgement, what an answer means is judged: this asks"},
	{"probe/session", []string{"probe/model", "probe/netns", "probe/input", "probe/claim", "probe/collect", "probe/plugin", "probe/traffic", "probe/timeline", "probe/active", "probe/node", "probe/fault", "probe/diagnose", "probe/loss", "probe/path", "probe/words", "bpf"}, "the session owns the collectors; who shows its snapshots is not its business"},
	{"tui", []string{"probe/model", "probe/loss", "probe/report"}, "the screen draws values, cleaned as the reports clean them: it must run over a recording, without rights"},
	{"bpf", nil, "the programs and their bindings, below everything"},
	{"kind/peers", []string{"probe/netns", "bpf"}, "it compares what programs cost, an empty one of ours among them"},
	{"kind", []string{"probe/model", "probe/netns", "probe/input"}, "the lab makes the faults: it must not know how they are found"},
	{"cmd", []string{"probe", "kind", "tui", "bpf"}, "the command wires everything, and nothing rests on it"},
}

// ban forbids direct imports to all but some parts.
type ban struct {
	imports []string
	but     []string
	reason  string
}

var bans = []ban{
	{
		[]string{"github.com/vishvananda/netlink", "github.com/google/nftables", "github.com/mdlayher/netlink", "github.com/cilium/ebpf"},
		[]string{"probe/collect", "probe/traffic", "bpf", "kind"},
		"kernel interfaces end at the edge, where they become the model",
	},
	{[]string{"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term"}, []string{"cmd"}, "only the command talks to a user"},
	{[]string{"log", "log/slog"}, []string{"cmd"}, "only the command sets up logging; below it errors are returned"},
	{[]string{"flag"}, []string{"cmd"}, "only the command has flags"},
	{
		[]string{"os", "os/exec", "net", "syscall", "golang.org/x/sys/unix"},
		[]string{"cmd", "kind", "bpf", "probe/collect", "probe/traffic", "probe/active", "probe/session", "probe/netns", "probe/input", "probe/claim", "probe/growth", "probe/ring", "probe/model"},
		"what is pure reads no file, opens no socket and starts no process",
	},
	{
		[]string{"os", "os/exec", "syscall", "golang.org/x/sys/unix"},
		[]string{"cmd", "kind", "bpf", "probe/collect", "probe/traffic", "probe/active", "probe/session", "probe/netns", "probe/input", "probe/claim", "probe/growth", "probe/ring"},
		"the model is plain values",
	},
	{[]string{"unsafe", "C"}, []string{"bpf", "probe/traffic", "probe/collect", "kind/lab"}, "memory is shared with the kernel only at the edge"},
}

// covers reports whether the ban means the import. Packages below a banned
// module are banned as well; those below one of the standard library are not.
func (b ban) covers(imported string) bool {
	return slices.ContainsFunc(b.imports, func(banned string) bool {
		return imported == banned || strings.Contains(banned, ".") && strings.HasPrefix(imported, banned+"/")
	})
}

type goPackage struct {
	ImportPath string
	Dir        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

// part is the path of a package within the module.
func (p goPackage) part() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// packages lists the module's packages that have more than tests.
func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,Deps,GoFiles", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			all = append(all, p)
		}
	}
}

// within reports whether a path is one of the parts, or below one.
func within(path string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool {
		return path == part || strings.HasPrefix(path, part+"/")
	})
}

func TestImportsPointInward(t *testing.T) {
	for _, p := range packages(t) {
		i := slices.IndexFunc(directions, func(d direction) bool { return within(p.part(), d.part) })
		if i < 0 {
			t.Errorf("%s has no place in the house: add it to directions, with the reason", p.part())
			continue
		}
		d := directions[i]
		for _, dep := range p.Deps {
			part, own := strings.CutPrefix(dep, module+"/")
			if own && !within(part, append(d.on, d.part)...) {
				t.Errorf("%s rests on %s, but %s may rest on %v alone: %s", p.part(), part, d.part, d.on, d.reason)
			}
			if d.part == "probe/model" && strings.Contains(strings.SplitN(dep, "/", 2)[0], ".") {
				t.Errorf("%s rests on %s: the model rests on the standard library alone", p.part(), dep)
			}
		}
	}
}

// TestFamilies keeps the kinds of one family from looking at those of another: what two need belongs in probe/node.
func TestFamilies(t *testing.T) {
	const families = "probe/fault"
	seen := 0
	for _, p := range packages(t) {
		if p.part() == families || !within(p.part(), families) {
			continue
		}
		seen++
		for _, dep := range p.Deps {
			part := strings.TrimPrefix(dep, module+"/")
			if part != p.part() && part != families && within(part, families) {
				t.Errorf("%s rests on %s, another family", p.part(), part)
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d families in %s", seen, families)
	}
}

// TestNodeBinary keeps Kubernetes' clients to the plugin: what runs on a node is small,
// and asks no API server. It has the parser of label selectors.
func TestNodeBinary(t *testing.T) {
	for _, p := range packages(t) {
		if p.part() != "cmd/lasthop" {
			continue
		}
		for _, dep := range p.Deps {
			if within(dep, "k8s.io/api", "k8s.io/client-go", "sigs.k8s.io", "github.com/Azure") {
				t.Errorf("cmd/lasthop rests on %s, which is for cmd/kubectl-lasthop", dep)
			}
		}
	}
}

// TestGrowth wants a test of how work grows wherever what is pure has a benchmark: a
// benchmark alone fails unseen.
func TestGrowth(t *testing.T) {
	for _, p := range packages(t) {
		if within(p.part(), "cmd", "kind", "bpf", "probe/collect", "probe/traffic", "probe/active", "probe/session", "probe/netns", "probe/claim") {
			continue
		}
		files, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(b)
		}
		if strings.Contains(text.String(), "\nfunc Benchmark") && !strings.Contains(text.String(), "growth.Test(") {
			t.Errorf("%s has a benchmark, and no test of how its work grows", p.part())
		}
	}
}

func TestBannedImports(t *testing.T) {
	for _, p := range packages(t) {
		for _, b := range bans {
			for _, imported := range p.Imports {
				if b.covers(imported) && !within(p.part(), b.but...) {
					t.Errorf("%s imports %s, which is for %v: %s", p.part(), imported, b.but, b.reason)
				}
			}
		}
	}
}

// TestInput keeps reading to probe/input, where it has a bound. The kernel's own files have one.
func TestInput(t *testing.T) {
	for _, p := range packages(t) {
		if within(p.part(), "probe/input", "kind/lab", "kind/peers", "kind/cluster", "tools") {
			continue // these read what they wrote
		}
		for _, name := range p.GoFiles {
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, is := n.(*ast.CallExpr)
				if !is {
					return true
				}
				switch of := types.ExprString(call.Fun); {
				case of == "os.ReadFile" && kernels(call.Args[0]), of == "io.ReadAll" && strings.HasPrefix(types.ExprString(call.Args[0]), "io.LimitReader("):
				case of == "os.ReadFile", of == "io.ReadAll":
					t.Errorf("%s: %s has no bound: use probe/input", set.Position(n.Pos()), of)
				}
				return true
			})
		}
	}
}

// kernels reports whether a path is one of the kernel's files.
func kernels(path ast.Expr) bool {
	text := types.ExprString(path)
	return strings.HasPrefix(text, `"/proc/`) || strings.HasPrefix(text, `"/sys/`)
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		var with []string
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc == nil {
				continue
			}
			with = append(with, name)
			want := "Package " + f.Name.Name + " "
			if f.Name.Name == "main" {
				want = "Command " + filepath.Base(p.Dir) + " "
			}
			if !strings.HasPrefix(f.Doc.Text(), want) {
				t.Errorf("%s: the comment of package %s does not begin with %q", name, p.part(), want)
			}
		}
		if len(with) != 1 {
			t.Errorf("package %s has %d package comments %v, want one", p.part(), len(with), with)
		}
	}
}

// TestReliability wants each test that docs/internals/reliability.md names.
func TestReliability(t *testing.T) {
	text, err := os.ReadFile("docs/internals/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(string(text), "`") {
		if name, _, _ = strings.Cut(name, "/"); strings.HasPrefix(name, "Test") {
			if err := exec.Command("grep", "-rqE", "--include=*_test.go", "^func "+name+"[(]", ".").Run(); err != nil {
				t.Errorf("no test is named %s: %v", name, err)
			}
		}
	}
}

// TestDependencies wants docs/internals/reliability.md to say why a module stays that one file of the programs uses alone.
func TestDependencies(t *testing.T) {
	text, err := os.ReadFile("docs/internals/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	direct, _, _ := strings.Cut(string(mod), ")")
	for line := range strings.Lines(direct) {
		module, _, found := strings.Cut(strings.TrimSpace(line), " v")
		if !found {
			continue
		}
		out, err := exec.Command("grep", "-rlE", "--include=*.go", "--exclude=*_test.go", "--exclude-dir=kind", "\""+module+"[\"/]", "cmd", "probe", "tui").Output()
		if err != nil && len(out) > 0 {
			t.Fatal(err)
		}
		if strings.Count(string(out), "\n") == 1 && !strings.Contains(string(text), "| "+module+" |") {
			t.Errorf("%s is for %s alone: docs/internals/reliability.md does not say why it stays", module, strings.TrimSpace(string(out)))
		}
	}
}

var (
	linked  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinks follows the links between the project's documents: each leads to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	anchors := func(file string) map[string]bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			out[strings.ReplaceAll(strings.ToLower(noSlug.ReplaceAllString(m[1], "")), " ", "-")] = true
		}
		return out
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", ".github/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range linked.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				name, anchor, _ := strings.Cut(m[1], "#")
				to := file
				if name != "" {
					to = filepath.Join(filepath.Dir(file), name)
				}
				if _, err := os.Stat(to); err != nil {
					t.Errorf("%s: %v", file, err)
				} else if anchor != "" && !anchors(to)[anchor] {
					t.Errorf("%s: %s has no heading #%s", file, to, anchor)
				}
			}
		}
	}
}
