package flags

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/probe/catalogue"
	"github.com/lasthop/lasthop/probe/model"
)

// Worded is a flag whose values are known words.
type Worded interface{ Words() []string }

// Words are all that the flag takes.
func (c *Choice) Words() []string { return c.Of }

// Words are the codes of all findings.
func (c *Codes) Words() []string {
	return model.Map(catalogue.Pages(), func(p catalogue.Page) string { return string(p.Code) })
}

// Complete has the shell propose the words of the command's flags.
func Complete(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if w, ok := f.Value.(Worded); ok && len(w.Words()) > 0 {
			// It fails only for a flag that is not there.
			cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(w.Words(), cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // see above
		}
	})
}

// Values are those of a flag, of which a list has several.
func Values(f *pflag.Flag) []string {
	switch v := f.Value.(type) {
	case interface{ GetSlice() []string }:
		return v.GetSlice()
	case *Time: // whoever gets it may be in another zone
		return []string{v.Before(time.Now()).Format(time.RFC3339)}
	}
	return []string{f.Value.String()}
}

// Given are the flags that are wanted of those that a command line gave, as it gave them.
func Given(f *pflag.FlagSet, wanted func(*pflag.Flag) bool) (args []string) {
	f.Visit(func(x *pflag.Flag) {
		if wanted(x) {
			args = append(args, model.Map(Values(x), func(v string) string { return "--" + x.Name + "=" + v })...)
		}
	})
	return args
}
