package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// hostile is a recording of a key with a document, and of counts that columns may follow.
func hostile(t *testing.T, head Head, doc string, columns []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, head)
	check(t, err)
	content := func(doc string, columns []byte) []byte {
		raw := append(binary.AppendUvarint(nil, uint64(len(doc))), doc...)
		return w.plain.EncodeAll(append(raw, columns...), nil)
	}
	check(t, w.frame(kindKey, time.Unix(1, 0), content(doc, nil)))
	check(t, w.frame(kindCounts, time.Unix(2, 0), content(`{}`, columns)))
	return b.Bytes()
}

// TestBounds refuses recordings that stand for far more than they hold, with little memory, and says the bound.
func TestBounds(t *testing.T) {
	many := func(n int, entry string) string { return "[" + strings.Repeat(entry+",", n-1) + entry + "]" }
	const million = 1 << 20
	one := `{"Snapshot":{"Traffic":{"Peers":[{}]}}}`
	for name, tt := range map[string]struct {
		head    Head
		doc     string
		columns []byte
		want    string
	}{
		"pods":         {doc: `{"Snapshot":{"Pods":` + many(million-10, `{}`) + `}}`, want: "more than 16384 pods"},
		"by any name":  {doc: `{"Snapshot":{"\u0070ODS":` + many(million-10, `{}`) + `}}`, want: "more than 16384 pods"},
		"links":        {doc: `{"Snapshot":{"Links":` + many(1<<16+1, `{}`) + `}}`, want: "more than 65536 links"},
		"drops":        {doc: `{"Snapshot":{"Traffic":{"Drops":` + many(1<<16+1, `{}`) + `}}}`, want: "more than 65536 kinds of drops"},
		"findings":     {doc: `{"Findings":` + many(1<<14+1, `{}`) + `}`, want: "more than 16384 findings"},
		"addresses":    {doc: `{"Snapshot":{"Pods":[{"Addresses":` + many(1<<16+1, `""`) + `}]}}`, want: "more than 65536 addresses"},
		"structs":      {doc: `{"Snapshot":{"Neighbors":` + many(million, `{}`) + `}}`, want: "more than 1048576 structs"},
		"values":       {doc: `{"Snapshot":{"Node":{"PluginBy":` + many(9*million, `""`) + `}}}`, want: "more than 8388608 values"},
		"a text":       {doc: `{"Snapshot":{"Node":{"Name":"` + strings.Repeat("a", million+1) + `"}}}`, want: "more than 1048576 bytes"},
		"escapes":      {doc: `{"Snapshot":{"Node":{"Name":"` + strings.Repeat(`\"`, million) + `"}}}`, want: "more than 1048576 bytes"},
		"a frame":      {doc: strings.Repeat(" ", 65*million), want: "more than 67108864 bytes"},
		"columns":      {doc: one, columns: binary.AppendUvarint([]byte{0}, 32*million), want: "columns do not match"},
		"head":         {head: Head{Writer: strings.Repeat("a", million)}, doc: one, want: "want at most 65536"},
		"other twice":  {doc: `{"Snapshot":{"Pods":` + many(9000, `{}`) + `,"Pods":` + many(9000, `{}`) + `}}`},
		"a large node": {doc: `{"Snapshot":{"Pods":` + many(1<<14, `{}`) + `}}`},
		"backslashes":  {doc: `{"Snapshot":{"Node":{"PluginBy":` + many(million, `"\\"`) + `}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			tt.columns = append(tt.columns, make([]byte, 32*million)...)
			file := hostile(t, tt.head, tt.doc, tt.columns)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f, err := Open(bytes.NewReader(file), int64(len(file)))
			if err == nil {
				defer f.Close()
				_, err = f.Reading(0)
				if err == nil {
					_, err = f.Reading(1)
				}
			}
			runtime.ReadMemStats(&after)
			if tt.want == "" {
				check(t, err)
				return
			}
			var format *FormatError
			if !errors.As(err, &format) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%d bytes: %v, want %q", len(file), err, tt.want)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 256<<20 {
				t.Errorf("%d bytes: took %d MiB", len(file), took>>20)
			}
		})
	}
}

// TestWriterBounds: what could not be read again is not written.
func TestWriterBounds(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Head{})
	check(t, err)
	s := &model.Snapshot{Window: model.Window{End: time.Unix(1, 0)}, Pods: make([]model.Pod, 1<<14+1)}
	err = w.Write(model.Reading{Point: model.Point{Snapshot: s, Whole: true}})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d pods", 1<<14)) {
		t.Errorf("wrote %d pods: %v", len(s.Pods), err)
	}
}
