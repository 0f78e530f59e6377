package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/netns"
)

// TestRecognition looks at every healthy node with its plugin's files and
// without any, and wants the same plugin, policy and residue, and what each was
// recognised by.
func TestRecognition(t *testing.T) {
	t.Parallel()
	for _, name := range few(healthyScenarios(), 2) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := upLab(t, name)
			node, err := observed(l)
			if err != nil {
				t.Fatal(err)
			}
			s := l.Scenario()
			files, err := hostFiles(s.Topology.Node(node.Name))
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			for name, text := range files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for what, root := range map[string]string{"with its files": root, "without files": t.TempDir()} {
				n := recognised(t, node.Netns, root)
				by := n.PluginBy
				wrong := append(s.Expect.PluginMismatches(n.Plugin, by), s.Expect.LayerMismatches(n.Policy, n.Residue, by)...)
				least := 1
				for _, layer := range []string{n.Policy, n.Residue} {
					if layer != "" {
						least++
					}
				}
				if len(wrong) > 0 || len(by) < least || s.Expect.Plugin == "" {
					t.Errorf("%s: %+v: %s", what, n, strings.Join(wrong, "; "))
				}
			}
		})
	}
}

// recognised is what a report says of a node's plugin.
type recognition struct {
	Plugin, Policy, Residue string
	PluginBy                []string
}

func recognised(t *testing.T, node, root string) recognition {
	t.Helper()
	ns, err := netns.Named(node)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var out bytes.Buffer
	a, o := &app{stdout: &out, stderr: io.Discard}, given(t, "--host-root", root, "--engine", "state", "--for", "100ms", "-o", "json")
	s, err := a.observe(t.Context(), o.session(ns, node))
	if err != nil {
		t.Fatal(err)
	}
	found, err := o.judge(s, nil, nil)
	if err := errors.Join(err, a.print(o, found), o.verdict(found)); err != nil {
		t.Errorf("%v:\n%s", err, &out)
	}
	var r struct{ Node recognition }
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	return r.Node
}
