package report_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/report"
)

// schema compiles the published schema. Strict forbids fields that it does not have.
func schema(t *testing.T, strict bool) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(report.Schema))
	if err != nil {
		t.Fatal(err)
	}
	if strict {
		closeObjects(doc)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("urn:lasthop:v1alpha1", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("urn:lasthop:v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeObjects(v any) {
	switch x := v.(type) {
	case map[string]any:
		if _, ok := x["properties"]; ok && x["type"] == "object" {
			x["additionalProperties"] = false
		}
		for _, child := range x {
			closeObjects(child)
		}
	case []any:
		for _, child := range x {
			closeObjects(child)
		}
	}
}

// documents are the golden documents. In those with hostile text, words of the kernel
// and of lasthop are others than there are.
func documents(t *testing.T) map[string][]any {
	t.Helper()
	out := map[string][]any{}
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(file, "hostile") {
			continue
		}
		switch filepath.Ext(file) {
		case ".json":
			out[file] = []any{fromJSON(t, text)}
		case ".yaml":
			var doc any
			if err := yaml.Unmarshal(text, &doc); err != nil {
				t.Fatal(err)
			}
			again, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			out[file] = []any{fromJSON(t, again)}
		case ".ndjson":
			for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
				out[file] = append(out[file], fromJSON(t, lines.Bytes()))
			}
		}
	}
	return out
}

func fromJSON(t *testing.T, text []byte) any {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestSchemaHoldsForGoldenFiles(t *testing.T) {
	strict, published := schema(t, true), schema(t, false)
	kinds := map[string]bool{}
	for file, docs := range documents(t) {
		for _, doc := range docs {
			if err := strict.Validate(doc); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			// Readers meet fields of newer versions.
			more := doc.(map[string]any)
			kinds[more["kind"].(string)] = true
			more["fieldOfTomorrow"] = "x"
			if err := published.Validate(more); err != nil {
				t.Errorf("%s, with a new field: %v", file, err)
			}
			delete(more, "kind")
			if err := published.Validate(more); err == nil {
				t.Errorf("%s: a document without its kind is taken", file)
			}
		}
	}
	for _, kind := range []string{"Report", "Path", "Finding", "Drop", "MACRewrite", "Ledger", "Lost"} {
		if !kinds[kind] {
			t.Errorf("no golden file has a %s", kind)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	s := schema(t, false)
	for name, change := range map[string]func(map[string]any){
		"a count below 0":      func(d map[string]any) { d["lost"].(map[string]any)["events"] = json.Number("-1") },
		"another version":      func(d map[string]any) { d["apiVersion"] = "lasthop/v9" },
		"a missing list":       func(d map[string]any) { delete(d, "findings") },
		"an unknown severity":  func(d map[string]any) { d["findings"].([]any)[0].(map[string]any)["severity"] = "bad" },
		"a prefix for a pod":   func(d map[string]any) { d["findings"].([]any)[0].(map[string]any)["pods"] = []any{"10.0.0.0/8"} },
		"null instead of none": func(d map[string]any) { d["drops"] = nil },
	} {
		doc := documents(t)["testdata/two.json"][0].(map[string]any)
		if change(doc); s.Validate(doc) == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
