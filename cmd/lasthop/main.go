// Command lasthop tells where a pod's traffic dies on this node, and why.
//
// This package is the wiring: flags, signals, exit codes. Nothing below it
// prints or exits.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// The exit codes. They are part of the public contract.
const (
	exitClean       = 0   // nothing at or above --fail-on
	exitFindings    = 1   // findings
	exitUsage       = 2   // a wrong command line, or a file that cannot be parsed
	exitCannot      = 3   // a right, kernel feature or namespace is missing
	exitIncomplete  = 4   // sources are missing, under --strict
	exitInterrupted = 130 // by SIGINT, SIGTERM or SIGHUP, after cleaning up
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// app is one run of the command.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	// started is set once the command line was accepted: errors before
	// that are the user's.
	started bool
}

// run executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := interruptible()
	defer stop()
	a := &app{stdin: os.Stdin, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	code := a.exitCode(ctx, err)
	if message := explain(cmd, err, code); message != "" {
		// Errors quote what files and links hold.
		lines := strings.Split(message, "\n")
		for i, line := range lines {
			// cobra indents with tabs what it suggests.
			if suggested, ok := strings.CutPrefix(line, "\t"); ok {
				line = "  " + suggested
			}
			lines[i] = report.Clean(line)
		}
		fmt.Fprintf(stderr, "lasthop: %s\n", strings.Join(lines, "\n"))
	}
	if code == exitUsage && !a.started {
		fmt.Fprintf(stderr, "lasthop: `%s --help` tells what is accepted\n", cmd.CommandPath())
	}
	return code
}

// interruptible ends the context at the first signal that asks to end. The
// second one ends the process, as nobody catches it any more. A closed pipe on
// the standard output becomes an error of the write instead of a signal.
func interruptible() (context.Context, context.CancelFunc) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// statusError ends the run with a status; what there is to say has been said,
// or is in message.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

// usageError is a mistake in the command line that shows only later.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

func (a *app) exitCode(ctx context.Context, err error) int {
	var (
		status   *statusError
		usage    *usageError
		file     *collect.FileError
		uplink   *collect.UplinkError
		scenario scenario.Errors
	)
	switch {
	case err == nil:
		return exitClean
	case errors.As(err, &status):
		return status.code
	case ctx.Err() != nil:
		return exitInterrupted
	case !a.started, errors.As(err, &usage), errors.As(err, &file), errors.As(err, &uplink), errors.As(err, &scenario):
		return exitUsage
	}
	return exitCannot
}

// explain is what the user is told about an error: besides what failed, what
// would have helped.
func explain(cmd *cobra.Command, err error, code int) string {
	if err == nil {
		return ""
	}
	var unsupported *model.UnsupportedError
	switch {
	case code == exitInterrupted && errors.Is(err, context.Canceled):
		return "interrupted; everything of lasthop's own is removed"
	case cmd.HasParent() && cmd.Parent().Name() == "lab":
		// What would let lasthop watch lets nobody make a lab.
		if code == exitCannot && errors.Is(err, fs.ErrPermission) {
			return err.Error() + "\nlabs are for root with all its capabilities"
		}
		return err.Error()
	case code == exitCannot && (errors.As(err, &unsupported) || errors.Is(err, fs.ErrPermission)):
		return err.Error() + "\n" + remedy()
	}
	return err.Error()
}

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	o := &observing{}
	root := &cobra.Command{
		Use:   "lasthop",
		Short: "Where does this pod's traffic die, and why?",
		Long: "lasthop watches the packets of a Kubernetes node's pods, reads the state that\n" +
			"decides over them, and says where traffic dies and why. It observes: it never\n" +
			"changes the node beyond its own BPF programs, which it removes.\n\n" +
			"Without a command it shows the live screen; where standard input or output is no\n" +
			"terminal, or a report is asked for by --output, --fail-on, --strict, --active,\n" +
			"--replay or --pcap, it does what check does.",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRun: func(*cobra.Command, []string) {
			a.started = true
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.onScreen() && !wantsReport(cmd.Flags()) {
				return a.live(cmd.Context(), o)
			}
			return a.check(cmd.Context(), o, args)
		},
	}
	o.register(root.Flags())
	o.registerScreen(root.Flags())
	o.registerReplay(root.Flags())
	registerPcap(root.Flags(), &o.pcap)
	root.SetVersionTemplate("lasthop {{.Version}}\n")
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.AddCommand(a.checkCommand(), a.explainCommand(), a.watchCommand(), a.recordCommand(), a.replayCommand(), a.labCommand(), a.demoCommand(), a.findingsCommand(), a.doctorCommand(), a.versionCommand())
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.RunE = func(cmd *cobra.Command, args []string) error {
			return usagef("completion: want bash, fish, powershell or zsh; `%s --help` tells more", cmd.CommandPath())
		}
	}
	return root
}

// ignoreClosedPipe forgives a reader that has seen enough: `lasthop … | head`.
func ignoreClosedPipe(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
