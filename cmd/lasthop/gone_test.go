package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// TestReaderGoes takes the reader away after the first that was written. On a node
// where nothing happens little or nothing more is written; the command ends all the
// same, quietly and with status 0.
func TestReaderGoes(t *testing.T) {
	t.Parallel()
	node := nstest.New(t)
	observe := []string{"--netns", node.Path(), "--engine", "state"}
	pipe := func(t *testing.T) (reader, writer *os.File) {
		t.Helper()
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		return reader, writer
	}
	for _, tt := range []struct {
		name  string
		args  []string
		open  func(*testing.T) (reader, writer *os.File)
		first string
	}{
		{"watch, a pipe", []string{"watch"}, pipe, `"kind":"Lost"`},
		{"watch, a terminal", []string{"watch"}, openTerminal, `"kind":"Lost"`},
		{"record, a pipe", []string{"record", "-"}, pipe, "lasthop\n"},
		{"samples, a pipe", []string{"watch", "--pcap", "-"}, pipe, "lasthop"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			reader, writer := tt.open(t)
			cmd := exec.CommandContext(t.Context(), "lasthop", append(tt.args, observe...)...)
			var stderr strings.Builder
			cmd.Stdout, cmd.Stderr = writer, &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			writer.Close()
			readUntil(t, reader, tt.first)
			reader.Close()
			if err := cmd.Wait(); err != nil || strings.Contains(stderr.String(), "lasthop:") {
				t.Errorf("%v, %q", err, stderr.String())
			}
		})
	}
}

// TestOutputFull writes to a disk that is full.
func TestOutputFull(t *testing.T) {
	t.Parallel()
	node := nstest.New(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { full.Close() })
	for _, args := range [][]string{
		{"check", "--for", "100ms"}, {"check", "--for", "100ms", "-o", "json"}, {"watch"}, {"record", "-"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "lasthop", append(args, "--netns", node.Path(), "--engine", "state")...)
			var stderr strings.Builder
			cmd.Stdout, cmd.Stderr = full, &stderr
			err := cmd.Run()
			if cmd.ProcessState.ExitCode() != exitCannot || !strings.Contains(stderr.String(), "no space left on device") {
				t.Errorf("%v, %q", err, stderr.String())
			}
		})
	}
}
