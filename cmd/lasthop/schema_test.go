package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lasthop/lasthop/probe/report"
)

// published is the schema, with the fields that it has and no others.
var published = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(report.Schema))
	if err != nil {
		return nil, err
	}
	for _, d := range doc.(map[string]any)["$defs"].(map[string]any) {
		if d := d.(map[string]any); d["properties"] != nil {
			d["additionalProperties"] = false
		}
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema", doc); err != nil {
		return nil, err
	}
	return c.Compile("schema")
})

// documentsIn holds each document in a text to the schema, and returns their kinds.
func documentsIn(text []byte) (kinds []string, err error) {
	schema, err := published()
	if err != nil {
		return nil, err
	}
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var raw json.RawMessage
		if err := dec.Decode(&raw); errors.Is(err, io.EOF) {
			return kinds, nil
		} else if err != nil {
			return kinds, err
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			return kinds, err
		}
		if err := schema.Validate(doc); err != nil {
			return kinds, err
		}
		kinds = append(kinds, doc.(map[string]any)["kind"].(string))
	}
}

// checkDocuments wants documents of the published schema.
func checkDocuments(t *testing.T, text []byte) {
	t.Helper()
	if kinds, err := documentsIn(text); err != nil || len(kinds) == 0 {
		t.Errorf("%d documents: %v", len(kinds), err)
	}
}

// validDocuments prints the kinds of the documents in a file, all of which must be of
// the published schema.
func validDocuments(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: documents FILE")
	}
	kinds, err := documentsIn([]byte(ts.ReadFile(args[0])))
	ts.Check(err)
	_, err = io.WriteString(ts.Stdout(), strings.Join(kinds, "\n")+"\n")
	ts.Check(err)
}
