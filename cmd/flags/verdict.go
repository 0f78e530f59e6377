package flags

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/redact"
	"github.com/lasthop/lasthop/probe/report"
)

// Verdict are the flags about which findings count, and when they fail.
type Verdict struct {
	Only, Skip Codes
	FailOn     Choice
	Strict     bool
}

// Severities are what FailOn may be.
func Severities() Choice {
	list := []model.Severity{model.Critical, model.Warning, model.Info}
	return Choice{Value: string(model.Warning), Of: model.Map(list, text)}
}

func text[T ~string](x T) string { return string(x) }

// Judges reports whether the user wants findings of that code.
func (v *Verdict) Judges(code model.Code) bool {
	return (len(v.Only) == 0 || slices.Contains(v.Only, code)) && !slices.Contains(v.Skip, code)
}

// Wants reports whether the user wants a finding, who asked about some addresses; none
// means all. A finding that names no pod is about the node, and so about all addresses.
func (v *Verdict) Wants(f *model.Finding, focus []netip.Addr) bool {
	return v.Judges(f.Code) && (len(focus) == 0 || f.Concerns(focus))
}

// Choose returns the findings that the user wants.
func (v *Verdict) Choose(findings []model.Finding, focus []netip.Addr) []model.Finding {
	return model.Filter(findings, func(f model.Finding) bool { return v.Wants(&f, focus) })
}

// Limits says what was not judged, by request.
func (v *Verdict) Limits() []string {
	var out []string
	if len(v.Only) > 0 {
		out = append(out, "judged only: "+v.Only.String())
	}
	if len(v.Skip) > 0 {
		out = append(out, "not judged: "+v.Skip.String())
	}
	return out
}

// Judgement is what makes a report fail.
func (v *Verdict) Judgement() report.Judgement {
	return report.Judgement{FailOn: model.Severity(v.FailOn.Value), Strict: v.Strict}
}

// Between is the path from a pod of one recorded node to one of another, with what all
// the recordings show. The ends have the names of their recordings.
func (v *Verdict) Between(all join.Result, near, far join.End, e path.Ends) report.Path {
	for _, end := range []*join.End{&near, &far} {
		i := slices.IndexFunc(all.Nodes, func(n model.NodeSeen) bool { return n.Recording == end.Name })
		end.Name = all.Nodes[i].Name
	}
	findings := v.Choose(all.Findings, []netip.Addr{e.Pod, e.To})
	p := report.Path{Snapshot: near.Snapshot, Far: far.Snapshot, Limits: v.Limits()}
	p.Path = join.Trace(near, far, findings, e)
	p.Take(findings)
	return p
}

// Formats are those of a report.
func Formats() Choice {
	return Choice{Value: string(report.Text), Of: model.Map(report.Formats(), text)}
}

// Reports is a repeatable flag for files that a verdict is also written to: by format, each once.
type Reports map[string]string

func (r *Reports) String() string {
	texts := model.Map(slices.Sorted(maps.Keys(*r)), func(kind string) string { return kind + "=" + (*r)[kind] })
	return strings.Join(texts, ", ")
}

// Type is what the usage calls the flag's value.
func (r *Reports) Type() string { return "html|junit=FILE" }

// Set adds a file.
func (r *Reports) Set(s string) error {
	kind, file, _ := strings.Cut(s, "=")
	if kind != ReportJUnit && kind != string(report.HTML) || file == "" {
		return errors.New("want html=FILE or junit=FILE")
	}
	if (*r)[kind] != "" {
		return fmt.Errorf("%s is given twice", kind)
	}
	if *r == nil {
		*r = Reports{}
	}
	(*r)[kind] = file
	return nil
}

// ReportJUnit is the format of Reports that is none of an output.
const ReportJUnit = "junit"

// Write writes a document in a format of Reports.
func (r *Reports) Write(w io.Writer, kind string, d report.Document, j report.Judgement) error {
	if kind == ReportJUnit {
		return report.JUnit(w, d, j)
	}
	return report.Write(w, d, report.Format(kind), report.Style{})
}

// Beside is what a command writes beside its output, for a CI job or to forward.
type Beside struct {
	Reports Reports
	GitHub  bool
}

// Draws reports whether a document draws paths: one beside the output, or that of a format.
func (b *Beside) Draws(output string) bool {
	drawn := []report.Format{report.Text, report.Wide, report.Markdown, report.HTML, report.SVG}
	return b.GitHub || b.Reports[string(report.HTML)] != "" || slices.Contains(drawn, report.Format(output))
}

// SummaryVariable names the file that GitHub shows at the end of a job.
const SummaryVariable = "GITHUB_STEP_SUMMARY"

// Annotate tells GitHub's runner, which reads both the standard output and the standard error.
func Annotate(stderr io.Writer, list ...report.Annotation) {
	for _, x := range list {
		fmt.Fprintln(Document(stderr), x)
	}
}

// TellGitHub annotates the run, and appends to the summary of the job, if that is wanted. say takes warnings, how are
// more flags of open.
func (b *Beside) TellGitHub(stderr io.Writer, say func(string, ...any), d report.Document, j report.Judgement, how int) error {
	if !b.GitHub {
		return nil
	}
	Annotate(stderr, report.Annotations(d, j)...)
	var text bytes.Buffer
	if err := report.Summary(&text, d, j); err != nil {
		return err
	}
	return Summarize(say, text.Bytes(), how)
}

// Summarize appends to the job's summary. The file is the runner's, so it is made if it is not there.
func Summarize(say func(string, ...any), text []byte, how int) error {
	if os.Getenv(SummaryVariable) == "" {
		say("warning: no summary: %[1]s is not set; with sudo, use --preserve-env=%[1]s", SummaryVariable)
		return nil
	}
	f, err := os.OpenFile(os.Getenv(SummaryVariable), os.O_WRONLY|os.O_APPEND|os.O_CREATE|how, 0o600)
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("append to %s: %w", SummaryVariable, err)
	}
	return nil
}

// RedactKey is the environment variable with the key of --redact.
const RedactKey = "LASTHOP_REDACT_KEY"

// Redactor replaces names and addresses in all that is written; it is nil unless that is wanted.
func Redactor(wanted bool) *redact.Redactor {
	if !wanted {
		return nil
	}
	return redact.New(os.Getenv(RedactKey))
}
