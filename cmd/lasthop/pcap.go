package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/pcap"
	"github.com/lasthop/lasthop/probe/redact"
)

// pcapFile takes samples; nil discards them.
type pcapFile struct {
	file   *product
	writer *pcap.Writer
	// left says that the reader of a pipe has gone away.
	left bool
	hide *redact.Redactor
}

// createPcap begins the file for samples. If that is the standard output, what the
// command prints goes to standard error.
func (a *app) createPcap(o *observing) (*pcapFile, error) {
	name := o.Pcap
	if name == "" {
		return nil, nil
	}
	f, err := a.produce("--pcap", name)
	if err != nil {
		return nil, err
	}
	if f.isStdout() {
		a.stdout = a.stderr
	}
	p := &pcapFile{file: f, hide: o.redactor()}
	p.writer, err = pcap.NewWriter(f)
	return p, p.leave(err)
}

func (p *pcapFile) write(samples []model.Sample) error {
	if p == nil || p.left {
		return nil
	}
	return p.leave(p.writer.Write(p.hide.Samples(samples)))
}

// leave notes that the reader of a pipe has gone away, which is no error.
func (p *pcapFile) leave(err error) error {
	p.left = p.left || errors.Is(err, unix.EPIPE)
	return ignoreClosedPipe(err)
}

// abandoned reports whether samples are wanted, but the reader of the pipe that they go to has gone away.
func (p *pcapFile) abandoned() bool { return p != nil && (p.left || abandoned(p.file)) }

func (p *pcapFile) close() error {
	if p == nil {
		return nil
	}
	if err := p.file.Close(); err != nil {
		return fmt.Errorf("--pcap: %w", err)
	}
	return nil
}
