package main

import (
	"cmp"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

var manDir = flag.String("man", "", "the `DIR` for the manual pages (default a temporary one)")

// TestManPages writes a manual page for each command, which `make man` keeps.
func TestManPages(t *testing.T) {
	dir := cmp.Or(*manDir, t.TempDir())
	a := &app{stdout: io.Discard, stderr: io.Discard}
	root := a.root()
	root.SetContext(context.Background())
	// A page without a date is the same each time.
	header := &doc.GenManHeader{Section: "1", Source: "lasthop", Manual: "lasthop", Date: new(time.Unix(0, 0).UTC())}
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, header, dir); err != nil {
		t.Fatal(err)
	}
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		if cmd != root && !cmd.IsAvailableCommand() {
			return
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		page, err := os.ReadFile(filepath.Join(dir, name+".1"))
		if err != nil || !strings.Contains(string(page), ".SH SYNOPSIS") || cmd.HasExample() && !strings.Contains(string(page), ".SH EXAMPLE") {
			t.Errorf("%s.1: %v:\n%s", name, err, page)
		}
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(root)
}
