package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// Two pods of one node. The names are the lab's, so that `lasthop lab down
// --all` finds what is left of a run that was killed.
const (
	node      = "lasthop-peers"
	server    = "10.31.0.3:7777"
	blackhole = "10.31.9.9:7777"
	full      = "10.31.0.2:7778"
)

// burst is how many packets are sent before the receiver reads them. The sender's time
// would else depend on how often it has to wake a reader, which sleeps the more often the
// slower the packets come: a tool would be charged with that.
const burst = 256

// path is the node and its pods.
type path struct {
	client, server *netns.NS
	// sink is the server's socket, full one of the client's whose buffer is full.
	sink, full int
	received   int // what the server has got
}

const setUp = `
ip netns add $node; ip netns add $node-client; ip netns add $node-server
ip -n $node link add veth-client type veth peer name eth0 netns $node-client
ip -n $node link add veth-server type veth peer name eth0 netns $node-server
router=169.254.1.1
for pod in client:10.31.0.2 server:10.31.0.3; do
	ns=$node-${pod%%:*}; link=veth-${pod%%:*}; addr=${pod#*:}
	ip -n $ns addr add $addr/32 dev eth0
	ip -n $ns link set lo up; ip -n $ns link set eth0 up
	ip -n $node link set $link up
	ip -n $node route add $addr/32 dev $link
	ip -n $ns route add $router dev eth0
	ip -n $ns route add default via $router dev eth0
	ip -n $node addr add $router/32 dev $link
done
ip -n $node link set lo up
ip -n $node route add blackhole 10.31.9.9/32
ip netns exec $node sysctl -qw net.ipv4.ip_forward=1`

const tearDown = `
for ns in $node $node-client $node-server; do
	! [ -e /run/netns/$ns ] || ip netns del $ns
done`

func shell(script string) error {
	cmd := exec.Command("sh", "-ec", script)
	cmd.Env = append(os.Environ(), "node="+node)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func newPath() (_ *path, err error) {
	p := &path{sink: -1, full: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err := shell(tearDown + setUp); err != nil {
		return p, fmt.Errorf("make the path: %w", err)
	}
	if p.client, err = netns.Named(node + "-client"); err != nil {
		return p, err
	}
	if p.server, err = netns.Named(node + "-server"); err != nil {
		return p, err
	}
	if p.sink, err = udp(p.server, netip.MustParseAddrPort(server), unix.Bind); err != nil {
		return p, err
	}
	if p.full, err = udp(p.client, netip.MustParseAddrPort(full), unix.Bind); err != nil {
		return p, err
	}
	return p, p.fill()
}

// fill fills a small buffer that nobody reads.
func (p *path) fill() error {
	if err := unix.SetsockoptInt(p.full, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		return fmt.Errorf("make a socket's buffer small: %w", err)
	}
	fd, err := udp(p.client, netip.MustParseAddrPort(full), unix.Connect)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for range burst {
		if _, err := unix.Write(fd, make([]byte, small)); err != nil {
			return fmt.Errorf("fill a socket's buffer: %w", err)
		}
	}
	return nil
}

func (p *path) close() error {
	var errs []error
	for _, fd := range []int{p.sink, p.full} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	for _, ns := range []*netns.NS{p.client, p.server} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(append(errs, shell(tearDown))...)
}

// udp opens a socket in a namespace, and binds or connects it.
func udp(ns *netns.NS, addr netip.AddrPort, do func(int, unix.Sockaddr) error) (fd int, err error) {
	err = ns.Do(func() error {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		const room = 32 << 20
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room),
			do(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}))
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		return nil
	})
	if err != nil {
		return -1, fmt.Errorf("open UDP socket: %w", err)
	}
	return fd, nil
}

// drain takes what has arrived at the server.
func (p *path) drain() error {
	buf := make([]byte, 1)
	for {
		switch _, err := unix.Read(p.sink, buf); {
		case err == nil:
			p.received++
		case errors.Is(err, unix.EAGAIN):
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("receive: %w", err)
		}
	}
}

// cost is CPU time: in the kernel, for the packets, and of the tool.
type cost struct{ kernel, tool float64 }

func (c cost) each(n int) cost { return cost{c.kernel / float64(n), c.tool / float64(n)} }

// send sends packets in bursts from one thread on one CPU, and returns that thread's CPU
// time while it sent, and that of the CPU's ksoftirqd.
func (p *path) send(ctx context.Context, to string, data, n int) (_ cost, err error) {
	fd, err := udp(p.client, netip.MustParseAddrPort(to), unix.Connect)
	if err != nil {
		return cost{}, err
	}
	defer unix.Close(fd)
	unpin, cpu, err := pin()
	if err != nil {
		return cost{}, err
	}
	defer func() { err = errors.Join(err, unpin()) }()
	softirqs, err := ksoftirqd(cpu)
	if err != nil {
		return cost{}, err
	}
	var sum time.Duration
	for left := n; left > 0; left -= burst {
		if ctx.Err() != nil {
			return cost{}, ctx.Err()
		}
		took, err := sendBurst(fd, make([]byte, data), min(left, burst))
		if err != nil {
			return cost{}, err
		}
		sum += took
		if err := p.drain(); err != nil {
			return cost{}, err
		}
	}
	after, err := ksoftirqd(cpu)
	return cost{kernel: float64(sum) + after - softirqs}, err
}

// sendBurst returns the CPU time that sending took.
func sendBurst(fd int, data []byte, n int) (time.Duration, error) {
	start, err := threadTime()
	if err != nil {
		return 0, err
	}
	for range n {
		// A blackhole route may be told to the socket; the packet was lost
		// nevertheless.
		if _, err := unix.Write(fd, data); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOBUFS) {
			return 0, fmt.Errorf("send: %w", err)
		}
	}
	end, err := threadTime()
	return end - start, err
}

// pin locks the goroutine to a thread, and that to the last CPU that it may run on, until
// unpin is called. So the packets' softirqs run there as well.
func pin() (unpin func() error, cpu int, err error) {
	runtime.LockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		runtime.UnlockOSThread()
		return nil, 0, fmt.Errorf("read own CPUs: %w", err)
	}
	for i := range len(all) * 64 {
		if all.IsSet(i) {
			cpu = i
		}
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return nil, 0, fmt.Errorf("stay on CPU %d: %w", cpu, err)
	}
	return func() error {
		defer runtime.UnlockOSThread()
		return unix.SchedSetaffinity(0, &all)
	}, cpu, nil
}

func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

// ksoftirqd is the CPU time of the thread that takes over a CPU's long softirqs.
func ksoftirqd(cpu int) (float64, error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		name, err := os.ReadFile(f)
		if err != nil || strings.TrimSpace(string(name)) != fmt.Sprintf("ksoftirqd/%d", cpu) {
			continue // another, or a process that ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			return 0, err
		}
		return onCPU(pid)
	}
	return 0, nil // the process may be in a PID namespace
}
