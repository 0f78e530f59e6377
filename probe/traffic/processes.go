package traffic

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Processes knows which processes there are and were, by a program on the tracepoints at which they begin and end.
type Processes struct {
	ns *netns.NS
	// podOf is the pod of a process that runs or, where it has ended, of the cgroup that it had.
	podOf func(pid int, cgroup uint64) (namespace, name string)
	netns uint32
	// holders are the processes that have a socket, by its inode.
	holders map[string][]string
	coll    *ebpf.Collection
	links   []link.Link
	// keys and values are what the map had.
	keys   []uint32
	values []bpf.ProcessProcess
	// listed are the numbers that processes have in PID namespaces of their own, by their numbers here: those that /proc
	// had at listing, of which the map may not know, or no more.
	listed  map[uint32]uint32
	listing time.Time
}

const (
	// late is how long ago a process may have ended whose notification comes.
	late = time.Second
	// maxPID is more than any process's number (PID_MAX_LIMIT): other ports are no numbers of processes.
	maxPID = 4 << 20
	// maxSockets bounds the table of sockets that is read, in bytes.
	maxSockets = 4 << 20
	// listEvery is how long /proc is not listed again where the map is nearly full, listLatest in any case.
	listEvery, listLatest = 10 * time.Second, time.Minute
)

// InFirstPIDs reports whether PID 1 is that of the machine. The kernel's first PID namespace has this number (PROC_PID_INIT_INO).
func InFirstPIDs() bool {
	const number = 0xEFFFFFFC
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &st) == nil && st.Ino == number
}

// OpenProcesses begins to follow processes, for those in the node's network namespace, which stays open until Close. podOf
// gives the pod of a process that runs (cgroup is 0), or of one that had that cgroup.
func OpenProcesses(ns *netns.NS, podOf func(pid int, cgroup uint64) (namespace, name string), debug bool) (_ *Processes, err error) {
	const feature = "know who changes the node"
	if !InFirstPIDs() {
		return nil, &model.UnsupportedError{Feature: feature, Remedy: "needs the node's processes; in a pod: hostPID: true", Err: unix.EPERM}
	}
	if err := checkMemory(feature); err != nil {
		return nil, err
	}
	_ = rlimit.RemoveMemlock()
	p := &Processes{ns: ns, podOf: podOf, netns: ns.Inode(), holders: map[string][]string{}}
	if p.coll, err = load("process"); err != nil {
		return nil, loadError(feature, err, debug)
	}
	for _, name := range []string{bpf.ProcessProgLasthopFork, bpf.ProcessProgLasthopExec, bpf.ProcessProgLasthopExit} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p.coll.Programs[name]})
		if err != nil {
			return nil, errors.Join(loadError(feature, err, debug), p.Close())
		}
		p.links = append(p.links, l)
	}
	p.list(time.Now())
	return p, nil
}

// Close ends following.
func (p *Processes) Close() error {
	errs := model.Map(p.links, link.Link.Close)
	p.coll.Close()
	return errors.Join(errs...)
}

func (p *Processes) list(now time.Time) {
	p.listed, p.listing = map[uint32]uint32{}, now
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		if pid, err := strconv.ParseUint(d.Name(), 10, 32); err == nil {
			if x, ok := running(uint32(pid)); ok {
				p.listed[uint32(x.PID)] = x.inner
			}
		}
	}
}

// process is what /proc has of one: its number in its own PID namespace, and the inode of its network namespace, 0
// where it has ended. hidden: that may not be read, as of a process with more capabilities.
type process struct {
	model.Process
	inner, netns uint32
	hidden       bool
}

// running reads a process, or that of a thread. Threads of the kernel are none.
func running(pid uint32) (x process, ok bool) {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return x, false
	}
	status, err := p.NewStatus()
	stat, failed := p.Stat()
	if err != nil || failed != nil {
		return x, false
	}
	x.Process = model.Process{PID: status.TGID, Name: status.Name, Parent: stat.PPID}
	if n := len(status.NSpids); n > 0 {
		x.inner = uint32(status.NSpids[n-1])
	}
	const kernel = 2 // kthreadd, which starts all of them
	var st unix.Stat_t
	switch err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st); {
	case err == nil:
		x.netns = uint32(st.Ino)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		x.hidden = true
	}
	return x, x.PID != kernel && x.Parent != kernel
}

// Candidate is a process that ran from Began, zero for longer than is known, to Ended, zero if it still runs.
type Candidate struct {
	model.Process
	Began, Ended time.Time
}

// Ran reports whether the process ran at that time, or a little before: notifications may come late.
func (c *Candidate) Ran(at time.Time) bool {
	return !c.Began.After(at) && (c.Ended.IsZero() || !c.Ended.Before(at.Add(-late)))
}

// Behind are the processes in the node's network namespace that have, or had lately, one of some numbers in their own PID
// namespaces, by this number.
func (p *Processes) Behind(ports map[uint32]bool) map[uint32][]Candidate {
	out := p.holding(ports)
	ports = maps.Clone(ports)
	maps.DeleteFunc(ports, func(port uint32, _ bool) bool { return len(out[port]) > 0 })
	known := p.read()
	if age := time.Since(p.listing); age > listLatest || age > listEvery && known > len(p.keys)/2 {
		p.list(time.Now())
	}
	// Those that may be: by the map, by the list, and those of the first PID namespace.
	maybe := maps.Clone(ports)
	for i := range known {
		if ports[p.values[i].Inner] {
			maybe[p.keys[i]] = true
		}
	}
	for pid, inner := range p.listed {
		if ports[inner] {
			maybe[pid] = true
		}
	}
	for _, pid := range slices.Sorted(maps.Keys(maybe)) {
		if pid == 0 || pid >= maxPID {
			continue
		}
		if inner, who, is := p.candidate(pid); is && ports[inner] {
			out[inner] = append(out[inner], who)
		}
	}
	return out
}

// holding are the processes that still have a socket with one of some ports, by port: a daemon has several sockets, of which
// one alone has the number of the process.
func (p *Processes) holding(ports map[uint32]bool) map[uint32][]Candidate {
	var table []byte
	_ = p.ns.Do(func() (err error) { // what is not known remains to be found otherwise
		table, err = input.Read("/proc/thread-self/net/netlink", input.NoLink, maxSockets)
		return err
	})
	out, wanted := map[uint32][]Candidate{}, map[string]uint32{}
	for l := range strings.Lines(string(table)) {
		// sk Eth Pid Groups … Inode
		f := strings.Fields(l)
		if len(f) < 4 || f[1] != strconv.Itoa(unix.NETLINK_ROUTE) {
			continue
		}
		if port, err := strconv.ParseUint(f[2], 10, 32); err == nil && ports[uint32(port)] {
			wanted[f[len(f)-1]] = uint32(port)
		}
	}
	who := map[string][]string{}
	for inode := range wanted {
		has := func(pid string) bool { return slices.Contains(socketsOf(pid), inode) }
		if pids := model.Filter(p.holders[inode], has); len(pids) > 0 {
			who[inode] = pids
		}
	}
	if len(who) < len(wanted) {
		dirs, _ := os.ReadDir("/proc")
		clear(who)
		for _, d := range dirs {
			for _, inode := range model.With(nil, socketsOf(d.Name())...) {
				if _, is := strconv.Atoi(d.Name()); is == nil && wanted[inode] != 0 {
					who[inode] = append(who[inode], d.Name())
				}
			}
		}
		p.holders = who
	}
	for inode, pids := range who {
		for _, pid := range pids {
			n, _ := strconv.Atoi(pid)
			if x, lives := running(uint32(n)); lives {
				out[wanted[inode]] = append(out[wanted[inode]], Candidate{Process: p.started(x.Process)})
			}
		}
	}
	return out
}

// socketsOf are the inodes of a process's sockets.
func socketsOf(pid string) (out []string) {
	dir := "/proc/" + pid + "/fd/"
	list, _ := os.ReadDir(dir)
	for _, d := range list {
		to, _ := os.Readlink(dir + d.Name())
		if inode, is := strings.CutPrefix(to, "socket:["); is {
			out = append(out, strings.TrimSuffix(inode, "]"))
		}
	}
	return out
}

// candidate is a process in the node's network namespace, as far as that may be read.
func (p *Processes) candidate(pid uint32) (inner uint32, c Candidate, is bool) {
	now, lives := running(pid)
	// After it was found not to run: then the map has its end.
	var x bpf.ProcessProcess
	known := p.coll.Maps[bpf.ProcessMapProcesses].Lookup(pid, &x) == nil
	switch {
	case lives && (now.netns == p.netns || now.hidden) && uint32(now.PID) == pid:
		return now.inner, Candidate{p.started(now.Process), ago(x.Began), time.Time{}}, true
	case known && x.Ended != 0 && x.Netns == p.netns:
		return x.Inner, Candidate{p.ended(pid, &x), ago(x.Began), ago(x.Ended)}, true
	}
	return 0, c, false
}

func (p *Processes) ended(pid uint32, x *bpf.ProcessProcess) model.Process {
	out := model.Process{PID: int(pid), Name: text(x.Name[:]), Parent: int(x.Parent), ParentName: text(x.ParentName[:])}
	out.Namespace, out.Pod = p.podOf(out.PID, x.Cgroup)
	return out
}

// Who is the process, or that of a thread, with a number of the first PID namespace, which had that name.
func (p *Processes) Who(pid uint32, name string) model.Process {
	if now, lives := running(pid); lives && now.Name == name {
		return p.started(now.Process)
	}
	var x bpf.ProcessProcess
	if p.coll.Maps[bpf.ProcessMapProcesses].Lookup(pid, &x) == nil && text(x.Name[:]) == name {
		return p.ended(pid, &x)
	}
	return model.Process{PID: int(pid), Name: name}
}

// started completes a process that ran a moment ago with who started it, as that was called then, and its pod.
func (p *Processes) started(x model.Process) model.Process {
	x.Namespace, x.Pod = p.podOf(x.PID, 0)
	var had bpf.ProcessProcess
	if p.coll.Maps[bpf.ProcessMapProcesses].Lookup(uint32(x.PID), &had) == nil {
		if had.Ended != 0 {
			return p.ended(uint32(x.PID), &had) // meanwhile, maybe before its pod was read
		}
		x.Parent, x.ParentName = int(had.Parent), text(had.ParentName[:])
	} else if parent, lives := running(uint32(x.Parent)); lives {
		x.ParentName = parent.Name
	}
	return x
}

// read reads the map, and returns how many it has.
func (p *Processes) read() int {
	m := p.coll.Maps[bpf.ProcessMapProcesses]
	if p.keys == nil {
		p.keys, p.values = make([]uint32, m.MaxEntries()), make([]bpf.ProcessProcess, m.MaxEntries())
	}
	var at ebpf.MapBatchCursor
	// It ends by an error: there are no more, or those that came meanwhile are for the next time.
	n, _ := m.BatchLookup(&at, p.keys, p.values, nil)
	return n
}

// text is a name of the kernel's.
func text(name []int8) string {
	return unix.ByteSliceToString(model.Map(name, func(c int8) byte { return byte(c) }))
}

// ago is a time of the kernel's, as programs read it; zero for none.
func ago(at uint64) time.Time {
	zero, err := zeroOfClock(time.Now())
	return model.Either(at == 0 || err != nil, time.Time{}, zero.Add(time.Duration(at)))
}
