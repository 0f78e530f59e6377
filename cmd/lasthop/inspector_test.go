//go:build inspector

package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/netns"
)

// TestInspector asks `lasthop mcp` as the MCP inspector's command line does, which is at
// $LASTHOP_INSPECTOR, from a symptom to a verdict, and compares that with the transcript in the
// documentation: the same words, but for numbers. `make test-inspector` installs it.
func TestInspector(t *testing.T) {
	l := upLab(t, "policy-drop")
	dir := t.TempDir()
	node, err := observed(l)
	if err != nil {
		t.Fatal(err)
	}
	a, o := &app{stdout: io.Discard, stderr: io.Discard}, given(t)
	err = a.inLab(t.Context(), o, l, func(*netns.NS, string) error {
		record := exec.Command("lasthop", "record", filepath.Join(dir, "node.rec"), "--netns", node.Netns, "--host-root", o.HostRoot, "--for", "10s")
		out, err := record.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var transcript strings.Builder
	for _, args := range [][]string{
		{"tools/call", "--tool-name", "check"},
		{"tools/call", "--tool-name", "explain", "--tool-arg", "from=default/cart", "--tool-arg", "to=10.244.1.2"},
		{"tools/call", "--tool-name", "findings", "--tool-arg", "code=PolicyDrop"},
	} {
		args = append([]string{"--cli", "lasthop", "mcp", "--replay", "node.rec", "--method"}, args...)
		inspector := exec.Command("sh", append([]string{"-c", `"$LASTHOP_INSPECTOR" "$@"`, "sh"}, args...)...)
		inspector.Dir = dir
		out, err := inspector.Output()
		var got struct {
			IsError bool
			Content []struct{ Text string }
		}
		if err == nil {
			err = json.Unmarshal(out, &got)
		}
		if err != nil || got.IsError || len(got.Content) != 1 {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		text := shown(strings.ReplaceAll(got.Content[0].Text, node.Netns, node.Name))
		command := "$ npx @modelcontextprotocol/inspector " + strings.Join(args, " ")
		transcript.WriteString("\n```console\n" + command + "\n" + text + "```\n")
	}
	const file, mark = "../../docs/agents/README.md", "<!-- inspector -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, old, _ := strings.Cut(string(text), mark)
	if *testWrite {
		if err := os.WriteFile(file, []byte(before+mark+transcript.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !alikeText(old, transcript.String()) {
		t.Errorf("the transcript is\n%s", &transcript)
	}
}
