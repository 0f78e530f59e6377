package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/probe/report"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of what -o json, -o ndjson and watch write",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(a.stdout, report.Schema)
			return ignoreClosedPipe(err)
		},
	}
}
