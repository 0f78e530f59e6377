package report

import _ "embed"

// Schema is the JSON Schema, draft 2020-12, of every document that is written: reports,
// paths, and each line of NDJSON.
//
//go:embed lasthop.schema.json
var Schema string
