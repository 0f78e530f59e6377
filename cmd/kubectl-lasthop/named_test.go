//go:build unix

package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestNamedCommands: the plugin takes the command lines that the guides and the texts for
// programs name.
func TestNamedCommands(t *testing.T) {
	command := regexp.MustCompile("(?m)[`\"]kubectl lasthop ([^`\"]+)[`\"]")
	placeholder := regexp.MustCompile(`{{ [a-z_]+ }}|\b(NAMESPACE|NAME|OTHER|NODE|FILE)\b`)
	found := 0
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
			for _, m := range command.FindAllStringSubmatch(string(text), -1) {
				found++
				line := strings.Fields(placeholder.ReplaceAllString(m[1], "x"))
				if len(line) == 1 && slices.Contains(commands, line[0]) {
					continue // a mention
				}
				o := &options{}
				f := pflag.NewFlagSet("", pflag.ContinueOnError)
				o.register(f)
				f.Bool("version", false, "as cobra adds it")
				if err := f.Parse(append(line, "--image=x")); err != nil {
					t.Errorf("%s: %v: %v", file, line, err)
					continue
				}
				if line[0] != "--version" && !slices.Contains(commands, line[0]) {
					t.Errorf("%s: %v: no such command", file, line)
				}
				if _, err := o.plan(f.Args(), strings.NewReader(""), io.Discard); err != nil && line[0] != "--version" {
					t.Errorf("%s: %v: %v", file, line, err)
				}
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d commands were found", found)
	}
}
