package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// seccompProfile lets lasthop make the system calls that it needs, and no other.
const seccompProfile = "../../docs/examples/seccomp.json"

// callNumbers are those of the calls in it: lasthop's own, those of Go's runtime and, since the filter is there before
// lasthop is, those of runc (getppid, setgid, setgroups, setuid).
var callNumbers = map[string]int{
	"accept4": unix.SYS_ACCEPT4, "arch_prctl": unix.SYS_ARCH_PRCTL, "bind": unix.SYS_BIND, "bpf": unix.SYS_BPF,
	"capget": unix.SYS_CAPGET, "capset": unix.SYS_CAPSET, "chdir": unix.SYS_CHDIR,
	"clock_gettime": unix.SYS_CLOCK_GETTIME, "clone": unix.SYS_CLONE, "close": unix.SYS_CLOSE,
	"connect": unix.SYS_CONNECT, "copy_file_range": unix.SYS_COPY_FILE_RANGE, "dup3": unix.SYS_DUP3,
	"epoll_create1": unix.SYS_EPOLL_CREATE1, "epoll_ctl": unix.SYS_EPOLL_CTL, "epoll_pwait": unix.SYS_EPOLL_PWAIT,
	"eventfd2": unix.SYS_EVENTFD2, "execve": unix.SYS_EXECVE, "exit": unix.SYS_EXIT,
	"exit_group": unix.SYS_EXIT_GROUP, "faccessat2": unix.SYS_FACCESSAT2, "fchmodat": unix.SYS_FCHMODAT,
	"fcntl": unix.SYS_FCNTL, "fstat": unix.SYS_FSTAT, "fstatfs": unix.SYS_FSTATFS, "fsync": unix.SYS_FSYNC,
	"ftruncate": unix.SYS_FTRUNCATE, "futex": unix.SYS_FUTEX, "getcwd": unix.SYS_GETCWD,
	"getdents64": unix.SYS_GETDENTS64, "getegid": unix.SYS_GETEGID, "geteuid": unix.SYS_GETEUID,
	"getgid": unix.SYS_GETGID, "getpeername": unix.SYS_GETPEERNAME, "getpid": unix.SYS_GETPID,
	"getppid": unix.SYS_GETPPID, "getrandom": unix.SYS_GETRANDOM, "getrusage": unix.SYS_GETRUSAGE,
	"getsockname": unix.SYS_GETSOCKNAME, "getsockopt": unix.SYS_GETSOCKOPT, "gettid": unix.SYS_GETTID,
	"getuid": unix.SYS_GETUID, "ioctl": unix.SYS_IOCTL, "kill": unix.SYS_KILL, "listen": unix.SYS_LISTEN,
	"lseek": unix.SYS_LSEEK, "madvise": unix.SYS_MADVISE, "membarrier": unix.SYS_MEMBARRIER,
	"mincore": unix.SYS_MINCORE, "mkdirat": unix.SYS_MKDIRAT,
	"mmap": unix.SYS_MMAP, "mprotect": unix.SYS_MPROTECT, "munmap": unix.SYS_MUNMAP,
	"nanosleep": unix.SYS_NANOSLEEP, "newfstatat": unix.SYS_NEWFSTATAT, "openat": unix.SYS_OPENAT,
	"pidfd_open": unix.SYS_PIDFD_OPEN, "pidfd_send_signal": unix.SYS_PIDFD_SEND_SIGNAL, "pipe2": unix.SYS_PIPE2,
	"ppoll": unix.SYS_PPOLL, "prctl": unix.SYS_PRCTL, "pread64": unix.SYS_PREAD64, "prlimit64": unix.SYS_PRLIMIT64,
	"pwrite64": unix.SYS_PWRITE64, "read": unix.SYS_READ, "readlinkat": unix.SYS_READLINKAT,
	"recvfrom": unix.SYS_RECVFROM, "recvmsg": unix.SYS_RECVMSG, "renameat": unix.SYS_RENAMEAT,
	"restart_syscall": unix.SYS_RESTART_SYSCALL, "rt_sigaction": unix.SYS_RT_SIGACTION,
	"rt_sigprocmask": unix.SYS_RT_SIGPROCMASK, "rt_sigreturn": unix.SYS_RT_SIGRETURN,
	"sched_getaffinity": unix.SYS_SCHED_GETAFFINITY, "sched_yield": unix.SYS_SCHED_YIELD,
	"sendmsg": unix.SYS_SENDMSG, "sendto": unix.SYS_SENDTO, "setgid": unix.SYS_SETGID,
	"setgroups": unix.SYS_SETGROUPS, "setns": unix.SYS_SETNS, "setsid": unix.SYS_SETSID,
	"setsockopt": unix.SYS_SETSOCKOPT, "setuid": unix.SYS_SETUID, "shutdown": unix.SYS_SHUTDOWN,
	"sigaltstack": unix.SYS_SIGALTSTACK, "socket": unix.SYS_SOCKET, "splice": unix.SYS_SPLICE,
	"statfs": unix.SYS_STATFS, "sysinfo": unix.SYS_SYSINFO, "tgkill": unix.SYS_TGKILL, "uname": unix.SYS_UNAME,
	"unlinkat": unix.SYS_UNLINKAT, "wait4": unix.SYS_WAIT4, "waitid": unix.SYS_WAITID, "write": unix.SYS_WRITE,
	"writev": unix.SYS_WRITEV,
}

// profileCalls are the calls that the profile allows.
func profileCalls(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(seccompProfile)
	if err != nil {
		t.Fatal(err)
	}
	var profile struct {
		DefaultAction string
		Syscalls      []struct {
			Names  []string
			Action string
		}
	}
	if err := json.Unmarshal(text, &profile); err != nil {
		t.Fatal(err)
	}
	if profile.DefaultAction != "SCMP_ACT_ERRNO" || len(profile.Syscalls) != 1 || profile.Syscalls[0].Action != "SCMP_ACT_ALLOW" {
		t.Fatalf("%s: %+v", seccompProfile, profile)
	}
	names := profile.Syscalls[0].Names
	for _, name := range names {
		if _, known := callNumbers[name]; !known {
			t.Errorf("%s allows %s", seccompProfile, name)
		}
	}
	return names
}

// TestSeccompProfile has each command run with the profile's calls, of which it may make no other.
func TestSeccompProfile(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	var allowed []string
	for _, name := range profileCalls(t) {
		allowed = append(allowed, strconv.Itoa(callNumbers[name]))
	}
	file := filepath.Join(t.TempDir(), "recording")
	run := func(name string, begun func(*exec.Cmd, *os.File), args ...string) {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(watchedName, append([]string{"!" + strings.Join(allowed, ","), name}, args...)...)
			var said bytes.Buffer
			cmd.Stderr = &said
			var screen *os.File
			if begun != nil {
				control, tty := openTerminal(t)
				cmd.Stdin, cmd.Stdout, screen = tty, tty, control
			}
			var mu sync.Mutex
			other := map[int]bool{}
			wait := watchCalls(t, cmd, func(c call) instead {
				mu.Lock()
				defer mu.Unlock()
				other[c.nr] = true
				return instead{}
			})
			if begun != nil {
				begun(cmd, screen)
			}
			err := wait()
			if status := cmd.ProcessState.ExitCode(); !slices.Contains([]int{exitClean, exitFindings, exitInterrupted}, status) {
				t.Errorf("%v: %s", err, said.String())
			}
			for nr := range other {
				t.Errorf("the profile lacks call %d", nr)
			}
		})
	}
	run("check", nil, slices.Concat([]string{"--for", "300ms", "--active"}, node.flags)...)
	run("check", nil, slices.Concat([]string{"--for", "300ms", "--attach", "clsact", "--pcap", file + ".pcap"}, node.flags)...)
	run("explain", nil, slices.Concat([]string{"10.240.0.32", "--for", "300ms"}, node.flags)...)
	run("doctor", nil, node.flags...)
	run("record", nil, slices.Concat([]string{file, "--for", "1s"}, node.flags)...)
	run("replay", nil, file, "-o", "json")
	interrupt := func(what string) func(*exec.Cmd, *os.File) {
		return func(cmd *exec.Cmd, screen *os.File) {
			readUntil(t, screen, what)
			if err := cmd.Process.Signal(unix.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	run("watch", interrupt(`"StaleMACRewrite"`), node.flags...)
	run("agent", nil, "--help")
}
