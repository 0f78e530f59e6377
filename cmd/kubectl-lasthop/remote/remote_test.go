//go:build unix

package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// ends are both ends of a call.
type ends struct {
	dir            string
	stdout, stderr bytes.Buffer
	files          map[string]string
	near           Near
	// served is what Serve returned.
	served chan error
	// fromFar and toFar are the near end's streams.
	fromFar *io.PipeReader
	toFar   *io.PipeWriter
}

// helper is the variable that makes the test the command that waits for a signal.
const helper = "LASTHOP_TEST_WAITS"

func TestMain(m *testing.M) {
	if os.Getenv(helper) != "" {
		os.Exit(untilAsked())
	}
	os.Exit(m.Run())
}

// untilAsked is a command that ends by a signal. A shell may miss one that comes before
// it waits.
func untilAsked() int {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("up")
	if <-asked == syscall.SIGINT {
		return 130
	}
	return 7
}

// serve starts a far end that runs a program.
func serve(ctx context.Context, t *testing.T, tool string) *ends {
	t.Helper()
	e := &ends{dir: t.TempDir(), files: map[string]string{}, served: make(chan error, 1)}
	inFar, inNear := io.Pipe()
	outNear, outFar := io.Pipe()
	e.fromFar, e.toFar = outNear, inNear
	e.near = Near{Stdout: &e.stdout, Stderr: &e.stderr, File: func(name string, content []byte) error {
		e.files[name] = string(content)
		return nil
	}}
	go func() {
		_, err := Serve(ctx, inFar, outFar, tool, e.dir)
		outFar.Close()
		e.served <- err
	}()
	t.Cleanup(func() {
		inNear.Close()
		outNear.Close()
	})
	return e
}

// shell runs a script.
func (e *ends) shell(t *testing.T, script string, s Start) (int, error) {
	t.Helper()
	s.Args = []string{"-c", script}
	return e.call(t, s)
}

func (e *ends) call(t *testing.T, s Start) (int, error) {
	t.Helper()
	status, err := Call(t.Context(), e.fromFar, e.toFar, s, e.near)
	e.toFar.Close()
	e.fromFar.Close()
	return status, err
}

func TestCall(t *testing.T) {
	e := serve(t.Context(), t, "sh")
	script := `cat given; echo "$COLORTERM" >&2; printf 'made\nhere' >made; exit 3`
	status, err := e.shell(t, script, Start{Env: []string{"COLORTERM=truecolor"}, Files: map[string][]byte{"given": []byte("of the user")}})
	if err != nil || status != 3 {
		t.Errorf("status %d, error %v; want 3", status, err)
	}
	if e.stdout.String() != "of the user" || e.stderr.String() != "truecolor\n" {
		t.Errorf("standard output %q, standard error %q", &e.stdout, &e.stderr)
	}
	// What was given is not sent back.
	if want := map[string]string{"made": "made\nhere"}; !maps.Equal(e.files, want) {
		t.Errorf("files %q, want %q", e.files, want)
	}
	if err := <-e.served; err != nil {
		t.Error(err)
	}
}

// TestWhole sends more than any pipe or frame of the kernel holds.
func TestWhole(t *testing.T) {
	e := serve(t.Context(), t, "sh")
	const size = 3 << 20
	if status, err := e.shell(t, `head -c 3145728 /dev/zero`, Start{}); status != 0 || err != nil {
		t.Fatalf("status %d, error %v", status, err)
	}
	if e.stdout.Len() != size {
		t.Errorf("%d bytes came, want %d", e.stdout.Len(), size)
	}
}

// TestLateReader attaches when the far end has long said that it is there.
func TestLateReader(t *testing.T) {
	e := serve(t.Context(), t, "sh")
	for range 3 {
		if k, _, err := readFrame(e.fromFar); k != kindHello || err != nil {
			t.Fatalf("got %q, %v", k, err)
		}
	}
	if status, err := e.shell(t, `echo early`, Start{}); status != 0 || err != nil || e.stdout.String() != "early\n" {
		t.Errorf("status %d, error %v, output %q", status, err, &e.stdout)
	}
}

// sayer closes a channel at the first output.
type sayer struct {
	once sync.Once
	said chan struct{}
}

func (s *sayer) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.said) })
	return len(p), nil
}

// waits runs the command that ends by a signal.
func (e *ends) waits(t *testing.T) (status int, err error) {
	t.Helper()
	return e.call(t, Start{Env: []string{helper + "=1"}})
}

func TestInterrupt(t *testing.T) {
	e := serve(t.Context(), t, "/proc/self/exe")
	up := &sayer{said: make(chan struct{})}
	e.near.Stdout, e.near.Interrupt = up, up.said
	if status, err := e.waits(t); status != 130 || err != nil {
		t.Errorf("status %d, error %v; want 130", status, err)
	}
}

// TestDeadline ends the far end, as a kubelet does.
func TestDeadline(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := serve(ctx, t, "/proc/self/exe")
	up := &sayer{said: make(chan struct{})}
	e.near.Stdout = up
	go func() {
		<-up.said
		cancel()
	}()
	if status, err := e.waits(t); status != 7 || err != nil {
		t.Errorf("status %d, error %v; want 7", status, err)
	}
}

// TestNearEndGone asks the command to end when nobody wants it any more.
func TestNearEndGone(t *testing.T) {
	e := serve(t.Context(), t, "/proc/self/exe")
	up := &sayer{said: make(chan struct{})}
	e.near.Stdout = up
	go func() {
		<-up.said
		e.toFar.Close()
	}()
	if status, err := e.waits(t); status != 7 || err != nil {
		t.Errorf("status %d, error %v; want 7", status, err)
	}
	if err := <-e.served; err != nil {
		t.Error(err)
	}
}

// TestFarEndGone tells a connection that was lost from a command that ended.
func TestFarEndGone(t *testing.T) {
	var out bytes.Buffer
	w := &writer{w: &out}
	if err := errors.Join(w.frame(kindHello, nil), w.frame(kindOutput, []byte("half"))); err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	_, err := Call(t.Context(), &out, io.Discard, Start{}, Near{Stdout: &stdout})
	if !errors.Is(err, ErrLost) || stdout.String() != "half" {
		t.Errorf("error %v, output %q", err, &stdout)
	}
}

// typist resizes its terminal once that says begin, presses Enter until it shows the
// new size, and types a word then.
type typist struct {
	shown bytes.Buffer
	line  string
	size  string
	keys  io.Writer
	sizes chan<- Size
	typed sync.WaitGroup
}

func (y *typist) Write(p []byte) (int, error) {
	y.shown.Write(p)
	lines := strings.Split(y.line+string(p), "\n")
	last := len(lines) - 1
	y.line = lines[last]
	for _, line := range lines[:last] {
		switch line = strings.TrimSpace(line); {
		case line == "begin":
			y.typed.Go(func() { y.sizes <- Size{Rows: 50, Cols: 132} })
			y.press("\n")
		case line == "size "+y.size:
			y.press("word\n")
		case strings.HasPrefix(line, "size "):
			y.press("\n")
		}
	}
	return len(p), nil
}

// press does not wait for the keys to be read.
func (y *typist) press(keys string) {
	y.typed.Go(func() { io.WriteString(y.keys, keys) }) //nolint:errcheck // nobody may read any more
}

func TestTerminal(t *testing.T) {
	e := serve(t.Context(), t, "sh")
	keys, typing := io.Pipe()
	sizes := make(chan Size)
	y := &typist{size: "50 132", keys: typing, sizes: sizes}
	e.near.Stdout, e.near.Keys, e.near.Sizes = y, keys, sizes
	// Each line that is typed, empty or not, is answered by one.
	script := `set -e; stty -echo; stty size; echo begin
		while read -r word && [ "$word" != word ]; do size=$(stty size); echo "size $size"; done; echo "got $word"`
	status, err := e.shell(t, script, Start{Terminal: &Size{Rows: 24, Cols: 80}})
	keys.Close() //nolint:errcheck // it never fails
	y.typed.Wait()
	if status != 0 || err != nil {
		t.Fatalf("status %d, error %v: %s", status, err, &y.shown)
	}
	text := strings.ReplaceAll(y.shown.String(), "\r", "")
	if !strings.Contains(text, "24 80\nbegin\n") || !strings.HasSuffix(text, "size 50 132\ngot word\n") {
		t.Errorf("the terminal shows %q", text)
	}
}

// TestErrorTerminal gives only the standard error a terminal.
func TestErrorTerminal(t *testing.T) {
	e := serve(t.Context(), t, "sh")
	if status, err := e.shell(t, `[ -t 2 ] && [ ! -t 1 ] && [ ! -t 0 ]`, Start{ErrorTerminal: true}); status != 0 || err != nil {
		t.Errorf("status %d, error %v", status, err)
	}
}

// TestForeign is about an image that is not lasthop, or not as new.
func TestForeign(t *testing.T) {
	_, err := Call(t.Context(), strings.NewReader("lasthop: unknown command \"remote\""), io.Discard, Start{}, Near{})
	if !errors.Is(err, errNoFrame) {
		t.Errorf("error %v", err)
	}
}

func TestFileNames(t *testing.T) {
	e := serve(t.Context(), t, "sh")
	if _, err := e.shell(t, `:`, Start{Files: map[string][]byte{"../../outside": []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(e.dir, "outside")); err != nil {
		t.Errorf("a file leaves its directory: %v", err)
	}
}

func FuzzReadFrame(f *testing.F) {
	var whole bytes.Buffer
	w := &writer{w: &whole}
	w.object(kindStart, Start{Args: []string{"check"}}) //nolint:errcheck // a buffer takes all
	f.Add(whole.Bytes())
	f.Add([]byte("lasthop: unknown command"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for r := bytes.NewReader(data); ; {
			k, payload, err := readFrame(r)
			if err != nil {
				return
			}
			var again bytes.Buffer
			if err := (&writer{w: &again}).frame(k, payload); err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(data, again.Bytes()) {
				t.Fatalf("%q is read as %q", data, again.Bytes())
			}
		}
	})
}
