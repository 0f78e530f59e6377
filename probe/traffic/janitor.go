package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/lasthop/lasthop/probe/netns"
)

// The descriptors that a janitor inherits.
const (
	// janitorPipe is the end of a pipe whose other end only the main process has: it ends when that process does.
	// What comes are indices of links: see making.
	janitorPipe = 3
	// janitorNumber is the socket that keeps the main process's number taken, with clsact. With tcx, links follow the pipe.
	janitorNumber = 4
)

// janitor is a process of our own that removes our filters if this one is killed, or the last one to hold our links.
type janitor struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// startJanitor starts a command that calls Janitor, in the node's namespace, with what it inherits behind the pipe.
func startJanitor(ns *netns.NS, cmd *exec.Cmd, files ...*os.File) (*janitor, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start janitor: %w", err)
	}
	defer theirs.Close()
	cmd.ExtraFiles = append([]*os.File{janitorPipe - 3: theirs}, files...)
	cmd.Dir = "/"
	// A session of its own, which ^C on the terminal does not reach.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A new process has the namespace of the thread that starts it.
	if err := ns.Do(cmd.Start); err != nil {
		return nil, errors.Join(fmt.Errorf("start janitor: %w", err), ours.Close())
	}
	return &janitor{cmd, ours}, nil
}

// making tells the janitor of the link that is about to get a qdisc, and with 0 that it has a filter, or has got
// no qdisc. Without a filter nothing says whose a qdisc is.
func (j *janitor) making(index int) error {
	if j == nil {
		return nil
	}
	// A janitor that was killed is no reason not to watch: the next start removes what is left.
	if err := binary.Write(j.pipe, binary.NativeEndian, int32(index)); err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("tell the janitor: %w", err)
	}
	return nil
}

// end ends the janitor, once nothing is left for it to do.
func (j *janitor) end() error {
	// Killed before the pipe is closed, which would set it to work.
	err := j.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	failed := j.cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](failed); !exited {
		err = errors.Join(err, failed)
	}
	return errors.Join(err, j.pipe.Close())
}

// Janitor waits until the process that started it as Config.Janitor has ended, by
// whatever way, and removes the filters and qdiscs that it has left. Links of tcx end with it: it has nothing to do.
func Janitor() error {
	// A signal to all processes ends the main one, which removes everything and then ends this one.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	if err := keepRights(); err != nil {
		return err
	}
	made, err := awaitEnd(os.NewFile(janitorPipe, "pipe"))
	if err != nil {
		return fmt.Errorf("wait for the end of the main process: %w", err)
	}
	name, err := unix.Getsockname(janitorNumber)
	if err != nil {
		return fmt.Errorf("read number: %w", err)
	}
	var n uint16
	at, ok := name.(*unix.SockaddrUnix)
	if !ok {
		return errors.New("read number: no unix socket")
	}
	if _, err := fmt.Sscanf(at.Name, numberName, &n); err != nil {
		return fmt.Errorf("read number: %w", err)
	}
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	r, err := openRTNL(ns)
	if err != nil {
		return err
	}
	defer r.close()
	return errors.Join(r.remove(n, everyLink), r.removeEmpty(made))
}

// awaitEnd returns which link was about to get a qdisc when the main process ended.
func awaitEnd(pipe io.Reader) (int, error) {
	var index, next int32
	for {
		switch err := binary.Read(pipe, binary.NativeEndian, &next); {
		case err == nil:
			index = next
		case errors.Is(err, io.EOF):
			return int(index), nil
		default:
			return 0, err
		}
	}
}

// keepRights gives up every capability but CAP_NET_ADMIN, which removing filters takes.
func keepRights() error {
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	left, err := cap.FromText("cap_net_admin=ep")
	if err = errors.Join(err, left.SetProc()); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}
