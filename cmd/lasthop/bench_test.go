package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkScreenMemory shows a node with 250 pods on the screen, each of which
// gets packets that nobody listens for, and tells what of the whole process is
// resident, now and at most.
func BenchmarkScreenMemory(b *testing.B) {
	const pods = 250
	node := manyPods(b, pods)
	traffic := exec.CommandContext(b.Context(), "ip", "netns", "exec", node, "bash", "-c", fmt.Sprintf(
		"while sleep .3; do for i in {2..%d}; do echo >/dev/udp/10.244.0.$i/9; done; done 2>/dev/null", pods+1))
	if err := traffic.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { traffic.Wait() }) //nolint:errcheck // it ends with the benchmark, by a signal
	for b.Loop() {
		m := startMuxed(b, 80, 24, `sh -c 'echo "pid $$."; exec lasthop --netns `+node+`'`)
		_, pid, _ := strings.Cut(m.awaitWords("pid "), "pid ")
		pid, _, _ = strings.Cut(pid, ".")
		m.awaitWords("Enter to start")
		m.keys("Enter")
		m.awaitWords(fmt.Sprintf("2 Pods %d", pods))
		// That is when the window is full.
		m.awaitWords("win 10s")
		for _, key := range []string{"2", "3", "4", "5", "1"} {
			m.keys(key)
			m.awaitWords("[" + key + "]")
		}
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			b.Fatal(err)
		}
		for field, unit := range map[string]string{"VmRSS": "MiB-resident", "VmHWM": "MiB-at-most"} {
			found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)
			if found == nil {
				b.Fatalf("no %s in:\n%s", field, status)
			}
			kib, err := strconv.ParseFloat(string(found[1]), 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(kib/1024, unit)
		}
		m.keys("q")
		m.awaitWords("left 0")
	}
	b.ReportMetric(0, "ns/op")
}

// manyPods makes a node with a bridge and pods on it, 253 at most, from
// 10.244.0.2 on, and gives its name.
func manyPods(b *testing.B, pods int) string {
	b.Helper()
	node := fmt.Sprintf("lasthop-b%d", os.Getpid())
	pod := func(i int) string { return fmt.Sprintf("%s.p%d", node, i) }
	ip := func(lines []string, args ...string) {
		b.Helper()
		cmd := exec.Command("ip", append(args, "-batch", "-")...)
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("ip: %v: %s", err, bytes.TrimSpace(out))
		}
	}
	made := []string{"netns add " + node}
	gone := []string{"netns del " + node}
	inside := []string{
		"link set lo up", "link add eth0 type veth peer name far", "link set far up", "link set eth0 up",
		"addr add 10.240.0.4/16 dev eth0", "route add default via 10.240.0.1 dev eth0",
		"link add cbr0 type bridge", "link set cbr0 up", "addr add 10.244.0.1/24 dev cbr0",
	}
	for i := range pods {
		made, gone = append(made, "netns add "+pod(i)), append(gone, "netns del "+pod(i))
		inside = append(inside, fmt.Sprintf("link add veth%d type veth peer name eth0 netns %s", i, pod(i)), fmt.Sprintf("link set veth%d master cbr0 up", i))
	}
	b.Cleanup(func() { ip(gone) })
	ip(made)
	ip(inside, "-n", node)
	for i := range pods {
		ip([]string{
			"link set eth0 up", fmt.Sprintf("addr add 10.244.0.%d/24 dev eth0", i+2), "route add default via 10.244.0.1",
		}, "-n", pod(i))
	}
	return node
}
