package lasthop_test

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// TestGoInstall: `go install …@latest` refuses a module that replaces or excludes others.
func TestGoInstall(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Module           struct{ Path string }
		Replace, Exclude []any
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	if mod.Module.Path != module || len(mod.Replace)+len(mod.Exclude) > 0 {
		t.Errorf("module %s, %d replaced, %d excluded", mod.Module.Path, len(mod.Replace), len(mod.Exclude))
	}
}
