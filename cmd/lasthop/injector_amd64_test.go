package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call is a system call that a command under watch is about to make. Its number and arguments are the kernel's; the
// command waits until it is answered.
type call struct {
	nr   int
	args [6]uint64
	// process is the command.
	process int
}

// instead says what the command gets in place of its call, or that the call goes ahead.
type instead struct {
	value int64
	err   unix.Errno
	// refused and returns: err and value count; opens: it gets a copy of our descriptor value. None: the kernel makes
	// the call.
	refused, returns, opens bool
}

func refuse(err unix.Errno) instead { return instead{err: err, refused: true} }

// watchedName is the command that has its system calls watched: it installs a seccomp filter, sends the filter's
// descriptor to its parent, and becomes lasthop. The filter reports the calls with the numbers "1,2,3", or all but
// these ("!1,2,3").
const watchedName = "lasthop-watched"

func init() { commands[watchedName] = becomeWatched }

// becomeWatched is that command: `lasthop-watched NUMBERS ARGS…`.
func becomeWatched() {
	lasthop, err := exec.LookPath("lasthop")
	if err == nil {
		err = installFilter(os.Args[1])
	}
	if err == nil {
		err = syscall.Exec(lasthop, append([]string{"lasthop"}, os.Args[2:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, watchedName+":", err)
	os.Exit(exitUsage)
}

func installFilter(numbers string) error {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
	)
	named, others := uint32(unix.SECCOMP_RET_USER_NOTIF), uint32(unix.SECCOMP_RET_ALLOW)
	numbers, only := strings.CutPrefix(numbers, "!")
	if only {
		named, others = others, named
	}
	filter := []unix.SockFilter{{Code: load}}
	for text := range strings.SplitSeq(numbers, ",") {
		nr, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		filter = append(filter, unix.SockFilter{Code: equal, Jf: 1, K: uint32(nr)}, unix.SockFilter{Code: ret, K: named})
	}
	filter = append(filter, unix.SockFilter{Code: ret, K: others})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// This thread stays, with its filter, when the process becomes another program.
	runtime.LockOSThread()
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("install filter: %w", errno)
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return fmt.Errorf("send filter: %w", err)
	}
	unix.CloseOnExec(3)
	unix.CloseOnExec(int(fd))
	return nil
}

// watchCalls starts a command of watchedName and has respond answer its calls, one after the other. wait returns when
// it has ended.
func watchCalls(t *testing.T, cmd *exec.Cmd, respond func(call) instead) (wait func() error) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "filter"), os.NewFile(uintptr(pair[1]), "filter")
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), rights, 0)
	ours.Close()
	var listener int
	if err == nil {
		listener, err = received(rights[:n])
	}
	if err != nil {
		t.Fatalf("%v: %v", err, cmd.Wait())
	}
	var g sync.WaitGroup
	g.Go(func() {
		if err := answerCalls(listener, cmd.Process.Pid, respond); err != nil {
			t.Error(err)
		}
	})
	return func() error {
		err := cmd.Wait()
		g.Wait()
		unix.Close(listener)
		return err
	}
}

func received(rights []byte) (fd int, err error) {
	list, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return 0, err
	}
	if len(list) != 1 {
		return 0, errors.New("no filter")
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil {
		return 0, err
	}
	return fds[0], nil
}

// answerCalls answers the calls of a filter until nothing has it any more.
func answerCalls(listener, process int, respond func(call) instead) error {
	// notification and response are the kernel's seccomp_notif and seccomp_notif_resp.
	type notification struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	type response struct {
		id    uint64
		value int64
		err   int32
		flags uint32
	}
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return fmt.Errorf("wait for calls: %w", err)
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			return nil
		}
		var n notification
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
		if errno == unix.ENOENT || errno == unix.EINTR {
			continue // the caller was killed
		}
		if errno != 0 {
			return fmt.Errorf("receive call: %w", errno)
		}
		r := response{id: n.id}
		switch a := respond(call{int(n.nr), n.args, process}); {
		case a.opens:
			// The kernel's seccomp_notif_addfd; the flag answers the call too.
			const answers = 2
			add := struct {
				id                              uint64
				flags, ours, theirs, theirFlags uint32
			}{n.id, answers, uint32(a.value), 0, unix.O_CLOEXEC}
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(&add)))
			if errno != 0 && errno != unix.ENOENT {
				return fmt.Errorf("give a file: %w", errno)
			}
			continue
		case a.refused:
			r.err = -int32(a.err)
		case a.returns:
			r.value = a.value
		default:
			r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
		if errno != 0 && errno != unix.ENOENT {
			return fmt.Errorf("answer call: %w", errno)
		}
	}
}

// memory reads the command's memory, write writes it.
func (c call) memory(at uint64, size int) []byte {
	b := make([]byte, size)
	n, err := unix.ProcessVMReadv(c.process, []unix.Iovec{{Base: &b[0], Len: uint64(size)}},
		[]unix.RemoteIovec{{Base: uintptr(at), Len: size}}, 0)
	if err != nil {
		return nil
	}
	return b[:n]
}

func (c call) write(at uint64, b []byte) error {
	_, err := unix.ProcessVMWritev(c.process, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}},
		[]unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	return err
}

// own is a copy of one of the command's descriptors.
func (c call) own(fd uint64) (int, error) {
	process, err := unix.PidfdOpen(c.process, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(process)
	return unix.PidfdGetfd(process, int(fd), 0)
}

// file is what one of the command's descriptors leads to.
func (c call) file(fd uint64) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.process, fd))
	return path
}

// hideVDSO has the command ask the kernel for the time, by calls that can be watched. It does so while the command makes
// its first call, before Go's runtime reads what the kernel told it.
func (c call) hideVDSO() error {
	const base, ignore = 33, 1 // AT_SYSINFO_EHDR, AT_IGNORE
	told, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", c.process))
	if err != nil {
		return err
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.process))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil || !strings.Contains(line, "[stack]") {
			continue
		}
		at := bytes.Index(c.memory(from, int(to-from)), told)
		for i := 0; at >= 0 && i+16 <= len(told); i += 16 {
			if binary.NativeEndian.Uint64(told[i:]) == base {
				return c.write(from+uint64(at+i), binary.NativeEndian.AppendUint64(nil, ignore))
			}
		}
	}
	return errors.New("no vDSO")
}

// asked are the requests that a netlink socket carries, by protocol and type of message.
type asked struct{ protocol, typ int }

func (a asked) String() string {
	return fmt.Sprintf("%s %d", map[int]string{unix.NETLINK_ROUTE: "route", unix.NETLINK_NETFILTER: "netfilter",
		unix.NETLINK_SOCK_DIAG: "diag", unix.NETLINK_GENERIC: "generic"}[a.protocol], a.typ)
}

// netlinkWatch keeps what the command's netlink sockets were asked last, and has the replies to some refused.
type netlinkWatch struct {
	mu   sync.Mutex
	last map[uint64]asked
	// dumps counts the dumps that were asked for.
	dumps map[asked]int
	reply func(call, asked) instead
}

func newNetlinkWatch(reply func(call, asked) instead) *netlinkWatch {
	return &netlinkWatch{last: map[uint64]asked{}, dumps: map[asked]int{}, reply: reply}
}

func (w *netlinkWatch) respond(c call) instead {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch c.nr {
	case unix.SYS_SENDTO:
		h := c.memory(c.args[1], unix.SizeofNlMsghdr)
		fd, err := c.own(c.args[0])
		if err != nil || len(h) < unix.SizeofNlMsghdr {
			return instead{}
		}
		defer unix.Close(fd)
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		protocol, failed := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if err != nil || failed != nil || domain != unix.AF_NETLINK {
			delete(w.last, c.args[0])
			return instead{}
		}
		a := asked{protocol, int(binary.NativeEndian.Uint16(h[4:]))}
		w.last[c.args[0]] = a
		if binary.NativeEndian.Uint16(h[6:])&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
			w.dumps[a]++
		}
	case unix.SYS_CLOSE:
		delete(w.last, c.args[0])
	case unix.SYS_RECVFROM:
		if a, ok := w.last[c.args[0]]; ok && w.reply != nil {
			return w.reply(c, a)
		}
	}
	return instead{}
}

// interrupted receives what the command would, as of a dump during which the table changed.
func interrupted(c call) instead {
	fd, err := c.own(c.args[0])
	if err != nil {
		return instead{}
	}
	defer unix.Close(fd)
	b := make([]byte, c.args[2])
	n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
	if err != nil {
		return instead{}
	}
	for m := b[:n]; len(m) >= unix.SizeofNlMsghdr; {
		size := int(binary.NativeEndian.Uint32(m))
		if size < unix.SizeofNlMsghdr || size > len(m) {
			break
		}
		binary.NativeEndian.PutUint16(m[6:], binary.NativeEndian.Uint16(m[6:])|unix.NLM_F_DUMP_INTR)
		m = m[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(m)):]
	}
	if n > 0 {
		err = c.write(c.args[1], b[:n])
	}
	if err == nil && c.args[4] != 0 {
		var from bytes.Buffer
		kernel := unix.RawSockaddrNetlink{Family: unix.AF_NETLINK}
		err = binary.Write(&from, binary.NativeEndian, kernel)
		if err == nil {
			err = c.write(c.args[4], from.Bytes())
		}
		if err == nil {
			err = c.write(c.args[5], binary.NativeEndian.AppendUint32(nil, unix.SizeofSockaddrNetlink))
		}
	}
	if err != nil {
		return refuse(unix.EFAULT)
	}
	return instead{value: int64(n), returns: true}
}

// overrun loses what the kernel has for the command, as where the socket's buffer was too small.
func overrun(c call) instead {
	if fd, err := c.own(c.args[0]); err == nil {
		_, _, _ = unix.Recvfrom(fd, make([]byte, 1), unix.MSG_DONTWAIT)
		unix.Close(fd)
	}
	return refuse(unix.ENOBUFS)
}
