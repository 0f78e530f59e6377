// Command kubectl-lasthop is a plugin of kubectl: it runs lasthop on nodes of a cluster,
// from anywhere where kubectl works.
package main

import (
	"context"
	_ "embed" // for the help
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// The exit codes are those of lasthop.
const (
	exitClean       = 0
	exitFindings    = 1
	exitUsage       = 2
	exitCannot      = 3
	exitIncomplete  = 4
	exitInterrupted = session.Interrupted
)

// release is set by the linker, as that of lasthop.
var release = "dev"

func main() {
	quiet()
	ctx, asked, stop := interruptible()
	args := os.Args[1:]
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == completer {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	code := run(ctx, asked, args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// quiet keeps client-go from logging. What it says about connections that were closed is
// in the errors that it returns, as far as it matters.
func quiet() {
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
}

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

//go:embed help.txt
var help string

// run executes a command line and returns the exit status. asked ends when the user wants
// it to end; the end of ctx means at once.
func run(ctx, asked context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	stdout, stderr = leavable(stdout), flags.Text(leavable(stderr))
	o, status := &options{}, exitClean
	cmd := &cobra.Command{
		Use: "kubectl-lasthop [check|audit|explain|watch|record FILE|past|doctor|replay FILE…|mcp|screen] " +
			"[NODE… | pod/NAME… | -l SELECTOR | --all]",
		Version: release,
		// The usage names it as one calls it. A completion for that name would replace that of kubectl.
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl lasthop"},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		SilenceUsage:      true,
		SilenceErrors:     true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] == "help" {
				return cmd.Help()
			}
			p, err := o.plan(args, stdin, stdout)
			if err != nil {
				return err
			}
			r := &runner{options: o, plan: p, asked: asked, stdin: stdin, stdout: stdout, stderr: stderr}
			switch p.command {
			case "mcp":
				return o.serve(asked, stdin, stdout, stderr)
			case "replay":
				status, err = r.replay()
				return err
			}
			if r.cluster, err = o.connect(); err != nil {
				return usagef("find the cluster: %w: `kubectl config get-contexts` lists the contexts for --context%s",
					err, misspelt(args))
			}
			status, err = r.run(ctx)
			return err
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	o.register(cmd.Flags())
	cmd.Flags().Bool("version", false, "print the version") // cobra's own would take -v
	cmd.ValidArgsFunction = o.complete
	cmd.RegisterFlagCompletionFunc("to", o.completeTo) //nolint:errcheck // the flag is there
	flags.Complete(cmd)
	flags.Help(cmd, help)
	cmd.SetArgs(args)
	cmd.SetOut(flags.Text(stdout))
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return status
	}
	// Errors quote text from the cluster.
	message := strings.Join(model.Map(strings.Split(strings.TrimSuffix(err.Error(), "\n"), "\n"), report.Clean), "\n")
	switch _, misused := errors.AsType[*usageError](err); {
	case misused:
		fmt.Fprintf(stderr, "lasthop: %s\nlasthop: see `kubectl lasthop --help`\n", message)
		return exitUsage
	case asked.Err() != nil || ctx.Err() != nil:
		fmt.Fprintf(stderr, "lasthop: interrupted: %s\n", message)
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "lasthop: %s\n", message)
	// What was found on another node holds.
	return worst(exitCannot, status)
}

// order is by how much a status outweighs others: a finding holds whatever else could not be seen.
var order = []int{exitClean, exitIncomplete, exitCannot, exitFindings, exitUsage, exitInterrupted}

// worst is the status of several nodes. One that is not lasthop's own, such as that of
// a process that was killed, is a failure to observe.
func worst(statuses ...int) int {
	rank := 0
	for _, s := range statuses {
		if !slices.Contains(order, s) {
			s = exitCannot
		}
		rank = max(rank, slices.Index(order, s))
	}
	return order[rank]
}

// interruptible ends asked at the first signal that asks the process to end, and ctx at
// the second. Writing to a closed pipe becomes an error instead of a signal.
func interruptible() (ctx, asked context.Context, stop func()) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(context.Background())
	asked, ask := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for _, end := range []func(){ask, cancel} {
			select {
			case <-signals:
				end()
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, asked, func() {
		signal.Stop(signals)
		cancel()
	}
}
