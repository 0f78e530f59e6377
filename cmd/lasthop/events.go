package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/catalogue"
	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/words"
)

// tokenDir has what a pod needs to speak to the API, in files of at most maxSecret bytes.
const (
	tokenDir  = "/var/run/secrets/kubernetes.io/serviceaccount"
	maxSecret = 1 << 20
)

// eventEvery is the least time between two Events that a kind of finding opened on a node: one
// that comes and goes is told as often. Its end is told at once.
const eventEvery = 5 * time.Minute

// events tells the cluster of findings that open and close, by Events of the node: one for
// each kind, however many are open. A client library would double the binary for one request.
type events struct {
	client    *http.Client
	url, node string
	token     string
	// open are the kinds that were told to be open, at when each was last told to open.
	open map[model.Code]bool
	at   map[model.Code]time.Time
	send chan event
}

type event struct {
	APIVersion     string            `json:"apiVersion"`
	Kind           string            `json:"kind"`
	Metadata       map[string]string `json:"metadata"`
	InvolvedObject map[string]string `json:"involvedObject"`
	Reason         string            `json:"reason"`
	Message        string            `json:"message"`
	Type           string            `json:"type"`
	Source         map[string]string `json:"source"`
	First          time.Time         `json:"firstTimestamp"`
	Last           time.Time         `json:"lastTimestamp"`
	Count          int               `json:"count"`
}

// newEvents finds the cluster in the environment and the files that every pod has.
func newEvents() (*events, error) {
	host, port, node := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"), os.Getenv("NODE_NAME")
	if host == "" || node == "" {
		return nil, usagef("--events: needs a pod of the cluster with NODE_NAME in its environment")
	}
	ca, err := input.Read(filepath.Join(tokenDir, "ca.crt"), input.Regular, maxSecret)
	if err != nil {
		return nil, usagef("--events: the pod has no token (automountServiceAccountToken): %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &events{
		client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}},
		url:    "https://" + net.JoinHostPort(host, port) + "/api/v1/namespaces/default/events",
		token:  filepath.Join(tokenDir, "token"), node: node,
		open: map[model.Code]bool{}, at: map[model.Code]time.Time{}, send: make(chan event, 16),
	}, nil
}

// tell has the cluster told of what is open now, of warning or worse. It waits for nothing.
func (e *events) tell(findings []model.Tracked, now time.Time) {
	open := map[model.Code]model.Tracked{}
	for _, f := range findings {
		if _, known := open[f.Code]; !known && f.Severity.Rank() >= model.Warning.Rank() {
			open[f.Code] = f
		}
	}
	for _, p := range catalogue.Pages() {
		f, is := open[p.Code]
		if is == e.open[p.Code] || is && now.Sub(e.at[p.Code]) < eventEvery {
			continue
		}
		made := event{
			APIVersion: "v1", Kind: "Event", Reason: string(p.Code), Type: "Normal", Message: "no longer: " + p.Title,
			Metadata:       map[string]string{"generateName": "lasthop-", "namespace": "default"},
			InvolvedObject: map[string]string{"kind": "Node", "apiVersion": "v1", "name": e.node, "uid": e.node},
			Source:         map[string]string{"component": "lasthop", "host": e.node}, First: now.UTC(), Last: now.UTC(), Count: 1,
		}
		if is {
			made.Type, made.Message = "Warning", report.Clean(f.Title+string(words.Shell("; kubectl lasthop check %s --last 20m", e.node)))
		}
		select {
		case e.send <- made:
			e.open[p.Code] = is
			if is {
				e.at[p.Code] = now
			}
		default: // the API does not answer: the next reading tries again
		}
	}
}

// errForbidden says that the cluster does not want Events of us.
var errForbidden = errors.New("the cluster rejects Events from this pod: its service account may not create them")

// begin sends Events until end is called.
func (e *events) begin(ctx context.Context, say func(format string, args ...any)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	sending.Go(func() { e.run(ctx, say) })
	return func() {
		cancel()
		sending.Wait()
	}
}

// run sends Events until ctx ends, or the cluster refuses them.
func (e *events) run(ctx context.Context, say func(format string, args ...any)) {
	for {
		select {
		case <-ctx.Done():
			return
		case made := <-e.send:
			err := e.post(ctx, made)
			if err != nil && ctx.Err() == nil {
				say("%s", report.Clean(err.Error()))
			}
			if errors.Is(err, errForbidden) {
				return
			}
		}
	}
}

func (e *events) post(ctx context.Context, made event) error {
	token, err := input.Read(e.token, input.Regular, maxSecret) // it is renewed
	if err != nil {
		return fmt.Errorf("create an Event: %w", err)
	}
	body, err := json.Marshal(made)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + string(bytes.TrimSpace(token))}}
	answer, err := e.client.Do(r)
	if err != nil {
		return fmt.Errorf("create an Event: %w", err)
	}
	defer answer.Body.Close()
	why, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	switch {
	case answer.StatusCode == http.StatusForbidden, answer.StatusCode == http.StatusUnauthorized:
		return errForbidden
	case answer.StatusCode >= http.StatusMultipleChoices:
		return fmt.Errorf("create an Event: %s: %s", answer.Status, why)
	}
	return nil
}
