package main

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/netns"
)

// agentBinary is better the real one: that of the tests is larger.
var agentBinary = flag.String("agent-binary", "lasthop", "measure this `PROGRAM`")

// bpftraceBinary is not among the commands of the tests, which PATH alone has.
var bpftraceBinary = flag.String("bpftrace-binary", "", "measure this `PROGRAM` beside the agent")

var agentFor = flag.Duration("agent-for", time.Minute, "measure the agent for so long, after half of that")

// byReason is what of bpftrace comes nearest to the agent: each second, how many drops had which reason. Not every
// machine has tracefs mounted.
const byReason = `[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing
	exec "$0" -e 'tracepoint:skb:kfree_skb { @[args->reason] = count(); } interval:s:1 { print(@); clear(@); }'`

// BenchmarkAgent measures what the agent takes of a node in ordinary life: each pod answers
// once a second over a connection that stays. bpftrace is measured beside it where there is one.
func BenchmarkAgent(b *testing.B) {
	for _, tt := range []struct{ pods, services int }{{100, 0}, {250, 10_000}} {
		b.Run(fmt.Sprintf("%d pods, %d rules", tt.pods, 5*tt.services), func(b *testing.B) {
			node := manyPods(b, tt.pods)
			if tt.services > 0 {
				cmd := exec.Command("ip", "netns", "exec", node, "nft", "-f", "-")
				cmd.Stdin = strings.NewReader(serviceRules(tt.services))
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("nft: %v: %s", err, out)
				}
			}
			converse(b, node, tt.pods)
			dir := b.TempDir()
			measured(b, "lasthop", dir, *agentBinary, "agent", "--netns", node, "--dir", dir, "--listen", "127.0.0.1:0")
			if *bpftraceBinary != "" {
				measured(b, "bpftrace", b.TempDir(), "unshare", "--mount", "sh", "-ec", byReason, *bpftraceBinary)
			}
		})
	}
}

// serviceRules are those of services as kube-proxy has iptables-nft write them, five a
// service.
func serviceRules(services int) string {
	var chains, jumps strings.Builder
	for i := range services {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		fmt.Fprintf(&jumps, "ip protocol tcp ip daddr %s tcp dport 80 counter jump SVC-%d\n", ip, i)
		fmt.Fprintf(&chains, "chain SEP-%d {\nip saddr 10.244.1.%d counter jump MARK\nip protocol tcp counter dnat to 10.244.1.%d:8080\n}\n", i, i%250+1, i%250+1)
		fmt.Fprintf(&chains, "chain SVC-%d {\nip saddr != 10.244.0.0/16 ip daddr %s counter jump MARK\ncounter jump SEP-%d\n}\n", i, ip, i)
	}
	return "table ip nat {\nchain MARK {\ncounter meta mark set meta mark or 0x4000\n}\n" + chains.String() +
		"chain SERVICES {\n" + jumps.String() + "}\nchain PREROUTING {\ntype nat hook prerouting priority -100; policy accept;\ncounter jump SERVICES\n}\n}\n"
}

// converse has the node ask each pod once a second until the benchmark ends.
func converse(b *testing.B, node string, pods int) {
	b.Helper()
	ns, err := netns.Named(node)
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	for i := range pods {
		pod, err := netns.Named(fmt.Sprintf("%s.p%d", node, i))
		if err != nil {
			b.Fatal(err)
		}
		var listener net.Listener
		err = pod.Do(func() (err error) {
			listener, err = net.Listen("tcp4", fmt.Sprintf("10.244.0.%d:8080", i+2))
			return err
		})
		pod.Close()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { listener.Close() })
		go func() {
			if c, err := listener.Accept(); err == nil {
				for in := bufio.NewReader(c); ; {
					line, err := in.ReadBytes('\n')
					if err != nil {
						return
					}
					if _, err := c.Write(line); err != nil {
						return
					}
				}
			}
		}()
		var c net.Conn
		if err := ns.Do(func() (err error) {
			c, err = net.Dial("tcp4", listener.Addr().String())
			return err
		}); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		go func() {
			for in := bufio.NewReader(c); ; {
				if _, err := fmt.Fprintln(c, "how are you?"); err != nil {
					return
				}
				if _, err := in.ReadBytes('\n'); err != nil {
					return
				}
				select {
				case <-b.Context().Done():
					return
				case <-time.After(time.Second):
				}
			}
		}()
	}
}

// measured is a benchmark of what a program takes that runs until it is interrupted, and what it writes to a directory.
func measured(b *testing.B, name, dir string, command ...string) {
	b.Run(name, func(b *testing.B) {
		for b.Loop() {
			measure(b, dir, exec.Command(command[0], command[1:]...))
		}
		b.ReportMetric(0, "ns/op")
	})
}

func measure(b *testing.B, dir string, cmd *exec.Cmd) {
	b.Helper()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer cmd.Wait()                       //nolint:errcheck // its status says that it was interrupted
	defer cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it runs
	proc := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid))
	processor := func() time.Duration {
		text, err := os.ReadFile(filepath.Join(proc, "stat"))
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		return time.Duration(user+system) * 10 * time.Millisecond
	}
	disk := func() (n int64) {
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				n += info.Size()
			}
		}
		return n
	}
	time.Sleep(*agentFor / 2)
	spent, written, began := processor(), disk(), time.Now()
	time.Sleep(*agentFor)
	passed := time.Since(began)
	b.ReportMetric(100*(processor()-spent).Seconds()/passed.Seconds(), "%-of-a-core")
	b.ReportMetric(float64(disk()-written)/(1<<20)/passed.Minutes(), "MiB-a-minute")
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		b.Fatal(err)
	}
	for field, unit := range map[string]string{"VmRSS": "MiB-resident", "VmHWM": "MiB-at-most"} {
		found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)
		kib, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(kib/1024, unit)
	}
}
