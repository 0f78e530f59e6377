package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/catalogue"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

func (a *app) findingsCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "findings [CODE]",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeCodes,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return ignoreClosedPipe(a.catalogue())
			}
			page, err := flags.FindPage(args[0])
			if err != nil {
				return &usageError{err}
			}
			return ignoreClosedPipe(a.page(page))
		},
	}
}

func (a *app) catalogue() error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CODE\tSEVERITY\tWHAT")
	for _, p := range catalogue.Pages() {
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Code, p.Severity, p.Title)
	}
	return w.Flush()
}

func (a *app) page(p catalogue.Page) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", p.Code, p.Severity)
	indented(&b, p.Title)
	for _, section := range []struct{ name, text string }{
		{"Meaning", p.Meaning}, {"Evidence", p.Evidence}, {"Fix", p.Fix}, {"Verify", p.Verify()}, {"Docs", p.Code.Page()},
	} {
		if section.text != "" {
			fmt.Fprintf(&b, "\n%s\n", section.name)
			indented(&b, section.text)
		}
	}
	_, err := fmt.Fprint(a.stdout, b.String())
	return err
}

func indented(b *strings.Builder, text string) {
	for _, row := range report.Wrap(text, 78) {
		fmt.Fprintf(b, "  %s\n", row)
	}
}

func completeCodes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	codes := model.Map(catalogue.Pages(), func(p catalogue.Page) string { return string(p.Code) + "\t" + p.Title })
	return codes, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:  "schema",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(flags.Document(a.stdout), report.Schema)
			return ignoreClosedPipe(err)
		},
	}
}
