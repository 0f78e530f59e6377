package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
	"github.com/lasthop/lasthop/probe/collect/azure"
	"github.com/lasthop/lasthop/probe/model"
)

// newAzure makes the client that asks Azure about nodes of a region; a test asks another one.
var newAzure = personsAzure

// personsAzure asks with the credentials of the person: the login of az first, then what azidentity finds.
func personsAzure(region string) (*azure.Client, error) {
	where := cloud.AzurePublic
	switch {
	case strings.HasPrefix(region, "usgov"), strings.HasPrefix(region, "usdod"):
		where = cloud.AzureGovernment
	case strings.HasPrefix(region, "china"):
		where = cloud.AzureChina
	}
	// A credential that cannot be made, such as one of incomplete variables, must not hide the others.
	var sources []azcore.TokenCredential
	cli, errCLI := azidentity.NewAzureCLICredential(nil)
	if errCLI == nil {
		sources = append(sources, cli)
	}
	others, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: azcore.ClientOptions{Cloud: where}})
	if err == nil {
		sources = append(sources, others)
	}
	chain, err := azidentity.NewChainedTokenCredential(sources, nil)
	if err != nil {
		return nil, errors.Join(err, errCLI)
	}
	management := where.Services[cloud.ResourceManager]
	return &azure.Client{Management: management.Endpoint, Token: func(ctx context.Context) (string, error) {
		token, err := chain.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{strings.TrimSuffix(management.Audience, "/") + "/.default"}})
		if err != nil {
			return "", fmt.Errorf("get a token for Azure: `az login` would give one: %w", err)
		}
		return token.Token, nil
	}}, nil
}

// askAzure adds what Azure tells of the targets' network. What it does not tell, lasthop does without.
func (r *runner) askAzure(ctx context.Context, f *facts, targets []target) error {
	ctx, cancel := context.WithTimeout(ctx, azure.Limit)
	defer cancel()
	wanted := map[string]bool{}
	for _, t := range targets {
		wanted[t.node] = true
	}
	var machines []string
	region := ""
	err := r.cluster.API.Nodes().Each(ctx, metav1.ListOptions{}, func(n *corev1.Node) {
		if id, ok := strings.CutPrefix(n.Spec.ProviderID, "azure://"); ok && wanted[n.Name] {
			machines, region = append(machines, id), n.Labels[corev1.LabelTopologyRegion]
		}
	})
	switch {
	case err != nil:
		return session.ExplainLookup(err, "list the nodes", "")
	case len(machines) == 0:
		return usagef("--azure: these nodes are not Azure's: their providerID does not begin with azure://")
	}
	client, err := newAzure(region)
	var answer *azure.Answer
	if err == nil {
		answer, err = client.Ask(ctx, machines)
	}
	if err != nil {
		r.say("without what Azure knows: %v", err)
		return nil
	}
	for _, unread := range answer.Unread {
		text := unread.String()
		if r.Redact {
			text = "a resource" + model.Either(unread.Denied, ": "+unread.Why, " could not be read")
		}
		r.say("without a part of what Azure knows: %s", text)
	}
	if text := answer.Document(); text != nil {
		f.add("routes", azure.Source, text)
	}
	return nil
}
