package serve

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestCut: a document gets small enough, what was asked for goes last, and what is gone is counted.
func TestCut(t *testing.T) {
	list := func(n int) []any {
		out := make([]any, n)
		for i := range out {
			out[i] = map[string]any{"text": strings.Repeat("x", 100)}
		}
		return out
	}
	doc := cut(map[string]any{"kind": "Report", "hops": list(5000), "findings": list(100), "sources": list(20), "long": strings.Repeat("y", 5000)})
	text, err := json.Marshal(doc)
	if err != nil || len(text) > mostDocument+100 {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	gone := doc["leftOut"].(map[string]any)
	if len(doc["findings"].([]any)) != 100 || len(doc["hops"].([]any))+gone["hops"].(int) != 5000 || len(gone) != 1 || strings.Contains(string(text), "yyy") {
		t.Errorf("left out: %v", gone)
	}
	if doc := cut(map[string]any{"findings": list(5000)}); len(doc["findings"].([]any)) < 100 {
		t.Errorf("%d findings are left", len(doc["findings"].([]any)))
	}
}

// TestArgs: each input is a whole word, and no name is taken for a flag.
func TestArgs(t *testing.T) {
	flags := func(string) []string { return []string{"--redact=true"} }
	for _, c := range []struct {
		place Place
		tool  string
		in    input
		want  string
	}{
		{Node, "check", input{Pods: []string{"shop/cart", "10.0.0.1"}, Window: "30s"}, "check --output=mcp --redact=true --for=30s -- shop/cart 10.0.0.1"},
		{Recordings, "explain", input{From: "shop/cart", To: "10.0.0.1:80/tcp"}, "explain --output=mcp --redact=true --to=10.0.0.1:80/tcp -- shop/cart"},
		{Cluster, "check", input{}, "check --output=mcp --redact=true --all --"},
		{Cluster, "check", input{Nodes: []string{"a"}, Pods: []string{"shop/cart"}, Only: []string{"NoReply"}, Active: true},
			"check --output=mcp --redact=true --only=NoReply --active -- node/a pod/shop/cart"},
		{Cluster, "check", input{Pods: []string{"shop/cart"}, At: "03:12", Last: "20m"}, "check --output=mcp --redact=true --last=20m --at=03:12 -- pod/shop/cart"},
		{Cluster, "explain", input{From: "shop/cart", To: "svc/web"}, "explain --output=mcp --redact=true --to=svc/web --namespace=shop -- pod/shop/cart"},
		{Cluster, "doctor", input{}, "doctor --output=mcp --redact=true --all --"},
		{Cluster, "check", input{Window: "6m"}, ""},
		{Cluster, "check", input{All: true, Pods: []string{"a"}}, ""},
		{Node, "replay", input{Path: "/dev/null"}, ""},
	} {
		s := &Server{Place: c.place, Flags: flags}
		args, _, err := s.args(c.tool, c.in)
		if got := strings.Join(args, " "); (err != nil) != (c.want == "") || err == nil && got != c.want {
			t.Errorf("%s %+v: got %q, %v; want %q", c.tool, c.in, got, err, c.want)
		}
	}
}

// TestErrors: what an error quotes of an input is cleaned.
func TestErrors(t *testing.T) {
	in := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"check","arguments":{"window":"\u001b[2J\u0000"}}}
{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"\u001b[2J\u0000","arguments":{}}}
{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"check","arguments":{"\u001b[2J\u0000":1}}}
{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"replay","arguments":{"path":"/\u001b[2J\u0000"}}}
{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"findings","arguments":{"code":"\u001b[2J\u0000"}}}
`
	s := &Server{AtOnce: 1, Log: slog.New(slog.DiscardHandler), Flags: func(string) []string { return nil }}
	requests, client := io.Pipe()
	answers, server := io.Pipe()
	served := make(chan error, 2)
	go func() { served <- s.Serve(t.Context(), requests, server) }()
	go func() {
		_, err := io.WriteString(client, in)
		served <- err
	}()
	lines := bufio.NewScanner(answers)
	for range 6 {
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		for _, control := range []string{"\x1b", "\x00", `\u001b`, `\u0000`} {
			if strings.Contains(strings.ReplaceAll(lines.Text(), `\\`, ""), control) {
				t.Errorf("%q in %s", control, lines.Text())
			}
		}
	}
	if err := errors.Join(client.Close(), <-served, <-served); err != nil {
		t.Error(err)
	}
}

// TestTools: no tool takes what it does not know, and each text is bounded.
func TestTools(t *testing.T) {
	for _, place := range []Place{Node, Cluster, Recordings} {
		list, err := (&Server{Place: place}).tools()
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list {
			schema := tool.InputSchema.(map[string]any)
			if schema["additionalProperties"] != false {
				t.Errorf("%s takes anything", tool.Name)
			}
			for name, p := range schema["properties"].(map[string]any) {
				p := p.(map[string]any)
				if _, bounded := p["maxLength"]; p["type"] == "string" && !bounded && p["pattern"] == nil {
					t.Errorf("%s: %s may be any text", tool.Name, name)
				}
				if p["type"] == "array" && p["maxItems"] == nil {
					t.Errorf("%s: %s may be of any length", tool.Name, name)
				}
			}
		}
		if slices.ContainsFunc(names(list), func(n string) bool { return n == "doctor" }) == (place == Recordings) {
			t.Errorf("place %d: %v", place, names(list))
		}
	}
}

func names(list []*mcp.Tool) (out []string) {
	for _, t := range list {
		out = append(out, t.Name)
	}
	return out
}
