package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cilium/ebpf/features"
)

// tool watches packets until it is interrupted.
type tool struct {
	name string
	// script is what a shell runs; it ends with the tool in the shell's place.
	script string
	// within, if set, does it in this process instead.
	within func() (stop func() error, err error)
	// ready is in a line of what it prints, once it watches.
	ready *regexp.Regexp
	// losses is what its output says that it lost.
	losses func(output string) string
}

func watching(name, ready string, losses func(string) string, script string) tool {
	return tool{name: name, script: script, ready: regexp.MustCompile(ready), losses: losses}
}

var (
	none      = tool{name: "none", losses: untold}
	hooked    = tool{name: "an empty program, by tcx", losses: untold, within: emptyHooks}
	traced    = tool{name: "an empty program at the tracepoint", losses: untold, within: emptyTracepoint}
	byTCX     = watching("lasthop watch, by tcx", `"kind":"Lost"`, lasthopLosses, `exec "$lasthop" watch --netns $node --attach tcx`)
	byClsact  = watching("lasthop watch, by clsact", `"kind":"Lost"`, lasthopLosses, `exec "$lasthop" watch --netns $node --attach clsact`)
	capturing = watching("tcpdump", `listening on`, tcpdumpLosses, `exec ip netns exec $node tcpdump -i any -w /dev/null`)
	// Not every machine has tracefs mounted.
	tracing = watching("bpftrace", `Attaching`, untold, `exec unshare --mount sh -ec '
		[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing
		exec bpftrace -e "tracepoint:skb:kfree_skb { @[args->reason] = count(); }"'`)
	// It follows packets through the kernel's functions, which takes kprobes.
	following = watching("pwru", `Listening for events`, untold, `exec "$pwru" udp >/dev/null`)
)

// pwru is empty where it is not installed, which make bench-peers does not do: Debian has
// it from trixie on.
var pwru, _ = exec.LookPath("pwru")

// here are those of the tools that this machine has: not each has pwru, and not every
// kernel tcx.
func here(tools ...tool) []tool {
	return slices.DeleteFunc(tools, func(t tool) bool {
		switch t.name {
		case following.name:
			return pwru == ""
		case byTCX.name, hooked.name:
			version, err := features.LinuxVersionCode()
			return err == nil && version < 6<<16|6<<8
		}
		return false
	})
}

func untold(string) string { return "it does not tell" }

// lasthopLosses adds up the Lost objects of `lasthop watch`.
func lasthopLosses(output string) string {
	sum := 0
	for line := range strings.Lines(output) {
		var o struct {
			Kind             string
			Events, Counters int
		}
		if json.Unmarshal([]byte(line), &o) == nil && o.Kind == "Lost" {
			sum += o.Events + o.Counters
		}
	}
	return strconv.Itoa(sum)
}

var droppedByKernel = regexp.MustCompile(`(\d+) packets? dropped by kernel`)

func tcpdumpLosses(output string) string {
	if m := droppedByKernel.FindStringSubmatch(output); m != nil {
		return m[1]
	}
	return untold(output)
}

// process is a tool that runs.
type process struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer
	read chan error // the end of its output
	stop func() error
}

// start starts the tool and waits until it watches.
func (t tool) start(ctx context.Context, binary string) (*process, error) {
	p := &process{read: make(chan error, 1), stop: func() error { return nil }}
	if t.within != nil {
		stop, err := t.within()
		if err != nil {
			return nil, err
		}
		p.stop = sync.OnceValue(stop)
		return p, nil
	}
	if t.script == "" {
		return p, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd = exec.CommandContext(ctx, "sh", "-ec", t.script)
	p.cmd.Env = append(os.Environ(), "node="+node, "lasthop="+binary, "pwru="+pwru)
	p.cmd.Stdout, p.cmd.Stderr = w, w
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = p.cmd.Start()
	w.Close()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	ready := make(chan struct{})
	go func() { p.read <- p.collect(r, t.ready, ready) }()
	p.stop = sync.OnceValue(p.interrupt)
	select {
	case <-ready:
		return p, nil
	case err := <-p.read:
		p.read <- err
		return nil, errors.Join(fmt.Errorf("it ended before it watched:\n%s", p.output()), p.stop())
	}
}

// collect reads the output to its end.
func (p *process) collect(r *os.File, ready *regexp.Regexp, seen chan<- struct{}) error {
	defer r.Close()
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadString('\n')
		p.mu.Lock()
		p.out.WriteString(line)
		p.mu.Unlock()
		if seen != nil && ready.MatchString(line) {
			close(seen)
			seen = nil
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// interrupt ends the tool as ^C on a terminal does. How it exits tells nothing.
func (p *process) interrupt() error {
	err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT)
	if errors.Is(err, syscall.ESRCH) {
		err = nil
	}
	err = errors.Join(err, <-p.read)
	var exit *exec.ExitError
	if waited := p.cmd.Wait(); !errors.As(waited, &exit) {
		err = errors.Join(err, waited)
	}
	return err
}

// cpu is the CPU time of the tool's process so far, in nanoseconds.
func (p *process) cpu() (float64, error) {
	if p.cmd == nil {
		return 0, nil
	}
	return onCPU(p.cmd.Process.Pid)
}

// onCPU adds up the first field of /proc/PID/task/*/schedstat.
func onCPU(pid int) (float64, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseFloat(first, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", f, err)
		}
		sum += n
	}
	return sum, nil
}
