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

	"github.com/lasthop/lasthop/probe/input"
)

// Candidate is a network namespace that can be opened by Path.
type Candidate struct {
	Inode uint32
	Path  string
	// Name is the namespace's name, or Path if it has none.
	Name string
	// Processes are directories of /proc of processes in the namespace, the first few that were found.
	Processes []string
}

// maxProcesses bounds Candidate.Processes. One would do, but for those that somebody else started there.
const maxProcesses = 8

// maxNamespaces bounds what is listed: 1<<22 is the most processes that there can be.
const maxNamespaces = 1 << 22

// namedDirs are the directories of named namespaces below a root.
var namedDirs = []string{"run/netns", "var/run/netns", "run/docker/netns", "var/run/docker/netns"}

// search lists the network namespaces that have a name or a process, each once, as it is found first.
type search struct {
	found []Candidate
	at    map[uint32]int
	// hidden counts the processes whose namespace the kernel refused to show.
	hidden int
	errs   []error
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

// names are the entries of a directory, none if it does not exist.
func (s *search) names(of, dir string) []string {
	list, err := input.Entries(dir, maxNamespaces, of)
	if err != nil {
		s.errs = append(s.errs, fmt.Errorf("list %s: %w", of, err))
	}
	return list
}

// named finds the namespaces below the roots that have a name.
func (s *search) named(roots []string) {
	for _, root := range roots {
		for _, dir := range namedDirs {
			dir = filepath.Join(root, dir)
			for _, name := range s.names("namespaces", dir) {
				path := filepath.Join(dir, name)
				// A name that was deleted meanwhile, or has no namespace mounted, is no gap.
				var st unix.Stat_t
				if unix.Stat(path, &st) == nil && st.Dev == namespaces {
					if strings.HasSuffix(dir, "docker/netns") {
						name = "/run/docker/netns/" + name // others are below /run/netns
					}
					s.add(Candidate{Inode: uint32(st.Ino), Path: path, Name: name})
				}
			}
		}
	}
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
func (s *search) processes(roots []string) {
	for _, root := range roots {
		proc := filepath.Join(root, "proc")
		for _, pid := range s.names("processes", proc) {
			if pid[0] < '0' || pid[0] > '9' {
				continue
			}
			process := proc + "/" + pid
			path := process + "/ns/net"
			text, err := os.Readlink(path)
			if errors.Is(err, fs.ErrPermission) {
				s.hidden++
			}
			number := strings.TrimSuffix(strings.TrimPrefix(text, "net:["), "]")
			if n, err := strconv.ParseUint(number, 10, 32); err == nil {
				s.add(Candidate{Inode: uint32(n), Path: path, Name: path, Processes: []string{process}})
			}
		}
	}
}
