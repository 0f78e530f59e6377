package main

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// netnsDir has the names of network namespaces, as `ip netns` keeps them.
const netnsDir = "/run/netns"

// completeNetns proposes the named network namespaces, but those of a lab's pods, which have their node's name before a dot.
func completeNetns(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	entries, _ := os.ReadDir(netnsDir) //nolint:errcheck // then nothing is proposed
	out := model.Filter(model.Map(entries, os.DirEntry.Name), func(name string) bool { return !strings.Contains(name, ".") })
	return out, cobra.ShellCompDirectiveDefault // it may be a path, too
}

// completePods proposes the pods of the recording, or of the node as kubelet names the directories of their logs.
func (o *observing) completePods(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if len(o.Replay) > 0 {
		f, closeFile, err := openRecorded(o.Replay[0])
		defer closeFile()
		if err == nil {
			if s, err := f.Window(0); err == nil {
				out = model.Map(slices.Concat(s.Pods, s.PastPods), report.PodName)
			}
		}
	} else {
		entries, _ := os.ReadDir(filepath.Join(cmp.Or(hostRoot(o.HostRoot), "/"), "var/log/pods")) //nolint:errcheck // then nothing is proposed
		for _, e := range entries {
			// NAMESPACE_NAME_UID
			if parts := strings.Split(e.Name(), "_"); len(parts) == 3 {
				out = append(out, parts[0]+"/"+parts[1])
			}
		}
	}
	out = slices.DeleteFunc(out, func(name string) bool { return name == "" || report.Clean(name) != name })
	slices.Sort(out)
	return slices.Compact(out), cobra.ShellCompDirectiveNoFileComp
}

// complete has the shell propose pods for arguments and --to.
func (o *observing) complete(cmd *cobra.Command) {
	cmd.ValidArgsFunction = o.completePods
	if cmd.Flags().Lookup("to") != nil {
		cmd.RegisterFlagCompletionFunc("to", o.completePods) //nolint:errcheck // the flag is there
	}
}
