package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/probe/model"
)

// completer is the name by which kubectl runs what completes the plugin's command line:
// with the words that were typed, it prints those that may follow, as cobra does.
const completer = "kubectl_complete-lasthop"

// completeTime bounds how long the API server is asked: somebody waits at a prompt.
const completeTime = 3 * time.Second

// complete proposes commands, nodes and pods. Where the cluster cannot be asked it proposes no names.
func (o *options) complete(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	var found []string
	switch {
	case len(args) == 0:
		found = append(found, commands...)
	case len(args) == 1 && args[0] == "record":
		return nil, cobra.ShellCompDirectiveDefault
	}
	if len(args) > 0 && args[0] == "explain" {
		return o.names(cmd.Context(), "pod/"), cobra.ShellCompDirectiveNoFileComp
	}
	if kind, _, named := strings.Cut(word, "/"); named {
		return o.names(cmd.Context(), kind+"/"), cobra.ShellCompDirectiveNoFileComp
	}
	found = append(found, o.names(cmd.Context(), "")...)
	if strings.HasPrefix("pod/", word) && !slices.ContainsFunc(found, func(name string) bool { return strings.HasPrefix(name, word) }) {
		return []string{"pod/"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeTo proposes what --to may name.
func (o *options) completeTo(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	if kind, _, named := strings.Cut(word, "/"); named {
		return o.names(cmd.Context(), kind+"/"), cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"pod/", "svc/"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// names are those of nodes, or, with the kind before each, of pods or services.
func (o *options) names(ctx context.Context, kind string) []string {
	c, err := o.connect()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	var found []string
	add := func(o metav1.Object) { found = append(found, kind+o.GetName()) }
	switch kind {
	case "", "node/":
		err = c.Nodes().Each(ctx, metav1.ListOptions{}, func(n *corev1.Node) { add(n) })
	case "pod/":
		err = eachPod(ctx, c.API, c.namespace, metav1.ListOptions{}, func(p *corev1.Pod) { add(p) })
	case "svc/":
		err = c.Services(c.namespace).Each(ctx, metav1.ListOptions{}, func(s *corev1.Service) { add(s) })
	}
	return model.Either(err == nil, found, nil)
}
