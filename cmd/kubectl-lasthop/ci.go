package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
	"github.com/lasthop/lasthop/probe/report"
)

// What lasthop writes for a CI job, in the container.
const (
	junitFile   = "report.xml"
	summaryFile = "summary.md"
)

// junit is the file of --report, if there is one.
func (o *options) junit() string { return strings.TrimPrefix(o.report, "junit=") }

// forCI are the flags and variables with which lasthop on a node writes what a CI job wants: the files come back.
func (o *options) forCI() (args, env []string) {
	if o.report != "" {
		args = append(args, "--report=junit="+path.Join(remote.Dir, junitFile))
	}
	if o.github {
		env = append(env, flags.SummaryVariable+"="+path.Join(remote.Dir, summaryFile))
	}
	return args, env
}

// writeForCI writes what a CI job wants of what several nodes tell.
func (r *runner) writeForCI(found report.Document) error {
	j := r.Judgement()
	var err error
	if file := r.junit(); file != "" {
		var text bytes.Buffer
		err = errors.Join(report.JUnit(&text, found, j), r.write(file, text.Bytes()))
	}
	if !r.github {
		return err
	}
	for _, x := range report.Annotations(found, j) {
		r.mu.Lock()
		fmt.Fprintln(flags.Document(r.stderr), x)
		r.mu.Unlock()
	}
	var text bytes.Buffer
	return errors.Join(err, report.Summary(&text, found, j), r.summarize(text.Bytes()))
}

// summarize appends to the summary of the job.
func (r *runner) summarize(text []byte) error {
	if os.Getenv(flags.SummaryVariable) == "" {
		r.say("warning: no summary: %s is not set", flags.SummaryVariable)
		return nil
	}
	return flags.Summarize(text, 0)
}
