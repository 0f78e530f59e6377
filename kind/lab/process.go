package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// readyFD is the descriptor on which a traffic process says that it is ready,
// by readyWord.
const (
	readyFD   = 3
	readyWord = "ready\n"
)

// StartTraffic runs argv, which must end up in ServeTraffic for the lab, as a
// process of its own session, and returns when its traffic flows. The process
// lives on without its parent; Down ends it.
func StartTraffic(ctx context.Context, id string, argv []string) (err error) {
	if len(argv) == 0 {
		return errors.New("start traffic: no command")
	}
	if _, err := Find(id); err != nil {
		return err
	}
	defer func() { err = wrap(err, "start traffic of lab %q", id) }()
	if pid := trafficPID(id); pid != 0 {
		return fmt.Errorf("%w (process %d)", ErrBusy, pid)
	}
	out, err := os.Create(filepath.Join(pathOf(id), logFile))
	if err != nil {
		return err
	}
	defer out.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	if err := awaitReady(ctx, r); err != nil {
		// It may have ended by itself.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("%w%s", err, said(out.Name()))
	}
	return cmd.Process.Release()
}

// awaitReady waits for the word, the end of the pipe, or that of ctx.
func awaitReady(ctx context.Context, r *os.File) error {
	defer expire(ctx, r)()
	buf := make([]byte, len(readyWord))
	_, err := io.ReadFull(r, buf)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil || string(buf) != readyWord:
		return errors.New("the process ended before it was ready")
	}
	return nil
}

// said is the end of what a process wrote, to go behind an error.
func said(file string) string {
	data, err := os.ReadFile(file)
	data = bytes.TrimSpace(data)
	if err != nil || len(data) == 0 {
		return ""
	}
	const most = 2000
	return ": " + string(data[max(0, len(data)-most):])
}

// ServeTraffic is the body of the process that StartTraffic starts. It says on
// descriptor 3 when the traffic flows, and returns when its time is over, on
// SIGTERM or SIGINT, or when the lab is gone; none of them is an error.
func ServeTraffic(ctx context.Context, id string) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	l, d, err := enlist(ctx, id)
	if err != nil {
		return err
	}
	defer d.file.Close()
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer cancel()
		l.watch(ctx, d)
	}()
	var said error
	err = l.RunTraffic(ctx, func() { said = sayReady() })
	cancel()
	<-watched
	// The last counts are the whole ones; a lab that is gone needs none.
	_ = l.writeStats(d)
	return errors.Join(err, said)
}

// enlist writes this process down as the lab's traffic. The directory that it
// returns is open, to know it again by, and not locked.
func enlist(ctx context.Context, id string) (l *Lab, d *dir, err error) {
	if d, err = lockDir(ctx, id); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if l, err = Find(id); err != nil {
		return nil, nil, err
	}
	if pid := trafficPID(id); pid != 0 {
		return nil, nil, fmt.Errorf("run traffic of lab %q: %w (process %d)", id, ErrBusy, pid)
	}
	self, err := identify(os.Getpid())
	if err != nil {
		return nil, nil, err
	}
	if err := d.write(trafficFile, self); err != nil {
		return nil, nil, err
	}
	return l, d, wrap(unix.Flock(int(d.file.Fd()), unix.LOCK_UN), "unlock lab %q", id)
}

// watch writes the counts down from time to time, and returns when the lab is
// gone or ctx ends.
func (l *Lab) watch(ctx context.Context, d *dir) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if l.writeStats(d) != nil {
			return
		}
	}
}

// writeStats writes the counts of this process's traffic down, if the lab is
// still the one whose directory it is.
func (l *Lab) writeStats(d *dir) error {
	if !sameDir(d.file, d.path) {
		return ErrNotFound
	}
	l.mu.Lock()
	t := l.traffic
	l.mu.Unlock()
	if t == nil {
		return nil
	}
	return d.write(statsFile, t.stats())
}

// sayReady reports to the process that started this one. Where a user ran the
// command by hand there is no pipe, and descriptor 3 is something else.
func sayReady() error {
	var st unix.Stat_t
	if err := unix.Fstat(readyFD, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil
	}
	f := os.NewFile(readyFD, "ready")
	_, err := io.WriteString(f, readyWord)
	if errors.Is(err, unix.EPIPE) {
		err = nil // the parent waits no longer
	}
	return wrap(errors.Join(err, f.Close()), "report ready")
}

// trafficOf reads which process runs the lab's traffic.
func trafficOf(id string) (process, error) {
	var p process
	err := readJSON(id, trafficFile, &p)
	return p, err
}

// trafficPID is the lab's traffic process, 0 when none runs.
func trafficPID(id string) int {
	p, err := trafficOf(id)
	if err != nil || !p.running() {
		return 0
	}
	return p.PID
}

// stopTraffic ends the lab's traffic process, if one runs.
func stopTraffic(ctx context.Context, id string) error {
	p, err := trafficOf(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return p.kill(ctx)
}

// heldPrefix begins the names of the files that say which processes a lab's pods have, beside
// the traffic's, which is no pod's.
const heldPrefix = "held-"

// resolver gives a pod a process with a resolv.conf of its own, or ends it.
func resolver(x *target) error {
	file := heldPrefix + x.node.Name + "-" + x.pod.Name
	if x.undo {
		return endHeld(x.ctx, x.id, file)
	}
	text := fmt.Sprintf("search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver %s\noptions ndots:5\n", x.Via)
	return x.inPod(func(pod *space) error { return pod.hold(x.ctx, filepath.Join(pathOf(x.id), file), text) })
}

// hold starts a process in the namespace that has its own /etc, with a resolv.conf in it, and
// writes down which it is.
func (sp *space) hold(ctx context.Context, file, resolvConf string) (err error) {
	defer func() { err = wrap(err, "start a process in %s", sp.name) }()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", `mount -t tmpfs tmpfs /etc; printf %s "$1" >/etc/resolv.conf
echo ready >&3; exec sleep infinity 3>&-`, "sh", resolvConf)
	cmd.Dir, cmd.ExtraFiles, cmd.SysProcAttr = "/", []*os.File{w}, &unix.SysProcAttr{Setsid: true}
	if err := sp.ns.Do(cmd.Start); err != nil {
		return err
	}
	w.Close()
	p, err := identify(cmd.Process.Pid)
	err = errors.Join(err, writeJSON(file, p), awaitReady(ctx, r))
	if err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return cmd.Process.Release()
}

// endHeld ends one of the processes of a lab's pods.
func endHeld(ctx context.Context, id, file string) error {
	var p process
	if err := readJSON(id, file, &p); err != nil {
		return err
	}
	return errors.Join(p.kill(ctx), os.Remove(filepath.Join(pathOf(id), file)))
}
