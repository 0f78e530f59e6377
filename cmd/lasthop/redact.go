package main

import (
	"os"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/redact"
)

// redactKey is the environment variable with the key of --redact.
const redactKey = "LASTHOP_REDACT_KEY"

// redactor is nil unless names and addresses are to be replaced. What a command is asked
// about is chosen by the real ones. Each goroutine takes its own.
func (o *observing) redactor() *redact.Redactor {
	if !o.redact {
		return nil
	}
	return redact.New(os.Getenv(redactKey))
}

// diagnose judges what is shown: with other names and addresses, if they are replaced.
func (o *observing) diagnose() func(*model.Snapshot) []model.Finding {
	hide := o.redactor()
	return func(s *model.Snapshot) []model.Finding { return diagnose.Diagnose(hide.Snapshot(s)) }
}
