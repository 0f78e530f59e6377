package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/probe/netns"
)

// TestGuides runs the commands of every guide in their order, on the lab that it names,
// and compares what they print. Numbers alone may differ, and how lines are wrapped; "…"
// stands for what else was looked at. A command of az that changes something changes the
// lab's fabric.
func TestGuides(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/guides/*.md")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	// The first leads to the others, and runs nothing (TestNamedCommands).
	files = slices.DeleteFunc(files, func(f string) bool { return filepath.Base(f) == "README.md" })
	for _, file := range append(few(files, 1), "../../docs/tutorial.md") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			g := &guide{t: t, dir: t.TempDir()}
			if name := marked(text, "lab"); name != "" {
				g.inLab(name, string(text))
			} else {
				dir := filepath.Join(filepath.Dir(file), marked(text, "dir"))
				if err := os.CopyFS(g.dir, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				g.follow(t.Context(), string(text))
			}
			if *testWrite {
				if err := os.WriteFile(file, []byte(g.written.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// marked is the value of a comment in a guide.
func marked(text []byte, key string) string {
	m := regexp.MustCompile(`<!-- ` + key + `: (.*) -->`).FindSubmatch(text)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// guide is one that is being followed.
type guide struct {
	t   *testing.T
	dir string
	// lab and node are those that it is about; nil and empty for none.
	lab  *lab.Lab
	node lab.Node
	// prelude is what its commands stand for in the lab.
	prelude string
	ran     int
	written strings.Builder
}

// inLab follows a guide on a lab's observed node, while its traffic runs.
func (g *guide) inLab(name, text string) {
	t := g.t
	g.lab = upLab(t, name)
	var err error
	if g.node, err = observed(g.lab); err != nil {
		t.Fatal(err)
	}
	a, o := &app{stdout: io.Discard, stderr: io.Discard}, given(t)
	err = a.inLab(t.Context(), o, g.lab, func(*netns.NS, string) error {
		g.prelude = "lasthop() { command lasthop \"$@\" --host-root " + o.HostRoot + "; }\nkubectl() { cat " + o.Nodes + "; }\n"
		if len(o.Routes) == 2 {
			g.prelude += "az() { case $2 in route-table) cat " + o.Routes[0] + " ;; vnet) cat " + o.Routes[1] + " ;; esac; }\n"
		}
		g.follow(t.Context(), text)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := g.lab.Down(t.Context()); err != nil {
		t.Error(err)
	}
}

// follow runs the commands in a guide, and writes it anew.
func (g *guide) follow(ctx context.Context, text string) {
	command, expected, inside := "", "", false
	done := func() {
		if command != "" {
			g.command(ctx, command, expected)
		}
		command, expected = "", ""
	}
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "```"):
			done()
			inside = strings.TrimSpace(line) == "```console"
		case inside && strings.HasPrefix(line, "$ "):
			done()
			command = strings.TrimSpace(line[2:])
		case inside:
			expected += line
			continue
		}
		g.written.WriteString(line)
	}
	if g.ran == 0 {
		g.t.Error("no command was run")
	}
}

// command runs one command and compares its output.
func (g *guide) command(ctx context.Context, command, expected string) {
	g.ran++
	if strings.HasPrefix(command, "az ") && !strings.Contains(command, ">") {
		if err := inCloud(ctx, g.lab, command); err != nil {
			g.t.Errorf("%s: %v", command, err)
		}
		return
	}
	args := []string{"bash", "-c", g.prelude + command}
	if g.lab != nil {
		args = append([]string{"ip", "netns", "exec", g.node.Netns}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out, log bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = g.dir, &out, &log
	cmd.Env = append(os.Environ(), "PATH="+g.commands()+":"+os.Getenv("PATH"), "NO_COLOR=1")
	if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != exitFindings {
		g.t.Errorf("%s: %v\n%s", command, err, &log)
	}
	got := shown(out.String())
	g.written.WriteString(got)
	if !*testWrite && !alikeText(expected, got) {
		g.t.Errorf("%s prints\n%s\nand not (go test ./cmd/lasthop -run TestGuides -update, then review)\n%s", command, got, expected)
	}
}

// commands is a directory with lasthop, which is this test's own binary.
func (g *guide) commands() string {
	dir := filepath.Join(g.dir, ".commands")
	self, err := os.Executable()
	if err != nil {
		g.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		g.t.Fatal(err)
	}
	// The processes of a lab run the file by its own name, so a symbolic link would not do.
	if err := os.Link(self, filepath.Join(dir, "lasthop")); err != nil && !os.IsExist(err) {
		g.t.Fatal(err)
	}
	return dir
}

var (
	summaryLine = regexp.MustCompile(`(?m)^(?:this )?node (?:\S+ )?\([^\n]*Linux [0-9][^\n]*\n(?s:.*)`)
	straggling  = regexp.MustCompile(`; [0-9]+ drops? without a finding`)
	spareNumber = regexp.MustCompile(`^([("]?)[0-9]+(\.[0-9]+)?(ms|s)?([),.:;"]*)$`)
)

// shown is what a guide shows of an output: the findings, or the forward path, and not
// what else was looked at.
func shown(out string) string {
	if path, _, found := strings.Cut(out, "\nreturn\n"); found {
		return path + "\n…\n"
	}
	return summaryLine.ReplaceAllString(out, "…\n")
}

// alikeText reports whether two texts have the same words but for numbers.
func alikeText(a, b string) bool { return spare(a) == spare(b) }

func spare(text string) string {
	// Packets that were on their way as a fault was mended are few, or none.
	words := strings.Fields(straggling.ReplaceAllString(strings.Join(strings.Fields(text), " "), ""))
	for i, w := range words {
		words[i] = spareNumber.ReplaceAllString(w, "${1}N$4")
	}
	return strings.Join(words, " ")
}
