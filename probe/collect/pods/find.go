package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Candidate is a network namespace that can be opened by Path.
type Candidate struct {
	Inode uint32
	Path  string
	// Name is the namespace's name, or Path if it has none.
	Name string
	// Processes are directories of /proc of processes in the namespace, the first
	// few that were found.
	Processes []string
}

// maxProcesses bounds Candidate.Processes. One would do, but for those that somebody
// else started there.
const maxProcesses = 8

// namedDirs are the directories of named namespaces below a root.
var namedDirs = []string{"run/netns", "var/run/netns", "run/docker/netns", "var/run/docker/netns"}

// Find lists the network namespaces below each root that have a name or a process.
// Each is listed once, under its name if it has one. Hidden counts the processes
// whose namespace the kernel refused to show.
func Find(roots ...string) (out []Candidate, hidden int, err error) {
	var s search
	err = s.named(roots)
	hidden, failed := s.processes(roots)
	return s.found, hidden, errors.Join(err, failed)
}

// search lists each namespace once, as it is found first.
type search struct {
	found []Candidate
	at    map[uint32]int
}

func (s *search) add(c Candidate) {
	i, seen := s.at[c.Inode]
	if !seen {
		if s.at == nil {
			s.at = map[uint32]int{}
		}
		s.at[c.Inode] = len(s.found)
		s.found = append(s.found, c)
		return
	}
	if list := &s.found[i].Processes; len(*list) < maxProcesses {
		*list = append(*list, c.Processes...)
	}
}

func (s *search) named(roots []string) error {
	var errs []error
	for _, root := range roots {
		for _, dir := range namedDirs {
			errs = append(errs, named(filepath.Join(root, dir), s.add))
		}
	}
	return errors.Join(errs...)
}

func (s *search) processes(roots []string) (hidden int, err error) {
	var errs []error
	for _, root := range roots {
		n, err := processes(filepath.Join(root, "proc"), s.add)
		hidden += n
		errs = append(errs, err)
	}
	return hidden, errors.Join(errs...)
}

// names lists the entries of a directory, none if it does not exist.
func names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

func named(dir string, add func(Candidate)) error {
	list, err := names(dir)
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, name := range list {
		path := filepath.Join(dir, name)
		// A name that was deleted meanwhile, or has no namespace mounted, is
		// no gap.
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Dev == namespaces {
			add(Candidate{Inode: uint32(st.Ino), Path: path, Name: name})
		}
	}
	return nil
}

// namespaces is the device number of the kernel's namespace files.
var namespaces = func() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/net", &st) != nil {
		return 0
	}
	return st.Dev
}()

// processes finds the namespaces of processes by the targets of their links, which
// contain the inode: "net:[4026531840]".
func processes(proc string, add func(Candidate)) (hidden int, err error) {
	list, err := names(proc)
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, pid := range list {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		process := proc + "/" + pid
		path := process + "/ns/net"
		text, err := os.Readlink(path)
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				hidden++
			}
			continue
		}
		number := strings.TrimSuffix(strings.TrimPrefix(text, "net:["), "]")
		if n, err := strconv.ParseUint(number, 10, 32); err == nil {
			add(Candidate{Inode: uint32(n), Path: path, Name: path, Processes: []string{process}})
		}
	}
	return hidden, nil
}
