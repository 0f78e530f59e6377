package kind

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
)

// TestEmbedded: every file that is built in is read, named as its file, says
// something of itself, and expects its faults to be found.
func TestEmbedded(t *testing.T) {
	entries, err := files.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	infos := Scenarios()
	if len(infos) != len(entries) {
		t.Errorf("listed %d of %d files", len(infos), len(entries))
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ext)
		s, err := Load(name)
		if err != nil {
			t.Errorf("%s:\n%v", name, err)
			continue
		}
		if s.Name != name || s.Title == name || s.Description == "" {
			t.Errorf("%s: name %q, title %q, description %q", name, s.Name, s.Title, s.Description)
		}
		// Nothing is found of a node without a fault. What is there and harms
		// nothing names what must not be found.
		broken := len(s.Faults)+s.Files.Spare > 0
		if e := s.Expect; !broken && (e.Exit != 0 || len(e.Findings) > 0) || broken && len(e.Findings)+len(e.Absent) == 0 {
			t.Errorf("%s: %d faults, expects exit %d, %d findings and the absence of %d", name, len(s.Faults), e.Exit, len(e.Findings), len(e.Absent))
		}
		if !slices.ContainsFunc(infos, func(i scenario.Info) bool { return i.Name == name && len(i.Plugins) > 0 }) {
			t.Errorf("%s: not listed with its plugins", name)
		}
	}
}

func TestLoadFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(file, []byte("topology: {nodes: [{name: a}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(file)
	if err != nil || s.Name != "mine" {
		t.Fatalf("got %+v, %v", s, err)
	}
	if err := os.WriteFile(file, []byte("topology: {nodes: [{name: a, color: red}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var wrong scenario.Errors
	if _, err := Load(file); !errors.As(err, &wrong) || wrong[0].File != file || wrong[0].Line != 1 || wrong[0].Column != 30 {
		t.Errorf("got %v", err)
	}
}

func TestLoadUnknown(t *testing.T) {
	for _, name := range []string{"none", "..", "", "a\x00b"} {
		if _, err := Load(name); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: got %v", name, err)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
