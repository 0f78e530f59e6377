package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

// TestBudgets decodes the worst that was found for each decoder of what others write. It takes a bounded amount of
// memory, and where it is refused, the message says so.
func TestBudgets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const million = 1 << 20
	empty := strings.Repeat("{},", 2*million-10) + "{}"
	list := file("list", `{"kind":"List","items":[`+empty+`]}`)
	nodes := file("nodes", `{"kind":"NodeList","items":[`+empty+`]}`)
	routes := file("routes", "["+empty+"]")
	state := []string{"check", "--engine", "state", "--for", "10ms"}
	for _, tt := range few([]struct {
		name  string
		args  []string
		input string
		// mebibytes is the most memory that the process gets.
		mebibytes int
		says      string
	}{
		{"objects beyond number", append(state, "--pods", file("more", "["+empty+","+empty+"]")), "", 256, "too many objects"},
		{"pods", append(state, "--pods", list), "", 1500, "items[0] is a"},
		{"nodes", append(state, "--nodes", nodes), "", 1800, ""},
		{"routes", append(state, "--routes", routes), "", 600, "an object of an unknown kind"},
		{"depth", append(state, "--routes", file("deep", strings.Repeat("[", 20*million))), "", 256, "exceeded max depth"},
		{"a recording", []string{"replay", recordEmpty(t, filepath.Join(dir, "recording"), million-1000), "-o", "json"}, "", 1024, ""},
		{"a scenario", []string{"demo", file("a.yaml", "traffic:\n"+strings.Repeat("  - {}\n", 140000))}, "", 400, "a.yaml:"},
		{"a scenario's aliases", []string{"demo", file("b.yaml", aliases())}, "", 200, "b.yaml:"},
		{"a request", []string{"mcp"}, `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("a", 64*million) + "\"}\n", 200, "maximum line length"},
		{"a deep request", []string{"mcp"}, strings.Repeat("[", 64*million), 200, "exceeded max depth"},
	}, 2) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			limit := fmt.Sprintf("ulimit -d %d && exec lasthop \"$@\"", tt.mebibytes<<10)
			cmd := exec.Command("sh", append([]string{"-c", limit, "sh"}, tt.args...)...)
			cmd.Stdin = strings.NewReader(tt.input)
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "goroutine ") || cmd.ProcessState.ExitCode() < 0 || !strings.Contains(string(out), tt.says) {
				t.Errorf("with %d MiB: %v, want %q: %.500s", tt.mebibytes, err, tt.says, out)
			}
		})
	}
}

// aliases is a scenario that is nine to the twelfth texts long, written out.
func aliases() string {
	out := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := byte('b'); c < 'n'; c++ {
		out += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+", ", 9) + "]\n"
	}
	return out
}

// recordEmpty writes a recording of as many pods as one may have, which take as little of the file as they can.
func recordEmpty(t *testing.T, path string, pods int) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := record.NewWriter(f, record.Head{Writer: "test", Node: "node"})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1700000000, 0)
	s := &model.Snapshot{Window: model.Window{Start: at, End: at.Add(time.Second)}}
	s.Neighbors = make([]model.Neighbor, pods)
	if err := w.Write(model.Reading{At: s.Window.End, Point: model.Point{Snapshot: s, Whole: true}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
