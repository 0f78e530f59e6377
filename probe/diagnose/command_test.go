package diagnose

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/lasthop/lasthop/probe/model"
)

// tame stands behind each name from outside, and hostile does instead: whoever makes a link, a chain or a pod chooses
// its name. What cannot be typed is hostile as well.
const tame = "zq7"

var hostile = []string{
	"!pwned", "!!;pwned", "a'!pwned;pwned", "';pwned;'", "\\';pwned #", "$(pwned)`pwned`", `";pwned;"`, "x>pwned", "*", "~", "{a,b}", "  $HOME\\", "&&pwned&", "|pwned",
	"^p^pwned^", "ä\u2019;pwned",
}

var untypable = []string{"\npwned\n", "\rpwned\r", "\x03pwned\r", "\x1b[201~;pwned\r", "\x15pwned\r", "\t\t", "\x00;pwned", "\x01;pwned", "\xff;pwned", "\u202e;pwned", "\u0085pwned", "\ufffd;pwned"}

// pasted are the lines that were tried, but for their names, numbers and addresses.
var (
	pasted   sync.Map
	variable = regexp.MustCompile(`[\w./:-]*` + tame + `|[0-9a-f:.]*[0-9]+[0-9a-f:.]*`)
)

// quoted wants no fix to hand a shell more than words: the same node, with names that do harm, has the fixes that it
// has with names that do none, word for word.
func quoted(t *testing.T, s *model.Snapshot) {
	t.Helper()
	all := fixes(s, tame)
	var at []int
	for i, line := range all {
		if _, known := pasted.LoadOrStore(variable.ReplaceAllString(line, "#"), true); !known {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return
	}
	pick := func(lines []string) []string { return model.Map(at, func(i int) string { return lines[i] }) }
	plain := pick(all)
	sh := newShells(t, plain)
	want := sh.run(t, plain)
	turn := len(plain[0])
	for _, name := range []string{hostile[turn%len(hostile)], untypable[turn%len(untypable)]} {
		others := fixes(s, name)
		if len(others) != len(all) {
			t.Errorf("with %q there are other fixes:\n%q\n%q", name, all, others)
			return
		}
		lines := pick(others)
		got := sh.run(t, lines)
		for i := range lines {
			expected := strings.ReplaceAll(want[i], tame, name)
			switch {
			case expected == want[i]:
			case strings.HasPrefix(lines[i], "# no command "):
				expected = ""
			case slices.Contains(untypable, name) && !strings.Contains(got[i], name):
				continue // a rule may have another handle
			}
			if got[i] != expected {
				t.Errorf("%s\nruns %q\nwant %q", lines[i], got[i], expected)
			}
		}
	}
}

// fixes are those of the node with something behind each name.
func fixes(s *model.Snapshot, behind string) []string {
	names := map[string]bool{}
	for _, l := range s.Links {
		names[l.Name] = true
	}
	for _, p := range s.Pods {
		names[p.Interface], names[p.NetnsName] = true, true
	}
	for _, c := range s.Chains {
		names[c.Name] = c.Hook == ""
	}
	delete(names, "")
	named := renamed("", reflect.ValueOf(*s), func(field, text string) string {
		switch field {
		case "Namespace", "ResourceGroup", "VNet", "VNetResourceGroup", "Subnet", "RouteTable", "RouteTableResourceGroup", "Handle", "Comment":
			if text != "" {
				return text + behind
			}
		case "Text":
			return remarked(text, names, behind)
		}
		if names[text] {
			return text + behind
		}
		for _, of := range []string{".conf.", ".neigh."} {
			if before, rest, ok := strings.Cut(text, of); ok {
				if link, setting, ok := strings.Cut(rest, "."); ok && names[link] {
					return before + of + link + behind + "." + setting
				}
			}
		}
		return text
	}).Interface().(model.Snapshot)
	var out []string
	for _, f := range Diagnose(&named) {
		out = append(append(out, f.Fix...), f.Next...)
	}
	return out
}

// remarked is the text of a rule with a comment and other names, as iptables-save quotes them.
func remarked(text string, names map[string]bool, behind string) string {
	save := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	}
	words := strings.Split(text, " ")
	for i, w := range words {
		if names[w] {
			words[i] = save(w + behind)
		}
	}
	return strings.Join(append(words, "-m comment --comment", save("it is"+behind)), " ")
}

// renamed is a copy of a value with other strings, which stand in fields.
func renamed(field string, v reflect.Value, rename func(field, text string) string) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.String:
		out.SetString(rename(field, v.String()))
	case reflect.Slice:
		if v.IsNil() {
			return out
		}
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(renamed(field, v.Index(i), rename))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				return out // an address or a time
			}
			out.Field(i).Set(renamed(v.Type().Field(i).Name, v.Field(i), rename))
		}
	}
	return out
}

// shells are an interactive bash with a history, in a terminal, and sh. Each command that they find writes its words.
type shells struct {
	dir, bin, log string
	terminal      *os.File
	unread        bytes.Buffer
}

const prompt, more = "<ready>", "<open>"

// hanging is longer than a shell takes for anything here, on a machine that others use as well.
const hanging = 2 * time.Minute

// recorder writes the words of a command to a file of its own, since those of a pipeline run at the same time.
const recorder = "#!/bin/sh\nprintf '%s\\0' \"${0##*/}\" \"$@\" >>\"$LOG/$$\"\n"

var commandWord = regexp.MustCompile(`[a-z][a-z0-9-]*`)

func newShells(t *testing.T, lines []string) *shells {
	t.Helper()
	root := t.TempDir()
	s := &shells{dir: filepath.Join(root, "dir"), bin: filepath.Join(root, "bin"), log: filepath.Join(root, "log")}
	for _, dir := range []string{s.dir, s.bin, s.log} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(s.bin, "pwned"), filepath.Join(s.dir, "matched by *")} {
		if err := os.WriteFile(file, []byte(recorder), 0o755); err != nil { //nolint:gosec // a command of this test
			t.Fatal(err)
		}
	}
	for _, w := range commandWord.FindAllString(strings.Join(lines, " "), -1) {
		if err := os.Symlink("pwned", filepath.Join(s.bin, w)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	s.start(t)
	return s
}

// start starts bash, with a command in its history.
func (s *shells) start(t *testing.T) {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	s.terminal = master
	s.unread.Reset()
	if err := pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 1 << 14}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "--norc", "--noprofile", "-i")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.Dir, cmd.Env = s.dir, append(s.env(), "PS1="+prompt, "PS2="+more, "TERM=dumb", "HISTFILE=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	late := time.AfterFunc(hanging, func() { cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	t.Cleanup(func() {
		late.Stop()
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // it was killed
		master.Close()
	})
	s.await(t, "")
	s.paste(t, "pwned once")
	s.written(t)
}

func (s *shells) env() []string {
	return []string{"PATH=" + s.bin, "LOG=" + s.log, "HOME=/nowhere", "LC_ALL=C.UTF-8"}
}

// run is what each line runs in either shell; both must run the same.
func (s *shells) run(t *testing.T, lines []string) []string {
	t.Helper()
	out := make([]string, len(lines))
	for i, line := range lines {
		cmd := exec.Command("sh", "-c", line)
		if strings.ContainsRune(line, 0) {
			t.Errorf("a NUL in %q", line)
			continue
		}
		cmd.Dir, cmd.Env = s.dir, s.env()
		cmd.Run() //nolint:errcheck // words for a person are no command
		out[i] = s.written(t)
		s.paste(t, line)
		if got := s.written(t); got != out[i] {
			t.Errorf("%s\nbash runs %q\nsh runs   %q", line, got, out[i])
		}
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 1 {
		t.Errorf("a line wrote a file: %v %v", left, err)
	}
	return out
}

// paste types a line. Where the shell waits for more, as after "if the rule is intended", none of it runs.
func (s *shells) paste(t *testing.T, line string) {
	t.Helper()
	fmt.Fprintf(s.terminal, "%s\r", line)
	if s.await(t, line) == more {
		s.start(t)
	}
}

// await reads up to the next prompt.
func (s *shells) await(t *testing.T, line string) string {
	t.Helper()
	buf := make([]byte, 4096)
	for {
		for _, p := range []string{prompt, more} {
			if i := bytes.Index(s.unread.Bytes(), []byte(p)); i >= 0 {
				s.unread.Next(i + len(p))
				return p
			}
		}
		n, err := s.terminal.Read(buf)
		if err != nil {
			t.Fatalf("bash: %v, after the line %q: %q", err, line, s.unread.String())
		}
		s.unread.Write(buf[:n])
	}
}

// written are the words of the commands that ran since it was last asked.
func (s *shells) written(t *testing.T) string {
	t.Helper()
	var ran []string
	err := filepath.WalkDir(s.log, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.Remove(path)
		}
		ran = append(ran, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ran)
	return strings.Join(ran, "\n")
}
