// Package kmod finds out whether the running kernel has a module, and never loads one: a request to a subsystem that
// is a module and not loaded would load it, and change the node. Whatever makes such a request asks here first.
//
// It reads /sys/module, /proc/modules, /proc/kallsyms and the module lists below
// /lib/modules, which everybody may read.
package kmod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
)

// Module is a part of the kernel that may be a module.
type Module struct {
	// Name is the module's, with underscores.
	Name string
	// symbol is a function of its own, by which one that is built in is known.
	symbol string
}

// The modules that requests of lasthop would load.
var (
	NFTables         = Module{"nf_tables", "nf_tables_newrule"}
	ConntrackNetlink = Module{"nf_conntrack_netlink", "ctnetlink_dump_table"}
	Conntrack        = Module{"nf_conntrack", "nf_conntrack_in"}
	IPTables         = Module{"ip_tables", "ipt_do_table"}
	IP6Tables        = Module{"ip6_tables", "ip6t_do_table"}
	EbtableFilter    = Module{"ebtable_filter", "frame_filter_net_exit"}
	EbtableNAT       = Module{"ebtable_nat", "frame_nat_net_exit"}
	EbtableBroute    = Module{"ebtable_broute", "broute_net_exit"}
)

var all = []Module{NFTables, Conntrack, ConntrackNetlink, IPTables, IP6Tables, EbtableFilter, EbtableNAT, EbtableBroute}

// State is whether a module is there.
type State int

const (
	// Unknown is a module of which nothing is known.
	Unknown State = iota
	// Loaded is a module that is loaded or built in: a request loads nothing.
	Loaded
	// NotLoaded is a module that is neither; the kernel may have it.
	NotLoaded
	// Absent is a module that this kernel does not have.
	Absent
)

func (s State) String() string {
	return [...]string{"not known whether loaded", "loaded", "not loaded", "not in this kernel"}[s]
}

// Empty reports whether the module is surely not there, and so holds nothing.
func (s State) Empty() bool { return s == NotLoaded || s == Absent }

// Rules says for people how many rules some modules hold, or why none of them holds any.
func Rules(n int, of ...State) string {
	if slices.ContainsFunc(of, func(s State) bool { return !s.Empty() }) {
		return model.Quantity(n, "rule")
	}
	if len(of) == 0 {
		return Unknown.String()
	}
	// Where one is only not loaded, not all are absent.
	return slices.Min(of).String()
}

// MissingError says that a module is not there, so that what it would hold does not
// exist, or of Unknown that it was not asked.
type MissingError struct {
	Module Module
	State  State
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("kernel module %s: %s", e.Module.Name, e.State)
}

// Kernel is the running kernel. It is safe for concurrent use.
type Kernel struct {
	proc, sys string
	symbols   func() (map[string]bool, error)
	files     func() (files, error)
}

// builtIn are the running kernel's symbols, which take long to read and stay the same.
var builtIn = sync.OnceValues(func() (map[string]bool, error) { return readSymbols("/proc") })

// New returns the running kernel, whose files are below root: its module lists are looked for there.
func New(root string) *Kernel {
	k := At("/proc", "/sys", root)
	k.symbols = builtIn
	return k
}

// At is New for a kernel whose files are elsewhere.
func At(proc, sys, root string) *Kernel {
	k := &Kernel{proc: proc, sys: sys}
	// What is built in, or installed, does not change.
	k.symbols = sync.OnceValues(func() (map[string]bool, error) { return readSymbols(proc) })
	k.files = sync.OnceValues(func() (files, error) { return readFiles(root) })
	return k
}

// Check returns a *MissingError unless the module is loaded or built in.
func (k *Kernel) Check(m Module) error {
	if s := k.State(m); s != Loaded {
		return &MissingError{m, s}
	}
	return nil
}

// State reports whether the module is there.
func (k *Kernel) State(m Module) State {
	if _, err := os.Stat(filepath.Join(k.sys, "module", m.Name)); err == nil {
		return Loaded
	}
	loaded, noModules := k.modules()
	lists, noLists := k.files()
	switch {
	case loaded[m.Name] || lists.builtin[m.Name]:
		return Loaded
	case noLists == nil && lists.loadable[m.Name]:
		return NotLoaded
	case noLists == nil:
		return Absent
	}
	// The symbols tell what is built in, and take longer to read.
	symbols, noSymbols := k.symbols()
	switch {
	case symbols[m.symbol]:
		return Loaded
	case noModules == nil:
		return NotLoaded
	case noSymbols == nil && errors.Is(noModules, fs.ErrNotExist):
		// This kernel can load none.
		return Absent
	}
	return Unknown
}

// modules are those that are loaded.
func (k *Kernel) modules() (map[string]bool, error) {
	out := map[string]bool{}
	// "ebtable_nat 16384 1 - Live 0xffffffffc0045000"
	err := input.Lines(filepath.Join(k.proc, "modules"), func(line string) {
		name, _, _ := strings.Cut(line, " ")
		out[name] = true
	})
	return out, err
}

// readSymbols finds those of the modules' functions that are built in.
func readSymbols(proc string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, m := range all {
		out[m.symbol] = false
	}
	empty := true
	// "ffffffff81000000 t name	[module]"; everybody may read the names.
	err := input.Lines(filepath.Join(proc, "kallsyms"), func(line string) {
		_, rest, ok := strings.Cut(line, " ")
		if !ok || len(rest) <= 2 {
			return
		}
		empty = false
		symbol, module, _ := strings.Cut(rest[2:], "\t")
		if _, ours := out[symbol]; ours && module == "" {
			out[symbol] = true
		}
	})
	if err == nil && empty {
		err = fmt.Errorf("read kernel symbols: none found")
	}
	return out, err
}

// files are the modules that are installed for the running kernel.
type files struct{ builtin, loadable map[string]bool }

func readFiles(root string) (files, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return files{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	dir := filepath.Join(root, "lib/modules", unix.ByteSliceToString(u.Release[:]))
	f := files{map[string]bool{}, map[string]bool{}}
	// "kernel/net/netfilter/nf_tables.ko.xz: kernel/…"; a name may have hyphens.
	name := func(line string) string {
		path, _, _ := strings.Cut(line, ":")
		base, _, _ := strings.Cut(filepath.Base(path), ".ko")
		return strings.ReplaceAll(base, "-", "_")
	}
	return f, errors.Join(
		input.Lines(filepath.Join(dir, "modules.builtin"), func(line string) { f.builtin[name(line)] = true }),
		input.Lines(filepath.Join(dir, "modules.dep"), func(line string) { f.loadable[name(line)] = true }),
	)
}
