package traffic

import (
	"testing"

	"github.com/cilium/ebpf"
)

// TestSources: of the names that a number had, the one counts that has a call at the line in a program that the kernel has loaded.
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
	const called = "bpf_map_update_elem"
	var calls []call
	for _, p := range c.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		calls = append(calls, callsOf(id, called)...)
	}
	if len(calls) == 0 {
		t.Fatal("no program calls it")
	}
	line := uint16(calls[0].line)
	for _, tt := range []struct {
		what  string
		names []string
		line  uint16
		want  string
	}{
		{"one has it", []string{"other.h", "empty.bpf.c"}, line, "empty.bpf.c"},
		{"none has it", []string{"other.h", "empty.bpf.c"}, 60000, ""},
		{"one has it some lines before, as the call goes on", []string{"other.h", "empty.bpf.c"}, line + callLines - 1, "empty.bpf.c"},
		{"one has it further before", []string{"empty.bpf.c"}, line + callLines, ""},
		{"the only one has it", []string{"empty.bpf.c"}, line, "empty.bpf.c"},
		{"the only one has it not", []string{"other.h"}, line, ""},
	} {
		s := sources{func(uint8) []string { return tt.names }, called, map[sourceLine]string{}}
		l := sourceLine{105, tt.line}
		s.resolve([]sourceLine{l})
		if got := s.known[l]; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}
