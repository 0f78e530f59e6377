package traffic

import (
	"testing"

	"github.com/cilium/ebpf"
)

// TestSources: of the names that a number had, the one counts that has the line in a program that the kernel has loaded.
func TestSources(t *testing.T) {
	spec, err := loadEmpty()
	if err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	id := ebpf.ProgramID(0)
	for _, p := range c.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ = info.ID()
	}
	var line uint16
	for l := range linesOf(id)["empty.bpf.c"] {
		line = max(line, uint16(l)) // instructions without a source have line 0
	}
	if line == 0 {
		t.Fatalf("the program has the lines %v", linesOf(id))
	}
	for _, tt := range []struct {
		what  string
		names []string
		line  uint16
		want  string
	}{
		{"one has it", []string{"other.h", "empty.bpf.c"}, line, "empty.bpf.c"},
		{"none has it", []string{"other.h", "empty.bpf.c"}, 60000, ""},
		{"a number with one name", []string{"empty.bpf.c"}, line, ""},
	} {
		s := sources{func(uint8) []string { return tt.names }, map[sourceLine]string{}}
		l := sourceLine{105, tt.line}
		s.resolve([]sourceLine{l})
		if got := s.known[l]; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}
