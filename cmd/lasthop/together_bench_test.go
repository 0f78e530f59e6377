package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lasthop/lasthop/kind/large"
	"github.com/lasthop/lasthop/probe/record"
)

// BenchmarkTogether judges recordings of nodes with 100 pods each together, of which the
// network lacks the route to one, or to all, and tells what the whole process takes.
func BenchmarkTogether(b *testing.B) {
	for _, bench := range []struct {
		name string
		cut  func(node int) bool
	}{{"", func(node int) bool { return node == 0 }}, {"cut=all/", func(int) bool { return true }}} {
		for _, nodes := range []int{50, 100, 200} {
			b.Run(fmt.Sprintf("%snodes=%d", bench.name, nodes), func(b *testing.B) { benchTogether(b, nodes, bench.cut) })
		}
	}
}

func benchTogether(b *testing.B, nodes int, cut func(node int) bool) {
	args := []string{"check", "-o", "ndjson"}
	dir := b.TempDir()
	for n := range nodes {
		file := filepath.Join(dir, fmt.Sprintf("%d.rec", n))
		if err := recordLarge(file, n, nodes, cut); err != nil {
			b.Fatal(err)
		}
		args = append(args, "--replay", file)
	}
	for b.Loop() {
		cmd := exec.Command("lasthop", args...)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitFindings || strings.Count(string(out), `"kind":"Finding"`) != 1 {
			b.Fatalf("%v, want what the network lacks alone: %.2000s", err, out)
		}
		used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			b.Fatal("no resource usage of a process")
		}
		b.ReportMetric((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), "cpu-s")
		b.ReportMetric(float64(used.Maxrss)/1024, "MiB-at-most")
	}
}

// recordLarge writes the recording of one of many nodes.
func recordLarge(file string, node, nodes int, cut func(node int) bool) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w, err := record.NewWriter(f, record.Head{Writer: "test", Node: large.Name(node), Window: 10 * time.Second})
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l := large.New(node, nodes, cut)
	for second := range 14 {
		if err := w.Write(l.Reading(second)); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Close(), f.Close())
}
