//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/kind/large"
	"github.com/lasthop/lasthop/probe/record"
)

// many is a cluster of nodes with 100 pods each, of which the first is cut off. What its far
// ends send are recordings that were made before.
func many(t testing.TB, nodes int) (a *api, size int64) {
	a = newAPI(t)
	a.nodes, a.pods = nil, nil
	for n := range nodes {
		name := large.Name(n)
		a.nodes = append(a.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		var file bytes.Buffer
		w, err := record.NewWriter(&file, record.Head{Writer: "test", Node: name, Window: 10 * time.Second})
		l := large.New(n, nodes, func(n int) bool { return n == 0 })
		for second := range 14 {
			if err == nil {
				err = w.Write(l.Reading(second))
			}
		}
		if err = errors.Join(err, w.Close(), os.WriteFile(filepath.Join(a.dir, name+".rec"), file.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		size += int64(file.Len())
	}
	a.exe = filepath.Join(a.dir, "far")
	script := "#!/bin/sh\nname=${PWD##*/}\nexec cat ../${name%%.*}.rec\n"
	if err := os.WriteFile(a.exe, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return a, size
}

// checkAll runs the plugin as a process of its own over all nodes, and returns its verdict.
func checkAll(t testing.TB, more ...string) (j jointly, used *syscall.Rusage) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"check", "--all", "-o", "json", "--image=x"}, more...)...)
	cmd.Env = append(os.Environ(), asPlugin+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFindings || json.Unmarshal(out, &j) != nil {
		t.Fatalf("%v: %.2000s", err, &stderr)
	}
	return j, cmd.ProcessState.SysUsage().(*syscall.Rusage)
}

// TestMany judges many nodes as they come in, forty in its long form: one cause is one finding.
func TestMany(t *testing.T) {
	nodes := 40
	if testing.Short() {
		nodes = 10
	}
	a, _ := many(t, nodes)
	if j, _ := checkAll(t); len(j.Findings) != 1 || j.Findings[0].Code != "MissingUDR" || len(j.Nodes) != nodes {
		t.Errorf("%d nodes, %+v", len(j.Nodes), j.Findings)
	}
	a.removed()
}

// BenchmarkMany is what the plugin takes for a window of many nodes, beside the window itself.
func BenchmarkMany(b *testing.B) {
	for _, nodes := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			_, size := many(b, nodes)
			for b.Loop() {
				j, used := checkAll(b, "--start-within", "10m")
				if len(j.Findings) != 1 || len(j.Nodes) != nodes {
					b.Fatalf("%d nodes, %+v", len(j.Nodes), j.Findings)
				}
				b.ReportMetric(float64(used.Maxrss)/1024, "MiB-at-most")
				b.ReportMetric(time.Duration(used.Utime.Nano()+used.Stime.Nano()).Seconds(), "cpu-s")
			}
			b.ReportMetric(float64(size)/float64(nodes)/1024, "KiB/node")
		})
	}
}
