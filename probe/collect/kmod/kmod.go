// Package kmod finds out whether the running kernel has a module, from
// /sys/module, /proc/modules and /proc/kallsyms, which everybody may read. A
// request to a subsystem whose module is absent would load it and change the
// node.
package kmod

import (
	"bufio"
	"os"
	"strings"
)

// Present reports whether the module is loaded or built in. A built-in module is
// recognised by symbol, a function of its own.
func Present(module, symbol string) bool {
	if _, err := os.Stat("/sys/module/" + module); err == nil {
		return true
	}
	if _, err := os.Stat("/proc/modules"); err != nil {
		// This kernel has no modules, so that a request loads none.
		return true
	}
	return hasSymbol(symbol)
}

// hasSymbol looks for a function in the kernel's symbol table, of which everybody
// may read the names.
func hasSymbol(symbol string) bool {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		// "ffffffff81000000 t name [module]"
		if _, name, ok := strings.Cut(s.Text(), " "); ok && len(name) > 2 {
			name, _, _ = strings.Cut(name[2:], "\t")
			if name == symbol {
				return true
			}
		}
	}
	return false
}
