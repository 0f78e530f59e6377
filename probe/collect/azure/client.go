package azure

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
)

// Limit is how long Azure may take to answer.
const Limit = 10 * time.Second

// Source is the name of Azure's answers, where files have theirs.
const Source = "Azure"

// The metadata service is at the same address on every machine, in every cloud. Documents of its versions:
// learn.microsoft.com/azure/virtual-machines/instance-metadata-service.
const (
	metadata        = "http://169.254.169.254"
	instanceVersion = "2021-02-01"
	tokenVersion    = "2018-02-01"
)

// Versions of the resource manager's API, by the public specifications (Azure/azure-rest-api-specs). NICs of scale sets
// have one of their own.
const (
	networkVersion  = "2024-05-01"
	computeVersion  = "2024-07-01"
	scaleSetNICs    = "2018-10-01"
	mostBody        = 16 << 20
	mostPages       = 100
	pollEvery       = time.Second
	mostSubnets     = 64
	mostMachines    = 16
	computeProvider = "/providers/Microsoft.Compute/"
	networkProvider = "/providers/Microsoft.Network/"
)

// environments are the resource managers of Azure's clouds, by the names that the metadata service gives.
var environments = map[string]string{
	"AzurePublicCloud":       "https://management.azure.com",
	"AzureUSGovernmentCloud": "https://management.usgovcloudapi.net",
	"AzureChinaCloud":        "https://management.chinacloudapi.cn",
}

// Client asks Azure's resource manager, and only reads: with the managed identity of the node that it runs on, or with
// other tokens. No error and no answer holds a token.
type Client struct {
	// Metadata is the URL of the instance metadata service; empty is that of Azure.
	Metadata string
	// Identity is the client ID of the node's managed identity; empty is the only one that it has.
	Identity string
	// Management is the URL of the resource manager; empty is that of the cloud in which the node is.
	Management string
	// Token, if set, gives the tokens for the resource manager.
	Token func(context.Context) (string, error)
	// HTTP is for the resource manager; nil is http.DefaultClient.
	HTTP *http.Client

	token string
}

// Answer is what Azure told. Unread says what it did not, and what would help.
type Answer struct {
	Azure model.Azure
	// Items are the answers themselves: a document that Decode takes holds them as a list.
	Items  []json.RawMessage
	Unread []Unread
}

// Unread is a resource that Azure did not tell, and why. Denied: a role is missing.
type Unread struct {
	Resource, Why string
	Denied        bool
}

func (u Unread) String() string { return u.Resource + ": " + u.Why }

// Document is a file of the answers, nil where there is none.
func (a *Answer) Document() []byte {
	if len(a.Items) == 0 {
		return nil
	}
	text, err := json.Marshal(a.Items)
	if err != nil {
		return nil // Each of them was decoded.
	}
	return text
}

// AskNode asks about the network of the node that it runs on. It fails where the metadata service or the identity do not answer.
func (c *Client) AskNode(ctx context.Context) (*Answer, error) {
	var instance struct {
		Compute struct{ AzEnvironment, ResourceID string }
	}
	query := url.Values{"api-version": {instanceVersion}}
	if err := c.fromMetadata(ctx, "/metadata/instance", query, &instance); err != nil {
		return nil, fmt.Errorf("ask the instance metadata service which machine this is: %w", err)
	}
	if c.Management = cmp.Or(c.Management, environments[instance.Compute.AzEnvironment]); c.Management == "" {
		return nil, fmt.Errorf("the cloud %q is not known: want one of %s", instance.Compute.AzEnvironment,
			strings.Join(slices.Sorted(maps.Keys(environments)), ", "))
	}
	if c.Token == nil {
		c.Token = c.identityToken
	}
	return c.Ask(ctx, []string{instance.Compute.ResourceID})
}

func (c *Client) fromMetadata(ctx context.Context, path string, query url.Values, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cmp.Or(c.Metadata, metadata)+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Metadata", "true")
	// The service refuses what comes through a proxy.
	text, _, err := send(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, req)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	return err
}

// identityToken is a token of the node's managed identity.
func (c *Client) identityToken(ctx context.Context) (string, error) {
	query := url.Values{"api-version": {tokenVersion}, "resource": {c.Management + "/"}}
	if c.Identity != "" {
		query.Set("client_id", c.Identity)
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	err := c.fromMetadata(ctx, "/metadata/identity/oauth2/token", query, &answer)
	if err == nil && answer.Token == "" {
		err = errors.New("the answer has none")
	}
	if err != nil {
		return "", fmt.Errorf("get a token of the node's managed identity: %w", err)
	}
	return answer.Token, nil
}

// statusError is an answer that is none. Code is Azure's word for it.
type statusError struct {
	status int
	code   string
}

func (e *statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("HTTP status %d %s", e.status, e.code))
}

// codes are Azure's words for errors. Its messages hold the names of those who asked.
var codes = regexp.MustCompile(`^[A-Za-z_]{1,80}$`)

// send sends a request, and returns the body of an answer of 200 or 202. It follows no redirect, and its errors have no URL:
// that of an operation is signed.
func send(client *http.Client, req *http.Request) ([]byte, *http.Response, error) {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := own.Do(req)
	if outer, is := errors.AsType[*url.Error](err); is {
		err = outer.Err
	}
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostBody+1))
	switch {
	case err != nil:
		return nil, nil, err
	case len(text) > mostBody:
		return nil, nil, fmt.Errorf("the answer has more than %d bytes", mostBody)
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusAccepted:
		bad := &statusError{status: resp.StatusCode}
		// The resource manager has an object there, the metadata service a string.
		var body struct{ Error json.RawMessage }
		var inner struct{ Code string }
		if json.Unmarshal(text, &body) == nil && json.Unmarshal(body.Error, &inner) != nil {
			_ = json.Unmarshal(body.Error, &inner.Code)
		}
		if codes.MatchString(inner.Code) {
			bad.code = inner.Code
		}
		return nil, nil, bad
	}
	return text, resp, nil
}

// request asks the resource manager. A path may be a URL of its own: tokens go to no other host.
func (c *Client) request(ctx context.Context, method, path, version string) ([]byte, *http.Response, error) {
	base, err := url.Parse(c.Management)
	if err != nil {
		return nil, nil, err
	}
	u, err := base.Parse(path)
	if err != nil || u.Host != base.Host || u.Scheme != base.Scheme {
		return nil, nil, errors.New("the answer refers to another host")
	}
	if version != "" {
		u.RawQuery = url.Values{"api-version": {version}}.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	return send(cmp.Or(c.HTTP, http.DefaultClient), req)
}

// read is what is at a path: the items of a list, of all pages or none, or the object itself.
func (c *Client) read(ctx context.Context, path, version string) ([]json.RawMessage, error) {
	var items []json.RawMessage
	for range mostPages {
		text, _, err := c.request(ctx, http.MethodGet, path, version)
		if err != nil {
			return nil, err
		}
		var page struct {
			ID, NextLink string
			Value        []json.RawMessage
		}
		if err := json.Unmarshal(text, &page); err != nil {
			return nil, err
		}
		if page.ID != "" {
			return append(items, text), nil
		}
		items = append(items, page.Value...)
		if page.NextLink == "" {
			return items, nil
		}
		path, version = page.NextLink, ""
	}
	return nil, fmt.Errorf("more than %d pages", mostPages)
}

// operate starts an operation that only reads, and waits for what it tells.
func (c *Client) operate(ctx context.Context, path string) (json.RawMessage, error) {
	text, resp, err := c.request(ctx, http.MethodPost, path, networkVersion)
	next := ""
	for err == nil && resp.StatusCode == http.StatusAccepted {
		if next = cmp.Or(resp.Header.Get("Location"), next); next == "" {
			return nil, errors.New("the answer does not say where its result will be")
		}
		wait := pollEvery
		if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			wait = min(wait, time.Duration(n)*time.Second)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
		text, resp, err = c.request(ctx, http.MethodGet, next, "")
	}
	return text, err
}

// nicRefs is what decides what else is asked.
type nicRefs struct {
	ID         string
	Properties struct {
		VirtualMachine       struct{ ID string }
		NetworkSecurityGroup struct{ ID string }
		IPConfigurations     []struct {
			Properties struct{ Subnet struct{ ID string } }
		}
	}
}

type asking struct {
	*Client
	mu     sync.Mutex
	answer Answer
}

// Ask asks about the networks of virtual machines, by their resource IDs: of their resource groups all NICs and route tables, the
// NICs' subnets with their route tables and security groups, and what applies to the NICs of these machines, unless they are many.
// It fails without a token. What it may not read is in the answer.
func (c *Client) Ask(ctx context.Context, machines []string) (*Answer, error) {
	var err error
	if c.token, err = c.Token(ctx); err != nil {
		return nil, err
	}
	a := &asking{Client: c}
	var groups, sets ids
	for _, id := range machines {
		group, rest, ok := cutFold(id, computeProvider)
		if !ok {
			return nil, fmt.Errorf("%q is no machine of Azure's", id)
		}
		groups.add(group)
		if parts := strings.Split(rest, "/"); strings.EqualFold(parts[0], "virtualMachineScaleSets") && len(parts) > 1 {
			sets.add(group + computeProvider + "virtualMachineScaleSets/" + parts[1])
		}
	}
	var nics []nicRefs
	addNICs := func(path, version, action string) {
		for _, item := range a.add(ctx, path, version, action) {
			var n nicRefs
			if json.Unmarshal(item, &n) == nil {
				nics = append(nics, n)
			}
		}
	}
	for _, group := range groups {
		addNICs(group+networkProvider+"networkInterfaces", networkVersion, "Microsoft.Network/networkInterfaces/read")
		list, err := a.read(ctx, group+computeProvider+"virtualMachineScaleSets", computeVersion)
		a.miss(group+" scale sets", "Microsoft.Compute/virtualMachineScaleSets/read", err)
		for _, item := range list {
			var set struct {
				ID         string
				Properties struct{ OrchestrationMode string }
			}
			// Those of the other mode have machines and NICs like any other.
			if json.Unmarshal(item, &set) == nil && !strings.EqualFold(set.Properties.OrchestrationMode, "Flexible") {
				sets.add(set.ID)
			}
		}
	}
	for _, set := range sets {
		addNICs(set+"/networkInterfaces", scaleSetNICs, "Microsoft.Compute/virtualMachineScaleSets/networkInterfaces/read")
	}
	var effective sync.WaitGroup
	for n := range model.Each(nics) {
		if len(machines) <= mostMachines && slices.ContainsFunc(machines, func(id string) bool { return model.SameResource(id, n.Properties.VirtualMachine.ID) }) {
			effective.Go(func() { a.applied(ctx, n.ID, "effectiveRouteTable", "effectiveRoutes") })
			effective.Go(func() { a.applied(ctx, n.ID, "effectiveNetworkSecurityGroups", "effectiveSecurityGroups") })
		}
	}
	if len(machines) > mostMachines {
		a.miss("effective routes and rules", "", fmt.Errorf("not asked for more than %d machines", mostMachines))
	}
	a.networks(ctx, groups, nics)
	effective.Wait()
	return &a.answer, nil
}

// networks asks for subnets, route tables and security groups.
func (a *asking) networks(ctx context.Context, groups ids, nics []nicRefs) {
	var subnets, security, tables ids
	for n := range model.Each(nics) {
		security.add(n.Properties.NetworkSecurityGroup.ID)
		for _, c := range n.Properties.IPConfigurations {
			subnets.add(c.Properties.Subnet.ID)
		}
	}
	for _, id := range subnets[:min(len(subnets), mostSubnets)] {
		a.add(ctx, id, networkVersion, "Microsoft.Network/virtualNetworks/subnets/read")
	}
	for _, group := range groups {
		path, action := group+networkProvider+"routeTables", "Microsoft.Network/routeTables/read"
		list, err := a.read(ctx, path, networkVersion)
		a.miss(path, action, err)
		for _, item := range list {
			if a.concerned(item, subnets) {
				a.take(path, item)
			}
		}
	}
	a.mu.Lock()
	for s := range model.Each(a.answer.Azure.Subnets) {
		security.add(s.SecurityGroup)
		if !slices.ContainsFunc(a.answer.Azure.Tables, func(t model.RouteTable) bool { return model.SameResource(t.ID, s.RouteTable) }) {
			tables.add(s.RouteTable)
		}
	}
	a.mu.Unlock()
	for _, id := range tables {
		a.add(ctx, id, networkVersion, "Microsoft.Network/routeTables/read")
	}
	for _, id := range security {
		a.add(ctx, id, networkVersion, "Microsoft.Network/networkSecurityGroups/read")
	}
}

// concerned reports whether a table of the group's may be one of these subnets'. Where no subnet was read, one that has others
// or none says nothing: theirs may be in another group.
func (a *asking) concerned(table json.RawMessage, subnets ids) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	t, err := Decode(Source, table)
	return err != nil || len(a.answer.Azure.Subnets) > 0 || slices.ContainsFunc(t.Tables, func(t model.RouteTable) bool {
		return slices.ContainsFunc(t.Subnets, func(id string) bool { return subnets.has(id) })
	})
}

// ids are different resources.
type ids []string

func (x *ids) add(id string) {
	if id != "" && !x.has(id) {
		*x = append(*x, id)
	}
}

func (x *ids) has(id string) bool {
	return slices.ContainsFunc(*x, func(have string) bool { return model.SameResource(have, id) })
}

// add reads what is at a path into the answer.
func (a *asking) add(ctx context.Context, path, version, action string) []json.RawMessage {
	items, err := a.read(ctx, path, version)
	a.miss(path, action, err)
	for _, item := range items {
		a.take(path, item)
	}
	return items
}

// applied adds what applies to a NIC.
func (a *asking) applied(ctx context.Context, id, what, field string) {
	text, err := a.operate(ctx, id+"/"+what)
	a.miss(id+" "+what, "Microsoft.Network/networkInterfaces/"+what+"/action", err)
	if err != nil {
		return
	}
	item, err := json.Marshal(map[string]any{"networkInterface": map[string]string{"id": id}, field: json.RawMessage(bytes.TrimSpace(text))})
	if err != nil {
		a.miss(id+" "+what, "", err)
		return
	}
	a.take(id, item)
}

// take adds one item of an answer, if it can be decoded.
func (a *asking) take(path string, item json.RawMessage) {
	more, err := Decode(Source, item)
	a.miss(path, "", err)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	Merge(&a.answer.Azure, &more)
	a.answer.Items = append(a.answer.Items, item)
}

// miss notes what could not be read, with the action that a role must allow, if that is the cause.
func (a *asking) miss(path, action string, err error) {
	if err == nil {
		return
	}
	bad, is := errors.AsType[*statusError](err)
	denied := is && action != "" && (bad.status == http.StatusUnauthorized || bad.status == http.StatusForbidden)
	if denied {
		err = fmt.Errorf("denied (%w): needs a role with %s", err, action)
	} else if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", Limit)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer.Unread = model.With(a.answer.Unread, Unread{path[strings.LastIndexByte(path, '/')+1:], err.Error(), denied})
}

// cutFold is strings.Cut whatever the case.
func cutFold(s, sep string) (before, after string, found bool) {
	at := strings.Index(strings.ToLower(s), strings.ToLower(sep))
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+len(sep):], true
}

// trusted are the certificates of a node's distribution. The container has none.
var trusted = []string{
	"etc/ssl/certs/ca-certificates.crt", "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/pki/tls/certs/ca-bundle.crt",
}

// HostClient is a client that trusts whom the node trusts, with its files at root.
func HostClient(root string) *http.Client {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, path := range trusted {
		if text, err := input.Read(filepath.Join(root, path), input.Regular, mostBody); err == nil {
			pool.AppendCertsFromPEM(text)
		}
	}
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}}
}
