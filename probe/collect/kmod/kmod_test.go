package kmod

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// kernel is one whose files are those given, by their path: proc/…, sys/… and, for
// lib/modules/RELEASE/…, lib/….
func kernel(t *testing.T, files map[string]string) *Kernel {
	t.Helper()
	root := t.TempDir()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if rest, ok := strings.CutPrefix(name, "lib/"); ok {
			name = "lib/modules/" + unix.ByteSliceToString(u.Release[:]) + "/" + rest
		}
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return At(root+"/proc", root+"/sys", root)
}

const (
	// loaded has two modules, and symbols are those of a kernel
	// into which only the filter of legacy ebtables is built.
	loaded  = "ebtables 40960 3 ebtable_nat, Live 0x0000000000000000\nebtable_nat 16384 2 - Live 0x0000000000000000\n"
	symbols = "0000000000000000 T netif_receive_skb\n0000000000000000 t frame_filter_net_exit\n" +
		"0000000000000000 t frame_nat_net_exit\t[ebtable_nat]\n0000000000000000 t ebt_register_template\t[ebtables]\n"
	lists = "kernel/net/bridge/netfilter/ebtable_nat.ko.xz: kernel/net/bridge/netfilter/ebtables.ko.xz\n" +
		"kernel/net/netfilter/nf-tables.ko: kernel/net/netfilter/nfnetlink.ko\n"
)

func TestState(t *testing.T) {
	for _, tt := range []struct {
		name   string
		files  map[string]string
		module Module
		want   State
	}{
		{"loaded", map[string]string{"proc/modules": loaded}, EbtableNAT, Loaded},
		{"below /sys", map[string]string{"sys/module/nf_tables/refcnt": "1"}, NFTables, Loaded},
		{"built in", map[string]string{"proc/modules": loaded, "proc/kallsyms": symbols}, EbtableFilter, Loaded},
		{"listed as built in", map[string]string{"proc/modules": "", "lib/modules.builtin": "kernel/net/netfilter/nf_tables.ko\n", "lib/modules.dep": ""}, NFTables, Loaded},
		{"a symbol of a module that went", map[string]string{"proc/modules": "", "proc/kallsyms": symbols}, EbtableNAT, NotLoaded},
		{"installed", map[string]string{"proc/modules": loaded, "proc/kallsyms": symbols, "lib/modules.builtin": "", "lib/modules.dep": lists}, NFTables, NotLoaded},
		{"not installed", map[string]string{"proc/modules": loaded, "proc/kallsyms": symbols, "lib/modules.builtin": "", "lib/modules.dep": lists}, EbtableBroute, Absent},
		{"no lists", map[string]string{"proc/modules": loaded, "proc/kallsyms": symbols}, EbtableBroute, NotLoaded},
		{"half of the lists", map[string]string{"proc/modules": loaded, "proc/kallsyms": symbols, "lib/modules.dep": lists}, EbtableBroute, NotLoaded},
		{"a kernel without modules", map[string]string{"proc/kallsyms": symbols}, EbtableNAT, Absent},
		{"a kernel without modules has it", map[string]string{"proc/kallsyms": symbols}, EbtableFilter, Loaded},
		{"nothing to read", nil, EbtableNAT, Unknown},
		{"symbols are hidden", map[string]string{"proc/kallsyms": ""}, EbtableNAT, Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := kernel(t, tt.files)
			if got := k.State(tt.module); got != tt.want {
				t.Errorf("%s: %s, want %s", tt.module.Name, got, tt.want)
			}
			missing, is := errors.AsType[*MissingError](k.Check(tt.module))
			if is == (tt.want == Loaded) || is && missing.State != tt.want {
				t.Errorf("check: %v", k.Check(tt.module))
			}
		})
	}
}

// TestRunning asks the running kernel for what no kernel has.
func TestRunning(t *testing.T) {
	if s := New("/").State(Module{"no_such_module", "no_such_function"}); !s.Empty() {
		t.Errorf("a module that does not exist is %s", s)
	}
}

func TestRules(t *testing.T) {
	for _, tt := range []struct {
		of   []State
		want string
	}{
		{[]State{Loaded, Absent}, "5 rules"},
		{[]State{NotLoaded, Absent}, "not loaded"},
		{[]State{Absent, Absent}, "not in this kernel"},
		{[]State{Unknown}, "5 rules"},
		{nil, Unknown.String()},
	} {
		if got := Rules(5, tt.of...); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.of, got, tt.want)
		}
	}
}
