package lab

import (
	"bytes"
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// MissingToolError says that a program that the lab runs is not installed.
type MissingToolError struct {
	Tool string
	// Package is the Debian package that has it.
	Package string
}

func (e *MissingToolError) Error() string {
	return fmt.Sprintf("find %s: not installed (apt-get install %s)", e.Tool, e.Package)
}

// The tools of the Debian package iptables. The nft variants are asked for by
// name: a kernel without the legacy tables has no others. A lab with legacy tables
// runs the legacy variants in their place.
const (
	iptables       = "iptables" + nftVariant
	ip6tables      = "ip6tables" + nftVariant
	ebtables       = "ebtables" + nftVariant
	legacyIptables = "iptables" + legacyVariant

	nftVariant    = "-nft"
	legacyVariant = "-legacy"
)

// The tools of other packages.
const (
	conntrack = "conntrack"
	nft       = "nft"
)

var toolPackages = map[string]string{
	conntrack: "conntrack", nft: "nftables",
	"ebtables" + legacyVariant: "ebtables", "ebtables" + legacyVariant + "-save": "ebtables", "ebtables" + legacyVariant + "-restore": "ebtables",
}

// variant is the tool in the variant that keeps its rules in the tables, and the
// arguments that it takes in addition.
func variant(tool string, tables model.Backend) (name string, extra []string) {
	if tables == model.Legacy {
		tool = strings.Replace(tool, nftVariant, legacyVariant, 1)
	}
	if strings.HasPrefix(tool, "ip") && strings.Contains(tool, legacyVariant) && !strings.HasSuffix(tool, "-save") {
		// One lock serves all namespaces.
		extra = []string{"-w"}
	}
	return tool, extra
}

// tables is iptables for a family.
func tables(isIPv6 bool) string {
	if isIPv6 {
		return ip6tables
	}
	return iptables
}

// findTool looks a program up in PATH and, since a plain user's PATH leaves
// them out, in the system directories.
func findTool(name string) (string, error) {
	if file, err := exec.LookPath(name); err == nil {
		return file, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if file, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return file, nil
		}
	}
	return "", &MissingToolError{Tool: name, Package: cmp.Or(toolPackages[name], "iptables")}
}

// run executes a program inside the namespace.
func (sp *space) run(tool string, args ...string) error {
	_, err := sp.pipe("", tool, args...)
	return err
}

// pipe is run with an input, and returns what the program prints. A child has
// the namespace of the thread that starts it.
func (sp *space) pipe(input, tool string, args ...string) (string, error) {
	tool, extra := variant(tool, sp.tables)
	args = append(extra, args...)
	file, err := findTool(tool)
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	err = sp.ns.Do(func() error {
		cmd := exec.Command(file, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
		return cmd.Run()
	})
	if err != nil {
		return "", fmt.Errorf("%s %s in %s: %w: %s", tool, strings.Join(args, " "), sp.name, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// words splits a rule at its spaces and puts the arguments, which may have
// spaces themselves, in the place of question marks.
func words(rule string, args ...any) []string {
	out := strings.Fields(rule)
	for i := range out {
		if out[i] == "?" {
			out[i], args = fmt.Sprint(args[0]), args[1:]
		}
	}
	return out
}

// restorers read rules from their input.
var restorers = map[string]string{iptables: iptables + "-restore", ip6tables: ip6tables + "-restore"}

// runAll gives a program each list of arguments, in their order. What changes tables of iptables is one transaction for
// each table: a cluster has a hundred rules, and starting a program for each would take longer than all else.
func (sp *space) runAll(tool string, lists ...[]string) error {
	if restore := restorers[tool]; restore != "" && len(lists) > 1 {
		_, err := sp.pipe(restored(lists), restore, "--noflush")
		return err
	}
	for _, args := range lists {
		if err := sp.run(tool, args...); err != nil {
			return err
		}
	}
	return nil
}

// restored are lists of iptables' arguments as iptables-restore reads them: table by table.
func restored(lists [][]string) string {
	lines := map[string][]string{}
	var order []string
	for _, args := range lists {
		table := "filter"
		if i := slices.Index(args, "-t"); i >= 0 && i+1 < len(args) {
			table, args = args[i+1], slices.Concat(args[:i], args[i+2:])
		}
		if lines[table] == nil {
			order = append(order, table)
		}
		quoted := make([]string, len(args))
		for i, a := range args {
			quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(a) + `"`
		}
		lines[table] = append(lines[table], strings.Join(quoted, " "))
	}
	var b strings.Builder
	for _, table := range order {
		fmt.Fprintf(&b, "*%s\n%s\nCOMMIT\n", table, strings.Join(lines[table], "\n"))
	}
	return b.String()
}
