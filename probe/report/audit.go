package report

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// audited is the verdict of an audit without findings.
func (r Report) audited() string {
	a := r.Audit
	since := model.Either(a.Since.IsZero(), "", " that was alive before")
	verdict := fmt.Sprintf("no packet would die by the node's tables on any path%s (%s)", since, model.Quantity(a.Pairs, "path"))
	if n := len(a.Denied); n > 0 {
		verdict += "; policies deny " + model.Quantity(n, "path")
	}
	if n := len(a.Unsure); n > 0 {
		verdict += "; unknown: " + model.Quantity(n, "path")
	}
	return verdict
}

// audit prints what was followed, and what no finding is about.
func (p *printer) audit(r Report, names Names) {
	a := r.Audit
	p.field("audited", fmt.Sprintf("%s of %s by the tables alone: %d die, policies deny %d, unknown %d", model.Quantity(a.Pairs, "path"),
		model.Quantity(len(r.Snapshot.Pods), "pod"), len(a.Cut), len(a.Denied), len(a.Unsure)))
	if !a.Since.IsZero() {
		p.field("since", fmt.Sprintf("%s: %s died, %s came back", a.Since.UTC().Format(time.DateTime), model.Quantity(len(a.Cut), "path"),
			model.Quantity(len(a.Mended), "path")))
		p.field("came back", bounded(auditPairs(names, a.Mended))...)
	}
	p.field("dead", bounded(auditPairs(names, a.Cut))...)
	denied := auditPairs(names, a.Denied)
	p.field("denied", model.Either(r.Policies, denied, bounded(denied))...)
	p.field("unknown", bounded(auditPairs(names, a.Unsure))...)
}

// auditPairs are pairs in words, each with what is said of it: a finding, or a decision and who keeps it.
func auditPairs(names Names, list []model.AuditPair) []string {
	return model.Map(list, func(x model.AuditPair) string {
		reply := model.Either(x.Reply, ", replies", "")
		why := cmp.Or(string(x.Finding), strings.TrimPrefix(x.Keeper+": "+x.Decision, ": "))
		return strings.TrimSuffix(fmt.Sprintf("%s > %s%s: %s", Named(names, x.Pod), AuditEnd(names, &x), reply, why), ": ")
	})
}

// AuditEnd names a destination by what it is.
func AuditEnd(names Names, x *model.AuditPair) string {
	end := Named(names, x.To)
	if x.Port != 0 {
		end = Named(names, x.To) + fmt.Sprintf(" port %d/%s", x.Port, model.ProtoName(x.Proto))
	}
	what := string(x.Kind)
	if x.Name != "" {
		what += " " + x.Name
	}
	return fmt.Sprintf("%s, %s", end, what)
}

// The documents of an audit.
type (
	auditDoc struct {
		Pairs   int            `json:"pairs"`
		Dead    []auditPairDoc `json:"dead"`
		Denied  []auditPairDoc `json:"denied"`
		Unknown []auditPairDoc `json:"unknown"`
		// Since is when the state was recorded that this one is compared with: then Dead died since, and Mended came back.
		Since  string         `json:"since,omitempty"`
		Mended []auditPairDoc `json:"mended,omitempty"`
	}
	auditPairDoc struct {
		localDoc
		To     string          `json:"to"`
		ToName string          `json:"toName,omitempty"`
		Kind   model.AuditKind `json:"kind"`
		// Of is the range or service that the address stands for.
		Of    string `json:"of,omitempty"`
		Port  uint16 `json:"port,omitempty"`
		Proto string `json:"proto,omitempty"`
		// Reply: the packets arrive, and the replies do not.
		Reply   bool       `json:"reply,omitempty"`
		Where   string     `json:"where,omitempty"`
		Finding model.Code `json:"finding,omitempty"`
		By      string     `json:"by,omitempty"`
	}
)

func (names Names) audit(a *model.Audit) *auditDoc {
	if a == nil {
		return nil
	}
	pair := func(x model.AuditPair) auditPairDoc {
		return auditPairDoc{localDoc: names.local(x.Pod), To: addrText(x.To), ToName: names.of(x.To), Kind: x.Kind, Of: x.Name, Port: x.Port,
			Proto: model.Either(x.Proto == 0, "", model.ProtoName(x.Proto)), Reply: x.Reply, Where: x.Decision, Finding: x.Finding, By: x.Keeper}
	}
	d := &auditDoc{Pairs: a.Pairs, Dead: model.Map(a.Cut, pair), Denied: model.Map(a.Denied, pair), Unknown: model.Map(a.Unsure, pair)}
	if !a.Since.IsZero() {
		d.Since, d.Mended = instant(a.Since), model.Map(a.Mended, pair)
	}
	return d
}
