// Command lasthop finds where a pod's traffic dies on this node, and why.
//
// This package has the flags, signals and exit codes. No package below it prints or exits.
package main

import (
	"context"
	_ "embed" // for the help
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/traffic"
)

// The exit codes. They are part of the public contract.
const (
	exitClean       = 0   // nothing at or above --fail-on
	exitFindings    = 1   // findings
	exitUsage       = 2   // a wrong command line, or a file that cannot be parsed
	exitCannot      = 3   // a capability, kernel feature or namespace is missing
	exitIncomplete  = 4   // a source was not read whole, under --strict
	exitInterrupted = 130 // by SIGINT, SIGTERM or SIGHUP, after cleaning up
)

func main() {
	if os.Args[0] == janitorName {
		os.Exit(janitor())
	}
	if len(os.Args) == 2 && os.Args[1] == remote.Command {
		os.Exit(serveRemote())
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// app is one run of the command.
type app struct {
	stdin io.Reader
	// stdout and stderr are a flags.Text.
	stdout, stderr io.Writer
	reader         *lateReader
	// stdoutTaken says that a recording or samples go to the standard output.
	stdoutTaken bool
	// past is what the agent has of the time that was asked for, if it was.
	past *past
	// made are the files for what is made besides the report.
	made []*product
	// used is session.Options.Used.
	used func() time.Duration
	// started is set once the command line was accepted. Errors before that are usage errors.
	started bool
}

// run executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := interruptible()
	defer stop()
	reader, stopReader := awaitReader(ctx, stdout)
	defer stopReader()
	a := &app{stdin: os.Stdin, stdout: flags.Text(reader.to(stdout)), stderr: flags.Text(reader.to(stderr)), reader: reader}
	return a.execute(ctx, args)
}

// complain writes to the standard error.
func (a *app) complain(what string) { fmt.Fprintf(a.stderr, "lasthop: %s\n", what) }

// execute executes a command line, until ctx ends, and returns the exit code.
func (a *app) execute(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	err = errors.Join(err, a.discard(), a.past.close())
	code := a.exitCode(ctx, err)
	if message := explain(cmd, err, code); message != "" {
		// Errors quote text from files and links.
		lines := strings.Split(message, "\n")
		for i, line := range lines {
			// cobra indents its suggestions with tabs.
			if suggested, ok := strings.CutPrefix(line, "\t"); ok {
				line = "  " + suggested
			}
			lines[i] = report.Clean(line)
		}
		// What fails at each link fails for one reason.
		a.complain(strings.Join(model.With(nil, lines...), "\n"))
	}
	if code == exitUsage && !a.started {
		fmt.Fprintf(a.stderr, "lasthop: see `%s --help`\n", cmd.CommandPath())
	}
	return code
}

// interruptible ends the context at the first signal that asks the process to end. The second one ends the process,
// since it is no longer caught. Writing to a closed pipe becomes an error instead of a signal.
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

// statusError ends the run with a status, and prints message unless it is empty.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

// usageError is a mistake in the command line that is found only later.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// oneArgument wants one argument, and says what it is.
func oneArgument(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return usagef("want one %s", what)
	}
}

// cannotObserve says of an error that it prevented the observation. A mistake in the
// command line, or in a file that it names, speaks for itself.
func cannotObserve(err error) error {
	if err == nil || misused(err) {
		return err
	}
	return fmt.Errorf("cannot observe: %w", err)
}

// misused reports whether an error is a mistake in the command line, or in a file that it names.
func misused(err error) bool {
	return wraps[*usageError](err) || wraps[*collect.FileError](err) || wraps[*collect.UplinkError](err) || wraps[scenario.Errors](err)
}

func wraps[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

func (a *app) exitCode(ctx context.Context, err error) int {
	status, failed := errors.AsType[*statusError](err)
	switch {
	case err == nil:
		return exitClean
	case failed:
		return status.code
	case ctx.Err() != nil:
		return exitInterrupted
	case !a.started, misused(err):
		return exitUsage
	}
	return exitCannot
}

// explain is what is printed about an error: what failed, and what would help.
func explain(cmd *cobra.Command, err error, code int) string {
	inLab := cmd.HasParent() && cmd.Parent().Name() == "lab"
	forbidden := code == exitCannot && errors.Is(err, fs.ErrPermission)
	switch {
	case err == nil:
		return ""
	case code == exitInterrupted && errors.Is(err, context.Canceled):
		return "interrupted; lasthop removed everything that it attached"
	case inLab && forbidden:
		// The rights to watch packets do not suffice for a lab.
		return err.Error() + "\nlabs need root with all its capabilities"
	case !inLab && (forbidden || code == exitCannot && wraps[*model.UnsupportedError](err)):
		return err.Error() + "\n" + remedy() + "; see `lasthop doctor`"
	}
	return err.Error()
}

//go:embed help.txt
var help string

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	o := &observing{}
	root := &cobra.Command{
		Use:              "lasthop",
		Version:          version(),
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.onScreen() && !wantsReport(cmd.Flags()) {
				return a.live(cmd.Context(), o)
			}
			return a.check(cmd.Context(), o, args)
		},
	}
	o.Register(root.Flags())
	root.SetVersionTemplate("lasthop {{.Version}}\n")
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.AddCommand(
		a.checkCommand(), a.auditCommand(), a.explainCommand(), a.watchCommand(), a.recordCommand(), a.replayCommand(),
		a.agentCommand(), a.pastCommand(), a.npdCommand(), a.labCommand(), a.demoCommand(), a.findingsCommand(),
		a.doctorCommand(), a.mcpCommand(), a.schemaCommand(), a.versionCommand(),
	)
	flags.Help(root, help)
	root.Flags().Bool("version", false, "print the version") // cobra's own would take -v
	root.InitDefaultCompletionCmd()
	for _, cmd := range append(root.Commands(), root) {
		flags.Complete(cmd)
		if cmd.Flags().Lookup("netns") != nil {
			cmd.RegisterFlagCompletionFunc("netns", completeNetns) //nolint:errcheck // the flag is there
		}
	}
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.RunE = func(cmd *cobra.Command, args []string) error {
			return usagef("completion: want bash, fish, powershell or zsh; see `%s --help`", cmd.CommandPath())
		}
	}
	return root
}

// ignoreClosedPipe ignores that the reader went away, as in `lasthop … | head`.
func ignoreClosedPipe(err error) error { return model.Unless(err, syscall.EPIPE) }

// serveRemote is the far end of `kubectl lasthop`, in the container of a debug pod. It
// has no flags and no help: people do not call it.
func serveRemote() int {
	ctx, stop := interruptible()
	defer stop()
	status, err := remote.Serve(ctx, os.Stdin, os.Stdout, "/proc/self/exe", remote.Dir)
	if err != nil {
		fmt.Fprintf(flags.Text(os.Stderr), "lasthop: %s: %v\n", remote.Command, err)
		return exitCannot
	}
	return status
}

// janitorName is the name under which this program is a janitor: the process that removes tc filters if the main one is
// killed. It is no command, so that it is not run by mistake.
const janitorName = "lasthop-janitor"

func newJanitor() *exec.Cmd { return &exec.Cmd{Path: "/proc/self/exe", Args: []string{janitorName}} }

// janitor returns the exit code. It reports no error: the next lasthop finds what is left.
func janitor() int { return model.Either(traffic.Janitor() != nil, exitCannot, exitClean) }

// release is set by the linker (-X main.release=…) to what git describe says.
var release string

// version is the release, or else what the Go toolchain recorded.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:  "version",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.stdout, "lasthop %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return ignoreClosedPipe(err)
		},
	}
}
