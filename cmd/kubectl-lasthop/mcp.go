package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/serve"
	"github.com/lasthop/lasthop/probe/model"
)

// mostAsked is how many nodes a call of a tool may watch, unless --max-nodes says otherwise.
const mostAsked = 50

// serve serves verdicts about the cluster to programs, until asked ends or they leave.
func (o *options) serve(asked context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	s := &serve.Server{
		Version: release, Place: serve.Cluster, AtOnce: 2, Log: slog.New(slog.NewTextHandler(stderr, nil)), Flags: o.forTool,
		Run: func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
			// Its end asks the nodes to end, and nothing ends the removal of the debug pods.
			return run(context.WithoutCancel(ctx), ctx, args, strings.NewReader(""), stdout, stderr)
		},
	}
	return errors.Join(s.Serve(asked, stdin, stdout), asked.Err())
}

// forTool are the flags of the command line that go with each call of a tool.
func (o *options) forTool(tool string) []string {
	if tool == "replay" {
		return model.Either(o.Redact, []string{"--redact"}, nil)
	}
	args := flags.Given(o.Given, func(f *pflag.Flag) bool {
		return tool != "doctor" || !slices.Contains(slices.Concat(passes, fileFlags), f.Name)
	})
	if !o.Given.Changed("max-nodes") {
		args = append(args, fmt.Sprintf("--max-nodes=%d", mostAsked))
	}
	return args
}
