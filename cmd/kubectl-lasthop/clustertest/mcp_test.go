//go:build cluster

package clustertest

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var update = flag.Bool("update", false, "write the transcript in docs/agents")

// answer is what a tool gave.
type answer struct {
	IsError           bool
	Content           []struct{ Text string }
	StructuredContent map[string]any
}

// inspect calls a tool of `kubectl lasthop mcp` as the MCP inspector's command line does, which
// is at $LASTHOP_INSPECTOR, and gives the words of that call too.
func inspect(t *testing.T, of string, args ...string) (asked string, a answer) {
	t.Helper()
	words := []string{"--cli", "kubectl", "lasthop", "mcp", "--method", "tools/call", "--tool-name", of}
	for _, arg := range args {
		words = append(words, "--tool-arg", arg)
	}
	r := run(t, command(append([]string{os.Getenv("LASTHOP_INSPECTOR")}, words...)...))
	if err := json.Unmarshal([]byte(r.stdout), &a); err != nil || a.IsError || len(a.Content) != 1 {
		t.Fatalf("%v: %v: %s%s", words, err, r.stdout, r.stderr)
	}
	return "$ npx @modelcontextprotocol/inspector " + strings.Join(words, " ") + "\n", a
}

var (
	// madeName is that of a deployment's pod.
	madeName = regexp.MustCompile(`\bclient-[a-z0-9]+-[a-z0-9]+\b`)
	// patch is the part of a kernel's release that nobody needs.
	patch = regexp.MustCompile(`(Linux [0-9]+\.[0-9]+)[^ ,)]*`)
	// varying is what is another in each cluster: words with a digit, and the state of a neighbour that is used.
	varying = regexp.MustCompile(`\S*[0-9]\S*|REACHABLE|STALE|DELAY|PROBE`)
)

// shown is what the documentation shows of an answer: of a path the way to its end.
func shown(text string) string {
	text, _, cut := strings.Cut(patch.ReplaceAllString(madeName.ReplaceAllString(text, "client-7d9f"), "$1"), "\nreturn\n")
	if cut {
		text += "\n…"
	}
	return strings.TrimSpace(text)
}

// sameWords compares without order: which pod has the lower address is chance.
func sameWords(a, b string) bool {
	fields := func(text string) []string {
		return slices.Sorted(slices.Values(strings.Fields(varying.ReplaceAllString(text, ""))))
	}
	return slices.Equal(fields(a), fields(b))
}

// TestMCP asks from a symptom to a verdict by the MCP inspector, while a route lacks; the
// transcript is in the documentation. The other tools answer too.
func TestMCP(t *testing.T) {
	inFabric(t, "route", "replace", "blackhole", "10.244.1.0/24")
	defer func() {
		inFabric(t, "route", "del", "blackhole", "10.244.1.0/24")
		inFabric(t, "route", "replace", "10.244.1.0/24", "via", "10.99.0.11")
	}()
	var transcript strings.Builder
	for _, c := range []struct {
		call []string
		want string
	}{
		{[]string{"check", "all=true"}, "10.244.1.0/24"},
		{[]string{"explain", "from=shop/asks-other", "to=pod/other"}, "between the nodes"},
		{[]string{"findings", "code=MissingNodeRoute"}, "MissingNodeRoute"},
	} {
		asked, a := inspect(t, c.call[0], c.call[1:]...)
		if !strings.Contains(a.Content[0].Text, c.want) {
			t.Errorf("%v: no %q: %s", c.call, c.want, a.Content[0].Text)
		}
		if c.call[0] == "check" && len(a.StructuredContent["findings"].([]any)) != 1 {
			t.Errorf("%v: %v", c.call, a.StructuredContent["findings"])
		}
		transcript.WriteString("\n```console\n" + asked + shown(a.Content[0].Text) + "\n```\n")
	}
	removed(t)
	const mark, end = "<!-- inspector: cluster -->\n", "\n## "
	file := filepath.Join(root, "docs/agents/README.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), mark)
	old, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("%s has no %s", file, mark)
	case *update:
		if err := os.WriteFile(file, []byte(before+mark+transcript.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case !sameWords(old, transcript.String()):
		t.Errorf("the transcript is\n%s", &transcript)
	}
	if _, a := inspect(t, "doctor", `nodes=["node1"]`); !strings.Contains(a.Content[0].Text, "node1") {
		t.Errorf("doctor: %s", a.Content[0].Text)
	}
	recording := filepath.Join(t.TempDir(), "node2.rec")
	if r := lasthop(t, "record", recording, "node2", "--for", "10s"); r.status != 0 {
		t.Fatal(r.stderr)
	}
	if _, a := inspect(t, "replay", "path="+recording); !strings.Contains(a.Content[0].Text, "10.244.1.0/24") {
		t.Errorf("replay: %s", a.Content[0].Text)
	}
	removed(t)
}

// TestMCPEnds cancels a call while its window runs: its debug pods end, and the server answers on.
func TestMCPEnds(t *testing.T) {
	watching := make(chan struct{}, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			if strings.Contains(r.Params.Message, "2 of 2 nodes are ready") {
				watching <- struct{}{}
			}
		},
	})
	server, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: command("kubectl", "lasthop", "mcp")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "check", Arguments: map[string]any{"all": true, "window": "5m"}}
		p.SetProgressToken("window")
		_, err := server.CallTool(ctx, p)
		ended <- err
	}()
	select {
	case <-watching:
	case err := <-ended:
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call gives a verdict")
	}
	removed(t)
	r, err := server.CallTool(t.Context(), &mcp.CallToolParams{Name: "check", Arguments: map[string]any{"nodes": []string{"node9"}}})
	if err != nil || !r.IsError {
		t.Errorf("a node of nobody: %v, %+v", err, r)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	removed(t)
}
