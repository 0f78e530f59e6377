package main

import (
	"bytes"
	"errors"
	"path"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
	"github.com/lasthop/lasthop/probe/report"
)

// What lasthop writes for a CI job, or to forward, in the container.
const (
	junitFile   = "report.xml"
	htmlFile    = "report.html"
	summaryFile = "summary.md"
)

// reportFiles are the names there of the files of --report.
var reportFiles = map[string]string{flags.ReportJUnit: junitFile, string(report.HTML): htmlFile}

// forCI are the flags and variables with which lasthop on a node writes what a CI job wants: the files come back.
func (o *options) forCI() (args, env []string) {
	for kind := range o.Reports {
		args = append(args, "--report="+kind+"="+path.Join(remote.Dir, reportFiles[kind]))
	}
	if o.GitHub {
		env = append(env, flags.SummaryVariable+"="+path.Join(remote.Dir, summaryFile))
	}
	return args, env
}

// writeForCI writes what a CI job wants of what several nodes tell.
func (r *runner) writeForCI(found report.Document) error {
	j := r.Judgement()
	var err error
	for kind, file := range r.Reports {
		var text bytes.Buffer
		err = errors.Join(err, r.Reports.Write(&text, kind, found, j), r.write(file, text.Bytes()))
	}
	return errors.Join(err, r.TellGitHub(r.stderr, r.say, found, j, 0))
}
