package main

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/kind/lab"
)

// TestRewrittenRules has each plugin's rules and routes written anew while its
// healthy node is watched: once, when the window has just begun, and over and
// over from before its start to after its end. Nothing may be found, and
// everything must be answered.
func TestRewrittenRules(t *testing.T) {
	t.Parallel()
	for _, name := range few([]string{
		"healthy-kubenet", "healthy-kubenet-dockershim", "healthy-azure-bridge", "healthy-azure-tunnel", "healthy-azure-podsubnet",
		"healthy-azure-calico", "healthy-azure-calico-nft", "healthy-azure-npm", "healthy-azure-cilium-redirect",
		"healthy-cilium-over-azure", "healthy-calico", "healthy-kindnet",
	}, 1) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := upLab(t, name)
			stop, err := startTraffic(t.Context(), l)
			if err != nil {
				t.Fatal(err)
			}
			node, err := observed(l)
			if err != nil {
				t.Fatal(err)
			}
			rewriteOnce(t, l, node)
			rewriteAlways(t, l, node)
			if err := stop(); err != nil {
				t.Error(err)
			}
			for _, wrong := range unanswered(l.Stats(), 0) {
				t.Error(wrong)
			}
		})
	}
}

// watchHealthy starts to watch a node, of which nothing at all may be found.
// The returned function waits for the end.
func watchHealthy(t *testing.T, node lab.Node, stderr io.Writer) (wait func()) {
	t.Helper()
	cmd := exec.Command("lasthop", "check", "--netns", node.Netns, "--for", "6s", "--fail-on", "info")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v:\n%s", err, out.String())
		}
	}
}

func rewriteOnce(t *testing.T, l *lab.Lab, node lab.Node) {
	t.Helper()
	control, tty := openTerminal(t)
	wait := watchHealthy(t, node, tty)
	tty.Close()
	readUntil(t, control, "watching: ")
	if err := lab.Rewrite(t.Context(), l, node.Name); err != nil {
		t.Error(err)
	}
	// The terminal takes only so much that nobody reads.
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		_, _ = io.Copy(io.Discard, bufio.NewReader(control))
	}()
	wait()
	<-rest
}

func rewriteAlways(t *testing.T, l *lab.Lab, node lab.Node) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		// Often enough to meet every reading, seldom enough that most come
		// through whole.
		pace := time.NewTicker(300 * time.Millisecond)
		defer pace.Stop()
		var err error
		for err == nil && ctx.Err() == nil {
			err = lab.Rewrite(context.WithoutCancel(ctx), l, node.Name)
			<-pace.C
		}
		done <- err
	}()
	watchHealthy(t, node, io.Discard)()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
