package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/pcap"
)

func registerPcap(f *pflag.FlagSet, file *string) {
	f.StringVar(file, "pcap", "", "write the samples of dropped packets to the new `FILE`, as pcapng")
}

// create creates a new file; it never overwrites one.
func create(what, name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, usagef("%s %s: the file exists, and lasthop overwrites nothing: name another, or remove it", what, name)
	}
	if err != nil {
		return nil, usagef("%s: %w", what, err)
	}
	return f, nil
}

// pcapFile takes samples; nil discards them.
type pcapFile struct {
	file   *os.File
	writer *pcap.Writer
}

func createPcap(name string) (*pcapFile, error) {
	if name == "" {
		return nil, nil
	}
	f, err := create("--pcap", name)
	if err != nil {
		return nil, err
	}
	w, err := pcap.NewWriter(f)
	if err != nil {
		return nil, errors.Join(err, discard(f))
	}
	return &pcapFile{f, w}, nil
}

// discard closes and removes a file.
func discard(f *os.File) error { return errors.Join(f.Close(), os.Remove(f.Name())) }

func (p *pcapFile) write(samples []model.Sample) error {
	if p == nil {
		return nil
	}
	return p.writer.Write(samples)
}

func (p *pcapFile) close() error {
	if p == nil {
		return nil
	}
	if err := p.file.Close(); err != nil {
		return fmt.Errorf("--pcap: %w", err)
	}
	return nil
}

// discard removes the file, since nothing was observed.
func (p *pcapFile) discard() error {
	if p == nil {
		return nil
	}
	return discard(p.file)
}
