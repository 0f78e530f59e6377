package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/cmd/flags"
)

// namingTexts are texts that name commands, for readers and for programs.
func namingTexts(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"../../docs/guides/*.md", "../../docs/agents/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) < 3 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[file] = string(text)
		}
	}
	return texts
}

// TestNamedCommands: the commands, tools, inputs, findings and files that the guides and the
// texts for programs name exist.
func TestNamedCommands(t *testing.T) {
	command := regexp.MustCompile("(?m)`(lasthop [^`]+)`|^\\$ (lasthop [^|\n]*)")
	code := regexp.MustCompile("`([A-Z][a-z]+[A-Z][A-Za-z]+)`")
	link := regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)
	for file, text := range namingTexts(t) {
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			line := strings.Fields(m[1] + m[2])
			cmd, rest, err := (&app{}).root().Find(line[1:])
			if err != nil || !cmd.HasParent() {
				t.Errorf("%s: %v: no such command: %v", file, line, err)
				continue
			}
			// What stands for a value is none.
			cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Value = anything{f.Value} })
			if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%s: %v: %v", file, line, err)
			}
		}
		for _, m := range code.FindAllStringSubmatch(text, -1) {
			if _, err := flags.FindPage(m[1]); err != nil && file == "../../docs/guides/README.md" {
				t.Errorf("%s: %v", file, err)
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// anything is a flag that takes any value.
type anything struct{ pflag.Value }

func (anything) Set(string) error { return nil }

// TestSkill: the tools and inputs of the table for assistants are those that are served.
func TestSkill(t *testing.T) {
	text, err := os.ReadFile("../serve/tools.json")
	if err != nil {
		t.Fatal(err)
	}
	var tools []struct {
		Name        string
		InputSchema struct{ Properties map[string]any }
	}
	if err := json.Unmarshal(text, &tools); err != nil {
		t.Fatal(err)
	}
	var told []string
	for line := range strings.Lines(namingTexts(t)["../../docs/agents/SKILL.md"]) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || cells[1] == "tool" {
			continue
		}
		i := slices.IndexFunc(tools, func(x struct {
			Name        string
			InputSchema struct{ Properties map[string]any }
		}) bool {
			return x.Name == cells[1]
		})
		if i < 0 {
			t.Errorf("no tool %q", cells[1])
			continue
		}
		told = append(told, cells[1])
		for _, input := range strings.Split(strings.Trim(cells[2], " |\n"), ", ") {
			if tools[i].InputSchema.Properties[input] == nil {
				t.Errorf("%s takes no %q", cells[1], input)
			}
		}
	}
	for _, x := range tools {
		if !slices.Contains(told, x.Name) {
			t.Errorf("nothing tells when to use %s", x.Name)
		}
	}
}
