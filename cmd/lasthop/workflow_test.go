package main

import (
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"go.yaml.in/yaml/v3"
)

// exampleWorkflow is what users copy.
const exampleWorkflow = "../../docs/examples/lasthop.yml"

// notHere are the steps that cannot run without GitHub: what installs.
var notHere = map[string]bool{"install": true}

// sudo is what a runner has and a test need not be given.
const sudo = `sudo() { while [[ $1 == -* ]]; do shift; done; "$@"; }
`

type workflowStep struct {
	ID, Name, Uses, If, Run string
	Env                     map[string]string
}

// steps runs what a job of the example workflow runs, in its order, as GitHub's runner
// does: the rest of a job after a failure is what asks for it. $SCENARIO and $PLACE are the matrix's.
func steps(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: steps JOB")
	}
	text, err := os.ReadFile(exampleWorkflow)
	ts.Check(err)
	var workflow struct {
		Jobs map[string]struct{ Steps []workflowStep }
	}
	ts.Check(yaml.Unmarshal(text, &workflow))
	list := workflow.Jobs[args[0]].Steps
	if len(list) == 0 {
		ts.Fatalf("no job %s", args[0])
	}
	failed, said := false, ""
	for _, s := range list {
		if s.Run == "" || notHere[s.ID] || s.If == "failure()" && !failed || s.If == "" && failed {
			continue
		}
		for name, value := range s.Env {
			if value != "${{ matrix.scenario }}" && value != "${{ matrix.on }}" {
				ts.Fatalf("step %q: %s is set to %q", s.Name, name, value)
			}
		}
		// Labs of tests have names of their own.
		run := regexp.MustCompile(`(--id|lab down) ci\b`).ReplaceAllString(s.Run, "$1 "+ts.Getenv("LAB"))
		if strings.Contains(run, "${{") {
			ts.Fatalf("step %q wants what GitHub fills in", s.Name)
		}
		if err := ts.Exec("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", sudo+run); err != nil {
			ts.Logf("step %q: %v", s.Name, err)
			failed = true
		}
		said += ts.ReadFile("stderr")
	}
	_, err = io.WriteString(ts.Stderr(), said)
	ts.Check(err)
	if failed != neg {
		ts.Fatalf("the job failed: %v", failed)
	}
}
