package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/report"
)

// openBeside makes the files of --report before the observation, so that a name that cannot be used is told at once.
func (a *app) openBeside(o *observing) (err error) {
	o.files = map[string]*product{}
	for _, kind := range slices.Sorted(maps.Keys(o.Reports)) {
		if o.files[kind], err = a.produce("--report "+kind, o.Reports[kind]); err != nil {
			return err
		}
	}
	return nil
}

// tell prints a report, and writes what a CI job wants of it. The job's summary is not written where a link is in its place.
func (a *app) tell(o *observing, r report.Document, j report.Judgement) error {
	err := a.print(o, r)
	for kind, file := range o.files {
		err = errors.Join(err, ignoreClosedPipe(o.Reports.Write(file, kind, r, j)), file.Close())
	}
	return errors.Join(err, o.TellGitHub(a.stderr, a.say, r, j, unix.O_NOFOLLOW|unix.O_NONBLOCK))
}

// annotateScenario puts the mistakes in a scenario's file on the run, if that is wanted.
func (a *app) annotateScenario(o *observing, err error) {
	mistakes, is := errors.AsType[scenario.Errors](err)
	if !o.GitHub || !is {
		return
	}
	for _, m := range mistakes {
		flags.Annotate(a.stderr, report.Annotation{
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
