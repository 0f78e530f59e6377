package main

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/redact"
)

// observing is what a command that observes is asked.
type observing struct {
	flags.Observing
	past past
	// files are those of --report, once they are open.
	files map[string]*product

	// first is session.Options.First.
	first func(*model.Snapshot) ([]netip.Addr, error)
	// tables: what had no traffic is judged by the tables.
	tables bool
}

// validate checks what concerns several flags.
func (o *observing) validate() error {
	if o.AllNamespaces && o.Namespace != "" {
		return usagef("--namespace and --all-namespaces exclude each other")
	}
	if len(o.Only) > 0 && !slices.ContainsFunc(o.Only, o.Judges) {
		return usagef("--skip excludes everything in --only: nothing is left to judge")
	}
	if !o.Selector.Empty() && o.Pods == "" && len(o.Replay) == 0 && !o.Past() {
		return errLabels
	}
	if err := cmp.Or(checkTexts(o.Given), checkHostRoot(o.HostRoot), o.checkStdin()); err != nil {
		return err
	}
	return o.validateReplay()
}

var stdinNames = []string{"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}

// checkStdin refuses standard input for several files, since it can be read once. Its
// other names are made "-": not every standard input can be opened by a path.
func (o *observing) checkStdin() error {
	var of []string
	isStdin := func(flag string, name *string) {
		if slices.Contains(stdinNames, *name) {
			*name, of = "-", append(of, "--"+flag)
		}
	}
	isStdin("nodes", &o.Nodes)
	isStdin("pods", &o.Pods)
	for i := range o.Routes {
		isStdin("routes", &o.Routes[i])
	}
	switch {
	case len(of) > 1:
		return usagef("%s: only one file can be standard input", strings.Join(of, " and "))
	case len(of) == 1 && flags.Terminal(os.Stdin):
		return usagef("%s -: standard input is a terminal; want a pipe or a file, such as kubectl … -o json | lasthop …", of[0])
	}
	return nil
}

// mayBeEmpty is the annotation of a flag for which an empty value means none.
const mayBeEmpty = "lasthop_empty"

// checkTexts refuses empty values. They mostly come from an unset variable, and
// would mean another node, or the node instead of a recording. Some flags have a meaning for it.
func checkTexts(given *pflag.FlagSet) error {
	var err error
	given.Visit(func(f *pflag.Flag) {
		if what, _ := pflag.UnquoteUsage(f); err == nil && f.Annotations[mayBeEmpty] == nil && slices.Contains(flags.Values(f), "") {
			err = usagef("--%s: want a %s, got an empty value", f.Name, what)
		}
	})
	return err
}

// checkHostRoot refuses what is not a directory. Without the node's files less is known, and nothing would say so.
func checkHostRoot(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if path, is := errors.AsType[*fs.PathError](err); is {
		// Its Error would repeat the name.
		err = path.Err
	}
	switch {
	case err != nil:
		return usagef("--host-root %s: %w", dir, err)
	case !info.IsDir():
		return usagef("--host-root %s: want a directory", dir)
	}
	return nil
}

// redactor is nil unless names and addresses are to be replaced. What a command is asked
// about is chosen by the real ones. Each goroutine takes its own.
func (o *observing) redactor() *redact.Redactor { return flags.Redactor(o.Redact) }

// diagnose judges what is shown: with other names and addresses, if they are replaced.
func (o *observing) diagnose() func(*model.Snapshot) model.Verdict {
	return joint.Diagnose(o.redactor())
}
