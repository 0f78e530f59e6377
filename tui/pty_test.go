package tui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// asProgram, in the environment, makes the test binary the program that is
// tested; its value says what happens in it.
const asProgram = "LASTHOP_TEST_SCREEN"

func TestMain(m *testing.M) {
	if how, ok := os.LookupEnv(asProgram); ok {
		os.Exit(program(how))
	}
	os.Exit(m.Run())
}

// program shows canned readings on its terminal, wired as a command would.
func program(how string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	source := newCanned(kubenetNode(41))
	o := Options{
		Reach:  whoReaches,
		Source: source, Window: time.Minute, Env: os.Environ(), Input: os.Stdin, Output: os.Stdout,
		Trace: kubenetPath, Export: func(model.Reading) (string, error) { return "/tmp/report.json", nil },
	}
	switch how {
	case "a job":
		o.Job = true
	case "panic in update":
		o.Trace = nil
		o.Describe = func(model.Sample) string { panic("a reading that nobody expected") }
	case "panic in a command":
		o.Export = func(model.Reading) (string, error) { panic("a disk that nobody expected") }
	case "quiet", "busy", "flood":
		go publish(ctx, source, how)
	}
	out, err := Run(ctx, o)
	switch {
	case errors.Is(err, context.Canceled):
		return 130
	case err != nil:
		fmt.Println("error:", err)
		return 3
	case out.Print:
		fmt.Printf("summary: %d findings\n", len(out.Reading.Findings))
	}
	return 0
}

// publish gives ten seconds of readings, then one that says it is the last. A
// flood never ends and never holds still.
func publish(ctx context.Context, source *canned, how string) {
	for i := 1; how == "flood" || i <= 10; i++ {
		r := kubenetNode(41)
		r.At = noon.Add(time.Duration(i) * time.Second)
		if how != "quiet" {
			for j := range r.Findings {
				r.Findings[j].Packets += uint64(i * 7 * (j + 1))
				r.Findings[j].Title = fmt.Sprintf("%s %d", r.Findings[j].Title, i)
			}
			for j := range r.Snapshot.Traffic.Drops {
				r.Snapshot.Traffic.Drops[j].Packets += uint64(i * 11)
			}
		}
		if i == 10 && how != "flood" {
			r.Findings[0].Title = "the last reading"
		}
		select {
		case source.readings <- r:
		case <-ctx.Done():
			return
		}
		// A frame is drawn of each reading: that is what is measured.
		pause := time.NewTimer(2 * time.Second / fps)
		if how == "flood" {
			pause.Reset(time.Millisecond)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

// console is a terminal with a program in it.
type console struct {
	t    *testing.T
	file *os.File
	tty  string
	cmd  *exec.Cmd
	// exited is closed when the program has ended, done when all that it wrote
	// was read besides.
	exited, done chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	vt      vt10x.Terminal
	raw     bytes.Buffer
	held    []byte
	skip    bool
	ended   bool
	before  unix.Termios
}

// openConsole starts the program in a new terminal. With a command it is that
// which is run, the program being "$0".
func openConsole(t *testing.T, w, h int, how string, env []string, command ...string) *console {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, exited: make(chan struct{}), done: make(chan struct{}), vt: vt10x.New()}
	if w > 0 && h > 0 {
		c.show(w, h)
	}
	c.changed = sync.NewCond(&c.mu)
	c.cmd = exec.Command(self)
	if len(command) > 0 {
		c.cmd = exec.Command(command[0], append(command[1:], self)...)
	}
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	c.file, c.tty = master, tty.Name()
	c.before = c.settings()
	c.cmd.Env = append([]string{asProgram + "=" + how, "TERM=xterm", "PATH=" + os.Getenv("PATH")}, env...)
	if err := pty.Setsize(master, &pty.Winsize{Cols: uint16(w), Rows: uint16(h)}); err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = tty, tty, tty
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		c.cmd.Wait() //nolint:errcheck // the status is looked at
		// Until here it was open, so that nothing written got lost.
		tty.Close()
		close(c.exited)
	}()
	go func() {
		c.listen()
		<-c.exited
		c.mu.Lock()
		c.ended = true
		c.changed.Broadcast()
		c.mu.Unlock()
		close(c.done)
	}()
	t.Cleanup(func() {
		c.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-c.done
		master.Close()
	})
	return c
}

// listen shows what the program writes, until it and its terminal end.
func (c *console) listen() {
	buf := make([]byte, 4096)
	for {
		n, err := c.file.Read(buf)
		c.mu.Lock()
		c.raw.Write(buf[:n])
		c.vt.Write(c.public(buf[:n])) //nolint:errcheck // it never fails
		c.changed.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// public leaves out the private sequences "CSI < = >", of which the emulator
// makes something else.
func (c *console) public(p []byte) []byte {
	var out []byte
	for _, b := range p {
		switch {
		case c.skip:
			c.skip = b < 0x40 || b > 0x7e
		case len(c.held) == 2 && (b == '<' || b == '=' || b == '>'):
			c.skip, c.held = true, c.held[:0]
		case len(c.held) == 0 && b == 0x1b, len(c.held) == 1 && b == '[':
			c.held = append(c.held, b)
		default:
			out = append(append(out, c.held...), b)
			c.held = c.held[:0]
		}
	}
	return out
}

// text is the screen, without the spaces at the ends of its lines.
func (c *console) text() string {
	var b strings.Builder
	w, h := c.vt.Size()
	for y := range h {
		line := make([]rune, w)
		for x := range w {
			if line[x] = c.vt.Cell(x, y).Char; line[x] == 0 {
				line[x] = ' '
			}
		}
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

// patience is when a program that shows nothing of what is awaited is given up.
const patience = time.Minute

// await waits until the screen is as wanted; it fails once the program ended
// without that, or patience did.
func (c *console) await(what string, ok func(screen string) bool) {
	c.t.Helper()
	late := false
	watchdog := time.AfterFunc(patience, func() {
		c.mu.Lock()
		late = true
		c.changed.Broadcast()
		c.mu.Unlock()
	})
	defer watchdog.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !ok(c.text()) {
		if c.ended || late {
			c.t.Fatalf("the program (ended: %v) never showed %s. The screen:\n%s", c.ended, what, c.text())
		}
		c.changed.Wait()
	}
}

func (c *console) awaitText(words string) {
	c.t.Helper()
	c.await(words, func(s string) bool { return strings.Contains(s, words) })
}

func (c *console) write(s string) {
	c.t.Helper()
	if _, err := c.file.WriteString(s); err != nil {
		c.t.Fatal(err)
	}
}

// show makes the emulator that large. It forgets to set tab stops in the columns
// that are new.
func (c *console) show(w, h int) {
	c.vt.Resize(w, h)
	stops := "\x1b7"
	for x := 9; x <= w; x += 8 {
		stops += fmt.Sprintf("\x1b[%dG\x1bH", x)
	}
	c.vt.Write([]byte(stops + "\x1b8")) //nolint:errcheck // it never fails
}

func (c *console) resize(w, h int) {
	c.t.Helper()
	c.mu.Lock()
	c.show(w, h)
	c.mu.Unlock()
	if err := pty.Setsize(c.file, &pty.Winsize{Cols: uint16(w), Rows: uint16(h)}); err != nil {
		c.t.Fatal(err)
	}
}

// written is how many bytes have reached the terminal.
func (c *console) written() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raw.Len()
}

// wait waits for the end and wants the terminal as it was.
func (c *console) wait(status int) {
	c.t.Helper()
	<-c.done
	if raw := c.raw.String(); strings.Contains(raw, "\x1b[?1049h") && !strings.HasSuffix(strings.TrimRight(raw, "\r"), "\n") {
		c.t.Errorf("what comes next stands behind the last line: %q", raw[max(0, len(raw)-80):])
	}
	if got := c.cmd.ProcessState.ExitCode(); got != status {
		c.t.Errorf("the status is %d, not %d (%v). The screen:\n%s", got, status, c.cmd.ProcessState, c.text())
	}
	c.restored()
}

// restored fails unless the terminal is as it was before.
func (c *console) restored() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vt.Mode()&vt10x.ModeAltScreen != 0 {
		c.t.Error("the alternate screen was not left")
	}
	if !c.vt.CursorVisible() {
		c.t.Error("the cursor was left hidden")
	}
	raw := c.raw.String()
	if on, off := strings.Count(raw, ansi.SetModeBracketedPaste), strings.Count(raw, ansi.ResetModeBracketedPaste); on > off {
		c.t.Errorf("bracketed paste was turned on %d times and off %d times", on, off)
	}
	if now := c.settings(); now != c.before {
		c.t.Errorf("the terminal's settings were %+v and are %+v", c.before, now)
	}
}

// settings are those of the terminal. To ask for the descriptor itself would
// make reading from it block.
func (c *console) settings() unix.Termios {
	c.t.Helper()
	conn, err := c.file.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	var got *unix.Termios
	var failed error
	err = conn.Control(func(fd uintptr) { got, failed = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	if err := errors.Join(err, failed); err != nil {
		c.t.Fatal(err)
	}
	return *got
}

// plainEnv is a terminal of which the emulator knows all that is sent.
var plainEnv = []string{"LC_ALL=C", "NO_COLOR=yes"}

// expected is the frame that a screen of that size shows after the keys.
func expected(t *testing.T, w, h int, keys string) string {
	t.Helper()
	s := opened(t, Options{Env: plainEnv, Export: func(model.Reading) (string, error) { return "", nil }}, w, h, kubenetNode(41))
	press(t, s, keys)
	lines := strings.Split(ansi.Strip(frame(s)), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// TestTerminal runs the screen in a terminal of each size, through all tabs and
// a resize, and leaves it.
func TestTerminal(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {120, 40}, {160, 50}, {40, 12}} {
		t.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(t *testing.T) {
			t.Parallel()
			c := openConsole(t, size[0], size[1], "", plainEnv)
			c.awaitText("Enter to start")
			c.write("\r")
			var pressed []string
			for _, key := range []string{"", "2", "3", "4", "5", "?"} {
				c.write(key)
				pressed = append(pressed, key)
				want := expected(t, size[0], size[1], strings.Join(pressed, " "))
				c.await("the frame of "+key+":\n"+want, func(s string) bool { return s == want })
			}
			c.write("?1")
			for _, to := range [][2]int{{100, 30}, {30, 8}, {200, 60}, size} {
				c.resize(to[0], to[1])
				want := expected(t, to[0], to[1], "")
				c.await(fmt.Sprintf("the frame at %v:\n%s", to, want), func(s string) bool { return s == want })
			}
			c.write("q")
			c.wait(0)
			if c.raw.Len() == 0 || bytes.ContainsAny(c.raw.Bytes(), "\x80\xff") || strings.Contains(c.raw.String(), "\x1b[91") {
				t.Error("colours, or more than 7 bits, were written")
			}
		})
	}
}

func TestTerminalStartsOnResize(t *testing.T) {
	t.Parallel()
	c := openConsole(t, 0, 0, "", plainEnv)
	c.awaitText("Enter to start")
	c.resize(80, 24)
	c.awaitText("[1]Findings")
	c.write("Q")
	c.awaitText("summary: 4 findings")
	c.wait(0)
}

// TestTerminalEsc sends Esc and another key at once, as they come over a slow
// connection.
func TestTerminalEsc(t *testing.T) {
	t.Parallel()
	c := openConsole(t, 80, 24, "", plainEnv)
	c.awaitText("Enter to start")
	c.write("\r\r")
	c.awaitText("(likely)")
	c.write("\x1b2")
	want := expected(t, 80, 24, "2")
	c.await("the frame of 2:\n"+want, func(s string) bool { return s == want })
	c.write("/led\x1b\r")
	path := expected(t, 80, 24, "2 enter")
	c.await("the frame of the first pod's path:\n"+path, func(s string) bool { return s == path })
	c.write("\x1bQ")
	c.awaitText("summary: 4 findings")
	c.wait(0)
}

func TestTerminalColors(t *testing.T) {
	t.Parallel()
	c := openConsole(t, 80, 24, "", []string{"LANG=C.UTF-8"})
	c.awaitText("Enter to start")
	c.write("\ry")
	c.awaitText("clipboard")
	c.write("\x03")
	c.wait(0)
	for what, seq := range map[string]string{"red, and a sign beside it": "\x1b[91;1m✕ 2 CRIT", "OSC 52": "\x1b]52;c;"} {
		if !bytes.Contains(c.raw.Bytes(), []byte(seq)) {
			t.Errorf("%s was not written: %q", what, c.raw.String())
		}
	}
}

func TestTerminalSignals(t *testing.T) {
	for name, sig := range map[string]os.Signal{"SIGTERM": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP, "SIGINT": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := openConsole(t, 80, 24, "", plainEnv)
			c.awaitText("Enter to start")
			c.write("\r")
			c.awaitText("[1]Findings")
			if err := c.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			c.wait(130)
		})
	}
}

// TestTerminalGone is a terminal that is closed under the program.
func TestTerminalGone(t *testing.T) {
	t.Parallel()
	c := openConsole(t, 80, 24, "busy", plainEnv)
	c.awaitText("Enter to start")
	c.write("\r")
	c.awaitText("[1]Findings")
	c.hangUp()
	<-c.done
	if got := c.cmd.ProcessState.ExitCode(); got != 130 && got != 3 {
		t.Errorf("the status is %d (%v)", got, c.cmd.ProcessState)
	}
}

// hangUp takes the terminal away, as when its window is closed.
func (c *console) hangUp() {
	c.t.Helper()
	if err := c.file.Close(); err != nil {
		c.t.Fatal(err)
	}
}

func TestTerminalPanic(t *testing.T) {
	for how, keys := range map[string]string{"panic in update": "4", "panic in a command": "e"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := openConsole(t, 80, 24, how, plainEnv)
			c.awaitText("Enter to start")
			c.write("\r")
			c.awaitText("[1]Findings")
			c.write(keys)
			c.wait(3)
		})
	}
	// At this size the view itself asks for what panics.
	t.Run("panic in view", func(t *testing.T) {
		t.Parallel()
		c := openConsole(t, 160, 50, "panic in update", plainEnv)
		c.awaitText("Enter to start")
		c.write("\r")
		c.wait(3)
	})
}

// TestTerminalSuspend stops the program under a shell, and lets it go on.
func TestTerminalSuspend(t *testing.T) {
	t.Parallel()
	c := openConsole(t, 80, 24, "a job", plainEnv, "sh", "-c", `set -m; "$0"; echo stopped with $?; read -r x; fg >/dev/null; echo again with $?; read -r x; fg >/dev/null; echo ended with $?`)
	c.awaitText("Enter to start")
	c.write("\r2")
	c.awaitText("[2]Pods")
	want := expected(t, 80, 24, "2")
	for _, shell := range []string{"stopped with", "again with"} {
		c.write("\x1a")
		c.awaitText(shell)
		c.restored()
		c.write("\n")
		c.await("the same frame again:\n"+want, func(s string) bool { return s == want })
	}
	c.write("q")
	c.awaitText("ended with 0")
	c.wait(0)
}

// TestTerminalQuiet holds that ten seconds write next to nothing when nothing
// changes, and little when something does.
func TestTerminalQuiet(t *testing.T) {
	for name, x := range map[string]struct {
		how        string
		w, h, most int
	}{
		// The time axis grows by a few cells.
		"quiet": {"quiet", 80, 24, 1_600}, "busy": {"busy", 80, 24, 12_000},
		// 20 KiB a second are what a slow line takes.
		"busy and large": {"busy", 200, 60, 10 * 20 << 10},
	} {
		how, most := x.how, x.most
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := openConsole(t, x.w, x.h, how, []string{"LANG=C.UTF-8", "COLORTERM=truecolor"})
			c.awaitText("Enter to start")
			c.write("\r")
			c.awaitText("[1]Findings")
			before := c.written()
			c.awaitText("the last reading")
			if n := c.written() - before; n > most {
				t.Errorf("%d bytes were written in ten seconds, more than %d", n, most)
			} else {
				t.Logf("%d bytes in ten seconds", n)
			}
			c.write("q")
			c.wait(0)
		})
	}
}

// TestTerminalStalls is a terminal that takes nothing more: the program still
// ends when it is told to.
func TestTerminalStalls(t *testing.T) {
	t.Parallel()
	c := openConsole(t, 300, 100, "flood", plainEnv)
	c.awaitText("Enter to start")
	c.resize(301, 100)
	c.awaitText("[1]Findings")
	c.stop()
	c.write("\x0c")
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-c.exited
	if got := c.cmd.ProcessState.ExitCode(); got != 130 {
		t.Errorf("the status is %d", got)
	}
}

// stop makes the terminal take nothing from the program, as ctrl+s does, or a
// connection that hangs.
func (c *console) stop() {
	c.t.Helper()
	fd, err := unix.Open(c.tty, unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, unix.TCXONC, unix.TCOOFF); err != nil {
		c.t.Fatal(err)
	}
}
