// Package kmod tells whether a kernel subsystem can be asked without loading
// its module: a question to an absent one loads it, and the node must stay as
// it is.
package kmod

import (
	"bufio"
	"os"
	"strings"
)

// Present reports whether the module is part of the running kernel: loaded, or
// built in, which symbol, a function of the module's own, tells.
func Present(module, symbol string) bool {
	if _, err := os.Stat("/sys/module/" + module); err == nil {
		return true
	}
	if _, err := os.Stat("/proc/modules"); err != nil {
		// This kernel has no modules, so that asking loads nothing.
		return true
	}
	return hasSymbol(symbol)
}

// hasSymbol looks for a function in the kernel's symbol table. The names are
// there for everybody, only the addresses are not.
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
