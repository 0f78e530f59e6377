package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/serve"
)

// mcpFlags are the flags that go with each call of a tool.
func mcpFlags(name string) []string {
	switch name {
	case "doctor":
		return []string{"netns", "host-root"}
	case "replay":
		return []string{"redact"}
	}
	return append(slices.Clone(onNode), "dir", "redact", "debug", "replay")
}

func (a *app) mcpCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:  "mcp",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if slices.Contains(slices.Concat(o.Replay, o.Routes, []string{o.Nodes, o.Pods}), "-") {
				return usagef("mcp: standard input is the client's")
			}
			return a.serve(cmd.Context(), o)
		},
	}
	o.Pick(cmd.Flags(), mcpFlags("check")...)
	return cmd
}

func (a *app) serve(ctx context.Context, o *observing) error {
	s := &serve.Server{
		Version: version(), AtOnce: 2, Log: slog.New(slog.NewTextHandler(a.stderr, nil)),
		Flags: func(tool string) []string {
			return flags.Given(o.Given, func(f *pflag.Flag) bool { return slices.Contains(mcpFlags(tool), f.Name) })
		},
		Run: func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
			return (&app{stdin: strings.NewReader(""), stdout: stdout, stderr: stderr}).execute(ctx, args)
		},
	}
	if len(o.Replay) > 0 {
		s.Place = serve.Recordings
	}
	return errors.Join(s.Serve(ctx, os.Stdin, os.Stdout), ctx.Err())
}
