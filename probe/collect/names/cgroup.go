package names

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
)

// logDir has a folder NAMESPACE_NAME_UID for each pod.
const logDir = "var/log/pods"

// maxFolders bounds those that are read, maxGroups the cgroups that are known, maxCgroup the size of a process's list of
// cgroups in bytes.
const (
	maxFolders = 16384
	maxGroups  = 20000
	maxCgroup  = 64 << 10
)

// podPart is the part of a cgroup's path that has a pod's UID, as the kubelet's two drivers write it: pod0a1b…-…
// (cgroupfs), and kubepods-burstable-pod0a1b…_….slice (systemd).
var podPart = regexp.MustCompile(`(?:^|-)pod([0-9a-fA-F][0-9a-fA-F_-]{15,63})(?:\.slice)?$`)

// uidOf is the pod's UID in the text of /proc/PID/cgroup, with a line ID:CONTROLLERS:PATH for each hierarchy of
// version 1, and one of version 2. It is empty if there is none, or several. Of nested pods, as where nodes are
// containers, the last is the one.
func uidOf(text string) string {
	uid := ""
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		found := ""
		for part := range strings.SplitSeq(fields[2], "/") {
			// containerd on a node whose kubelet alone uses systemd: SLICE:cri-containerd:ID.
			part, _, _ = strings.Cut(part, ":")
			if m := podPart.FindStringSubmatch(part); m != nil {
				found = strings.ReplaceAll(m[1], "_", "-")
			}
		}
		switch {
		case found == "":
		case uid != "" && uid != found:
			return ""
		default:
			uid = found
		}
	}
	return uid
}

// podUID is the UID of the pod that the processes of a network namespace belong to:
// empty if none belongs to a pod, or they to several. Others, such as a shell that
// somebody started there, have none, or own: that of the pod lasthop runs in.
func podUID(netns uint32, processes []string, own string) string {
	uid := ""
	for _, dir := range processes {
		found := readUID(dir)
		if found == "" || found == own {
			continue
		}
		// The process may have ended, and another have its number.
		if link, err := os.Readlink(filepath.Join(dir, "ns/net")); err != nil || link != fmt.Sprintf("net:[%d]", netns) {
			continue
		}
		if uid != "" && uid != found {
			return ""
		}
		uid = found
	}
	return uid
}

// readUID is the UID of the pod that the process with this directory belongs to.
func readUID(process string) string {
	text, err := input.Read(filepath.Join(process, "cgroup"), input.NoLink, maxCgroup)
	return model.Either(err == nil, uidOf(string(text)), "")
}

// walkAgain is how long the cgroups are not walked again for one that was not among them.
const walkAgain = 10 * time.Second

// Process is the pod of a process that runs, by its directory in /proc; or, where cgroup is not 0, of one that has ended and
// had the cgroup of that number below top, where a cgroup2 file system is mounted. It is empty for none, the name for one that
// has no folder for its logs.
func (f *Finder) Process(dir string, cgroup uint64, top string) (uid, namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cgroup == 0 {
		uid = readUID(dir)
	} else {
		var known bool
		if uid, known = f.groups[cgroup]; !known && time.Since(f.walked) > walkAgain {
			f.walk(top)
			uid = f.groups[cgroup]
		}
	}
	if uid == "" {
		return "", "", ""
	}
	logs, _ := logFolders(f.root) // of what cannot be read there are no names
	return uid, logs[uid].namespace, logs[uid].name
}

// walk learns the cgroups. On kernels of 64 bits a cgroup's number is its inode.
func (f *Finder) walk(top string) {
	f.groups, f.walked = map[uint64]string{}, time.Now()
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it may have gone
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && len(f.groups) < maxGroups {
			f.groups[st.Ino] = uidOf("0::" + strings.TrimPrefix(path, top))
		}
		return nil
	})
}

// logFolders are the pods that have a folder for their logs, by UID. That of several pods has none.
func logFolders(root string) (map[string]owner, error) {
	out := map[string]owner{}
	list, err := input.Entries(filepath.Join(root, logDir), maxFolders, "folders")
	for _, folder := range list {
		// Names of Kubernetes hold no such character.
		parts := strings.Split(folder, "_")
		if len(parts) != 3 {
			continue
		}
		o := owner{parts[0], parts[1], parts[2]}
		if o.check() != nil {
			continue
		}
		old, ok := out[o.uid]
		out[o.uid] = model.Either(ok && old != o, owner{}, o)
	}
	return out, err
}
