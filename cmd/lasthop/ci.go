package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/report"
)

// beside is what a command writes beside its output, for a CI job or to forward.
type beside struct {
	reports flags.Reports
	github  bool
	// files are those of reports, once they are open.
	files map[string]*product
}

// openBeside makes the files before the observation, so that a name that cannot be used is told at once.
func (a *app) openBeside(b *beside) (err error) {
	b.files = map[string]*product{}
	for _, kind := range slices.Sorted(maps.Keys(b.reports)) {
		if b.files[kind], err = a.produce("--report "+kind, b.reports[kind]); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) writeBeside(b beside, r report.Document, j report.Judgement) error {
	var err error
	for kind, file := range b.files {
		err = errors.Join(err, ignoreClosedPipe(b.reports.Write(file, kind, r, j)), file.Close())
	}
	if b.github {
		a.annotate(report.Annotations(r, j)...)
		err = errors.Join(err, a.summarize(r, j))
	}
	return err
}

// annotate tells GitHub's runner, which reads both the standard output and this.
func (a *app) annotate(list ...report.Annotation) {
	for _, x := range list {
		fmt.Fprintln(flags.Document(a.stderr), x)
	}
}

// summarize appends to the job's summary, unless a link is in its place.
func (a *app) summarize(r report.Document, j report.Judgement) error {
	if os.Getenv(flags.SummaryVariable) == "" {
		a.say("warning: no summary: %[1]s is not set; with sudo, use --preserve-env=%[1]s", flags.SummaryVariable)
		return nil
	}
	var text bytes.Buffer
	if err := report.Summary(&text, r, j); err != nil {
		return err
	}
	return flags.Summarize(text.Bytes(), unix.O_NOFOLLOW|unix.O_NONBLOCK)
}

// annotateScenario puts the mistakes in a scenario's file on the run, if that is wanted.
func (a *app) annotateScenario(b beside, err error) {
	mistakes, is := errors.AsType[scenario.Errors](err)
	if !b.github || !is {
		return
	}
	for _, m := range mistakes {
		a.annotate(report.Annotation{
			Level: "error", Title: "lasthop: error in the scenario", Text: m.Msg,
			File: inWorkspace(m.File), Line: m.Line, Column: m.Column,
		})
	}
}

// inWorkspace is a file's name as GitHub knows it: relative to the repository.
func inWorkspace(file string) string {
	root := os.Getenv("GITHUB_WORKSPACE")
	whole, err := filepath.Abs(file)
	relative, err2 := filepath.Rel(root, whole)
	if root == "" || errors.Join(err, err2) != nil || !filepath.IsLocal(relative) {
		relative = filepath.Clean(file)
	}
	return filepath.ToSlash(relative)
}
