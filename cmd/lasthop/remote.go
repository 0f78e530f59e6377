package main

import (
	"fmt"
	"os"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
)

// serveRemote is the far end of `kubectl lasthop`, in the container of a debug pod. It
// has no flags and no help: people do not call it.
func serveRemote() int {
	ctx, stop := interruptible()
	defer stop()
	status, err := remote.Serve(ctx, os.Stdin, os.Stdout, "/proc/self/exe", remote.Dir)
	if err != nil {
		fmt.Fprintf(os.Stderr, "lasthop: %s: %v\n", remote.Command, err)
		return exitCannot
	}
	return status
}
