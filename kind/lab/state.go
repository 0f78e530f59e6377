package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/cluster"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// stateRoot is where labs keep their state, a directory each. It lies under
// /run, which does not outlive the namespaces.
const stateRoot = "/run/lasthop/labs"

// The files of a lab's directory.
const (
	labFile     = "lab.json"
	trafficFile = "traffic.json"
	statsFile   = "stats.json"
	logFile     = "traffic.log"
)

// Errors that callers distinguish.
var (
	// ErrNotFound says that no lab has the ID.
	ErrNotFound = errors.New("no such lab")
	// ErrExists says that a lab has the ID already, whole or not.
	ErrExists = errors.New("lab is there already")
	// ErrIncomplete says that a lab was never finished: its maker still
	// works on it, or ended before it could.
	ErrIncomplete = errors.New("lab is not whole")
)

// record is what a lab's directory says of it. It is written before anything
// is made, so that what is made can always be found.
type record struct {
	ID       string
	Created  time.Time
	Whole    bool
	Spaces   []string
	Scenario *scenario.Scenario
	// Tables are Options.Tables.
	Tables model.Backend
	// Cluster is the name of the cluster of kind that is the lab's, empty without
	// one. Roots are then the nodes' directories.
	Cluster string            `json:",omitempty"`
	Roots   map[string]string `json:",omitempty"`
}

// dir is a lab's directory, held open and locked: a process that builds a
// lab, changes it or takes it down has the lock, and loses it when it ends.
type dir struct {
	path string
	file *os.File
}

func pathOf(id string) string { return filepath.Join(stateRoot, id) }

// claimDir makes the directory of a new lab.
func claimDir(ctx context.Context, id string) (*dir, error) {
	for {
		if err := os.MkdirAll(stateRoot, 0o755); err != nil {
			return nil, fmt.Errorf("create %s: %w", stateRoot, err)
		}
		err := os.Mkdir(pathOf(id), 0o755)
		switch {
		case err == nil:
			d, err := lockDir(ctx, id)
			if err == nil || !errors.Is(err, ErrNotFound) {
				return d, err
			}
		case errors.Is(err, fs.ErrExist):
			return nil, fmt.Errorf("create lab %q: %w (lasthop lab down %s)", id, ErrExists, id)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("create lab %q: %w", id, err)
		}
		// Another process took the last lab down, and the directory with it.
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// lockDir opens and locks the directory of a lab. It waits for the lock
// until ctx ends.
func lockDir(ctx context.Context, id string) (*dir, error) {
	path := pathOf(id)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || scenario.CheckName(id) != nil {
		return nil, fmt.Errorf("open lab %q: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("open lab %q: %w", id, err)
	}
	d := &dir{path: path, file: f}
	if err := flock(ctx, f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock lab %q, which another process may hold: %w", id, err)
	}
	if !sameDir(f, path) {
		f.Close()
		return nil, fmt.Errorf("open lab %q: %w", id, ErrNotFound)
	}
	return d, nil
}

// flock takes the lock, asking again and again: a thread that blocks in the
// kernel could not be called off.
func flock(ctx context.Context, f *os.File) error {
	return poll(ctx, 20*time.Millisecond, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return false, nil
		}
		return true, err
	})
}

// sameDir reports whether the open directory is still the one at the path.
func sameDir(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

func (d *dir) close() { d.file.Close() }

// write replaces a file of the directory at once.
func (d *dir) write(name string, v any) error { return writeJSON(filepath.Join(d.path, name), v) }

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return wrap(os.Rename(path+".new", path), "write state")
}

// claim writes the record of a lab that nothing was made of yet. Until then nothing that
// is there counts as the lab's.
func (d *dir) claim(rec record) error {
	for _, name := range rec.Spaces {
		if _, err := os.Lstat(filepath.Join(netnsDir, name)); err == nil {
			return fmt.Errorf("bring lab %q up: network namespace %s is there already (ip netns del %s)", rec.ID, name, name)
		}
	}
	return d.write(labFile, rec)
}

// readJSON reads a file of a lab's directory.
func readJSON(id, name string, v any) error {
	data, err := os.ReadFile(filepath.Join(pathOf(id), name))
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	return wrap(json.Unmarshal(data, v), "read state %s", name)
}

// remove takes down all that the directory knows of, and then itself.
func (d *dir) remove(ctx context.Context) error {
	id := filepath.Base(d.path)
	errs := []error{stopTraffic(ctx, id)}
	held, err := filepath.Glob(filepath.Join(d.path, heldPrefix+"*"))
	errs = append(errs, err)
	for _, file := range held {
		errs = append(errs, endHeld(ctx, id, filepath.Base(file)))
	}
	// No more than is needed: a record of another version will do.
	var rec struct {
		Spaces  []string
		Cluster string
	}
	// A lab without a record has made nothing yet.
	if err := readJSON(id, labFile, &rec); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	errs = append(errs, unmountBPF(d.path))
	if rec.Cluster != "" {
		errs = append(errs, removeBeyond(id))
	}
	for _, name := range rec.Spaces {
		if !strings.HasPrefix(name, netnsPrefix) || strings.ContainsRune(name, '/') {
			errs = append(errs, fmt.Errorf("remove network namespace %q: not a lab's", name))
			continue
		}
		errs = append(errs, deleteNetns(name))
	}
	if rec.Cluster != "" {
		errs = append(errs, cluster.Delete(ctx, rec.Cluster, d.path))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take lab %q down: %w", id, err)
	}
	return removeDir(d.path)
}

// removeDir removes a lab's directory, and those above it when it was the last.
func removeDir(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	for p := filepath.Dir(path); p != "/run"; p = filepath.Dir(p) {
		if os.Remove(p) != nil {
			break // other labs are up
		}
	}
	return nil
}

// ids lists the labs that have a directory.
func ids() ([]string, error) {
	entries, err := os.ReadDir(stateRoot)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && scenario.CheckName(e.Name()) == nil {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out, nil
}

// process identifies a process beyond its number, which is used again.
type process struct {
	PID int
	// Start is when it began, in clock ticks since boot (field 22 of
	// /proc/PID/stat), and Boot which boot that was.
	Start uint64
	Boot  string
}

// identify describes a running process.
func identify(pid int) (process, error) {
	p := process{PID: pid}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return p, fmt.Errorf("read boot id: %w", err)
	}
	p.Boot = strings.TrimSpace(string(boot))
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, fmt.Errorf("identify process: %w", err)
	}
	// The second field, the name, may hold anything, also ") ".
	_, rest, _ := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]), " ")
	fields := strings.Fields(rest)
	const start = 22 - 3
	if len(fields) <= start {
		return p, fmt.Errorf("identify process %d: stat has %d fields", pid, len(fields))
	}
	p.Start, err = strconv.ParseUint(fields[start], 10, 64)
	return p, wrap(err, "identify process %d", pid)
}

// kill ends the process, if it is still that one, and waits until it is gone.
func (p process) kill(ctx context.Context) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	// The descriptor holds on to a process; only now is it worth looking
	// which one.
	if now, err := identify(p.PID); err != nil || now != p {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
	}
	// Where the process is our child, nobody else takes it from the table.
	if _, err := unix.Wait4(p.PID, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.ECHILD) {
		return fmt.Errorf("reap process %d: %w", p.PID, err)
	}
	return nil
}

// running reports whether the process is still that one, and no zombie.
func (p process) running() bool {
	now, err := identify(p.PID)
	if err != nil || now != p {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]), " ")
	return !strings.HasPrefix(state, "Z")
}
