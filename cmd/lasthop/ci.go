package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// beside is what a command writes beside its output, for a CI job.
type beside struct {
	junit  junitFile
	github bool
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

func (b *beside) register(f *pflag.FlagSet) {
	f.Var(&b.junit, "report", "write the verdict to a new file as well, for CI: junit=FILE")
	f.BoolVar(&b.github, "github", false, "annotate a GitHub Actions run on the standard error, and append to the job's summary")
}

// besideFile is an open beside: made before the observation, so that a name that cannot
// be used is told at once.
type besideFile struct {
	*app
	file   *product
	github bool
}

func (a *app) openBeside(b beside) (*besideFile, error) {
	out := &besideFile{app: a, github: b.github}
	if b.junit == "" {
		return out, nil
	}
	var err error
	out.file, err = a.produce("--report junit", string(b.junit))
	return out, err
}

// discard takes away what was made in vain.
func (b *besideFile) discard() error {
	if b.file == nil {
		return nil
	}
	return b.file.discard()
}

// write writes what is wanted of a report.
func (b *besideFile) write(r report.Document, j report.Judgement) error {
	var err error
	if b.file != nil {
		err = errors.Join(ignoreClosedPipe(report.JUnit(b.file, r, j)), b.file.Close())
	}
	if b.github {
		b.annotate(report.Annotations(r, j)...)
		err = errors.Join(err, b.summarize(r, j))
	}
	return err
}

// annotate tells GitHub's runner, which reads both the standard output and this.
func (a *app) annotate(list ...report.Annotation) {
	for _, x := range list {
		fmt.Fprintln(a.stderr, x)
	}
}

// summaryVariable names the file that GitHub shows at the end of a job.
const summaryVariable = "GITHUB_STEP_SUMMARY"

// summarize appends to the job's summary. The file is the runner's, so it is made if it
// is not there, and no link is followed.
func (b *besideFile) summarize(r report.Document, j report.Judgement) error {
	name := os.Getenv(summaryVariable)
	if name == "" {
		b.say("warning: no summary: %s is not set; sudo --preserve-env=%s passes it on", summaryVariable, summaryVariable)
		return nil
	}
	var text bytes.Buffer
	if err := report.Summary(&text, r, j); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("append to %s: %w", summaryVariable, err)
	}
	_, err = f.Write(text.Bytes())
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("append to %s: %w", summaryVariable, err)
	}
	return nil
}

// judgement is what makes a report fail.
func (o *observing) judgement() report.Judgement {
	return report.Judgement{FailOn: model.Severity(o.failOn.Value), Strict: o.strict}
}

// trial is a scenario's verdict.
func trial(s *scenario.Scenario, wrong []string) *report.Trial {
	return &report.Trial{Name: s.Name, File: inWorkspace(s.File), Line: s.Expect.Line, Wrong: wrong}
}

// annotateScenario puts the mistakes in a scenario's file on the run, if that is wanted.
func (a *app) annotateScenario(b beside, err error) {
	var mistakes scenario.Errors
	if !b.github || !errors.As(err, &mistakes) {
		return
	}
	for _, m := range mistakes {
		a.annotate(report.Annotation{
			Level: "error", Title: "lasthop: a mistake in the scenario", Text: m.Msg,
			File: inWorkspace(m.File), Line: m.Line, Column: m.Column,
		})
	}
}

// inWorkspace is a file's name as GitHub knows it: relative to the repository.
func inWorkspace(file string) string {
	root := os.Getenv("GITHUB_WORKSPACE")
	whole, err := filepath.Abs(file)
	if root == "" || err != nil {
		return filepath.ToSlash(filepath.Clean(file))
	}
	relative, err := filepath.Rel(root, whole)
	if err != nil || relative == ".." || strings.HasPrefix(relative, "../") {
		return filepath.ToSlash(filepath.Clean(file))
	}
	return filepath.ToSlash(relative)
}
