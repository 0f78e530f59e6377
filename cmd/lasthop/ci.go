package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/report"
)

// beside is what a command writes beside its output, for a CI job.
type beside struct {
	junit  junitFile
	github bool
	// file is that of junit, once it is open.
	file *product
}

// junitFile is the flag --report.
type junitFile string

func (j *junitFile) String() string { return string(*j) }
func (j *junitFile) Type() string   { return "junit=FILE" }

func (j *junitFile) Set(s string) error {
	kind, file, _ := strings.Cut(s, "=")
	if kind != "junit" || file == "" {
		return errors.New("want junit=FILE")
	}
	*j = junitFile(file)
	return nil
}

// openBeside makes the file before the observation, so that a name that cannot be used is told at once.
func (a *app) openBeside(b *beside) (err error) {
	if b.junit != "" {
		b.file, err = a.produce("--report junit", string(b.junit))
	}
	return err
}

func (a *app) writeBeside(b beside, r report.Document, j report.Judgement) error {
	var err error
	if b.file != nil {
		err = errors.Join(ignoreClosedPipe(report.JUnit(b.file, r, j)), b.file.Close())
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
