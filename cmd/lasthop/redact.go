package main

import (
	"os"

	"github.com/lasthop/lasthop/probe/redact"
)

// redactKey is the environment variable with the key of --redact.
const redactKey = "LASTHOP_REDACT_KEY"

// redactor is nil unless names and addresses are to be replaced. What a command is asked
// about is chosen by the real ones.
func (o *observing) redactor() *redact.Redactor {
	if o.redact && o.hider == nil {
		o.hider = redact.New(os.Getenv(redactKey))
	}
	return o.hider
}
