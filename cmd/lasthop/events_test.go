package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/catalogue"
	"github.com/lasthop/lasthop/probe/model"
)

func titleOf(code model.Code) string {
	return model.First(catalogue.Pages(), func(p *catalogue.Page) bool { return p.Code == code }).Title
}

// TestEvents: one Event when a kind of finding opens, not more often than each five minutes, and
// one when the last of it closes; and no more once the cluster refuses them.
func TestEvents(t *testing.T) {
	t.Parallel()
	posts := make(chan event, 100)
	refuse := false
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e event
		err := json.NewDecoder(r.Body).Decode(&e)
		switch {
		case err != nil || r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/default/events" || r.Header.Get("Authorization") != "Bearer secret":
			t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
		case refuse:
			w.WriteHeader(http.StatusForbidden)
		default:
			w.WriteHeader(http.StatusCreated)
		}
		posts <- e
	}))
	defer s.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &events{
		client: s.Client(), url: s.URL + "/api/v1/namespaces/default/events", token: token, node: "aks-1",
		open: map[model.Code]bool{}, at: map[model.Code]time.Time{}, send: make(chan event, 16),
	}
	said := make(chan string, 10)
	end := e.begin(t.Context(), func(format string, args ...any) { said <- args[0].(string) })
	row := model.Tracked{ID: 1, Finding: model.Finding{Code: "MissingUDR", Severity: model.Critical, Title: "no reply from 10.244.1.0/24"}}
	info := model.Tracked{ID: 2, Finding: model.Finding{Code: "UnexplainedDrop", Severity: model.Info}}
	begin := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	at := func(minute int, findings ...model.Tracked) {
		e.tell(findings, begin.Add(time.Duration(minute)*time.Minute))
	}
	want := func(kind, message string) {
		t.Helper()
		if got := <-posts; got.Type != kind || got.Message != message || got.Reason != "MissingUDR" || got.InvolvedObject["name"] != "aks-1" {
			t.Errorf("%+v", got)
		}
	}
	at(0)
	at(1, info)
	at(2, row, row, info)
	want("Warning", "no reply from 10.244.1.0/24; kubectl lasthop check aks-1 --last 20m")
	at(3, row)
	at(4)
	want("Normal", "no longer: "+titleOf("MissingUDR"))
	at(5, row)
	at(6)
	refuse = true
	at(20, row)
	<-posts
	if why := <-said; why != errForbidden.Error() {
		t.Error(why)
	}
	end()
	if len(posts) > 0 || len(said) > 0 || e.open["UnexplainedDrop"] {
		t.Errorf("more: %d, %d", len(posts), len(said))
	}
}
