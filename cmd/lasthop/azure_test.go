package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/collect/azure"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/report"
)

// cloudToken must be in nothing that lasthop writes.
const cloudToken = "eyJ0eXAi.cloud.token"

// azureOf is the metadata service of a scenario's observed node, and the resource manager of its cloud, as the faults left it. In
// refuse are parts of paths that its identity may not read.
func azureOf(t *testing.T, s *scenario.Scenario, refuse ...string) *azure.Client {
	raw := *s
	raw.Files.Raw = true
	resources := map[string]json.RawMessage{}
	list := func(kind scenario.FileKind) string {
		text, err := raw.RoutesJSON(kind)
		if err != nil {
			t.Fatal(err)
		}
		var items []json.RawMessage
		if json.Unmarshal(text, &items) != nil {
			items = []json.RawMessage{text}
		}
		for _, item := range items {
			var named struct{ ID string }
			if json.Unmarshal(item, &named) == nil {
				resources[strings.ToLower(named.ID)] = item
			}
		}
		return fmt.Sprintf(`{"value": %s}`, text)
	}
	lists := map[string]string{
		"networkinterfaces": list(scenario.NICsFile), "routetables": list(scenario.TablesFile), "virtualmachinescalesets": `{"value": []}`,
	}
	list(scenario.SubnetFile)
	list(scenario.GroupsFile)
	applied := map[string]scenario.FileKind{
		"effectiveroutetable": scenario.EffectiveFile, "effectivenetworksecuritygroups": scenario.EffectiveRulesFile,
	}
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.ToLower(r.URL.Path)
		last := path[strings.LastIndexByte(path, '/')+1:]
		for _, part := range refuse {
			if strings.Contains(path, strings.ToLower(part)) {
				w.WriteHeader(http.StatusForbidden)
				return
			}
		}
		switch {
		case path == "/metadata/instance":
			fmt.Fprintf(w, `{"compute": {"azEnvironment": "AzurePublicCloud", "resourceId": %q}}`, scenario.MachineID(s.Observe))
		case path == "/metadata/identity/oauth2/token":
			fmt.Fprintf(w, `{"access_token": %q}`, cloudToken)
		case r.Header.Get("Authorization") != "Bearer "+cloudToken:
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodPost:
			w.Header().Set("Location", server.URL+"/operations/"+last)
			w.WriteHeader(http.StatusAccepted)
		case applied[last] != "":
			text, err := raw.RoutesJSON(applied[last])
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(text)
		case lists[last] != "":
			_, _ = io.WriteString(w, lists[last])
		case resources[path] != nil:
			_, _ = w.Write(resources[path])
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	return &azure.Client{Metadata: server.URL, Management: server.URL}
}

// TestAzure: what is inferred by silence, or is not seen at all, is proven or refuted by what Azure tells, and each fix is complete.
func TestAzure(t *testing.T) {
	t.Parallel()
	for _, tt := range few([]struct {
		scenario string
		refuse   []string
		want     string
		fix      string
	}{
		{"missing-udr", nil, "MissingUDR proven", "az network vnet subnet update --resource-group lab --vnet-name lab-vnet --name aks-subnet --route-table /subscriptions/"},
		{"missing-udr-files", nil, "MissingUDR proven", "az network vnet subnet update"},
		{"missing-udr-row", nil, "MissingUDR proven", "az network route-table route create --resource-group lab --route-table-name aks-agentpool-routetable --name aks-3"},
		{"wrong-udr", nil, "WrongUDR proven", "az network route-table route update --resource-group lab --route-table-name aks-agentpool-routetable --name aks-3"},
		{"nic-forwarding", nil, "NICForwarding proven", "az network nic update --ids /subscriptions/"},
		{"no-reply-nsg", nil, "NSGDrop proven", "az network nsg rule create --resource-group lab --nsg-name aks-1-nsg"},
		{"no-reply-nsg-all", nil, "NSGDrop proven", "az network nsg rule create --resource-group lab --nsg-name aks-1-nsg"},
		{"no-reply-nsg", []string{"effective"}, "NSGDrop likely", "az network nsg rule create"},
		{"no-reply-denied", nil, "NoReply likely", ""},
		{"missing-outbound", nil, "MissingOutbound proven", "az network "},
		{"nic-address", nil, "NICAddress proven", ""},
		{"missing-udr", []string{"Microsoft.Network", "Microsoft.Compute"}, "MissingUDR likely", ""},
		{"healthy-kubenet", nil, "", ""},
	}, 3) {
		t.Run(tt.scenario+strings.Join(tt.refuse, ""), func(t *testing.T) {
			t.Parallel()
			l := upLab(t, tt.scenario)
			alone := checkAzure(t, l, nil)
			r := checkAzure(t, l, azureOf(t, l.Scenario(), tt.refuse...))
			got := strings.Join(model.Map(r.Findings, func(f model.Finding) string { return fmt.Sprintf("%s %s", f.Code, f.Confidence) }), ", ")
			if got != tt.want {
				t.Errorf("got %q, want %q: %+v", got, tt.want, r.Findings)
			}
			row := fmt.Sprintf("| %s | %s | %s |", strings.TrimSuffix(l.Scenario().Title, "."), saidOf(alone), saidOf(r))
			docs, err := os.ReadFile("../../docs/accuracy.md")
			if err != nil || tt.refuse == nil && !strings.Contains(string(docs), row) {
				t.Errorf("docs/accuracy.md lacks the row %s: %v", row, err)
			}
			cloud := model.Find(r.Snapshot.Sources, func(s model.Source) bool { return s.Name == model.SourceCloud })
			if want := model.Either(tt.refuse == nil, model.OK, model.Partial); cloud.Status != want {
				t.Errorf("the source: %+v, want %s", cloud, want)
			}
			if tt.refuse != nil && !strings.Contains(cloud.Detail, "needs a role with Microsoft.") {
				t.Errorf("the source does not say what a role needs: %+v", cloud)
			}
			for _, f := range r.Findings {
				if refuted := tt.refuse == nil && strings.Contains(strings.Join(f.Alternatives, "\n"), "security group"); refuted {
					t.Errorf("%s may still be a security group: %q", f.Code, f.Alternatives)
				}
				for _, line := range f.Fix {
					kind, err := classify(line)
					if err != nil || tt.fix != "" && kind != fixCloud || !strings.HasPrefix(line, tt.fix) {
						t.Errorf("fix %q: %v, want %q with all values", line, err, tt.fix)
					}
				}
				if tt.fix != "" && len(f.Fix) == 0 {
					t.Errorf("%s has no fix", f.Code)
				}
			}
			text, err := json.Marshal(r.Snapshot)
			if err != nil || strings.Contains(string(text), cloudToken) {
				t.Errorf("the token is in the snapshot: %v", err)
			}
		})
	}
}

// saidOf is what a report finds, as the table in the docs says it.
func saidOf(r report.Report) string {
	all := model.Map(r.Findings, func(f model.Finding) string { return fmt.Sprintf("`%s`, %s", f.Code, f.Confidence) })
	return cmp.Or(strings.Join(all, "; "), "nothing")
}

// checkAzure is a check of a lab's observed node with --azure.
func checkAzure(t *testing.T, l *lab.Lab, client *azure.Client) (r report.Report) {
	t.Helper()
	l.Scenario().Files = scenario.Files{Nodes: true}
	a, o := &app{stdout: io.Discard, stderr: io.Discard}, given(t, "--for", "4s")
	err := a.inLab(t.Context(), o, l, func(ns *netns.NS, node string) error {
		options := o.session(ns, node)
		options.Azure = client
		s, err := a.observe(t.Context(), options)
		if err == nil {
			r, err = o.judge(s, nil, nil)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
