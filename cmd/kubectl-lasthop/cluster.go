package main

import (
	"context"
	"io"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
)

// connected is the cluster that the flags choose.
type connected struct {
	session.Cluster
	// namespace is that of --namespace or the context; explicit says that the user has given it.
	namespace string
	explicit  bool
}

// kube are the flags by which every command of kubectl finds its cluster. Those of
// k8s.io/cli-runtime are the same, but that package brings kustomize.
type kube struct {
	file  string
	given clientcmd.ConfigOverrides
}

func (k *kube) register(f *pflag.FlagSet) {
	f.StringVar(&k.file, clientcmd.RecommendedConfigPathFlag, "", "Path to the kubeconfig file to use for CLI requests.")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	clientcmd.BindOverrideFlags(&k.given, f, names)
}

func (k *kube) client() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.file
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &k.given)
}

func (o *options) connect() (*connected, error) {
	client := o.kube.client()
	config, err := client.ClientConfig()
	if err != nil {
		return nil, err
	}
	// That the pod would violate a policy that only warns is no news.
	config.WarningHandler = rest.NoWarnings{}
	// With the default, 5 requests a second, a thousand nodes would wait for a quarter of an hour. API servers
	// have limits of their own, which share what they can do among users.
	config.QPS, config.Burst = 250, 500
	c := &connected{}
	if c.namespace, c.explicit, err = client.Namespace(); err != nil {
		return nil, err
	}
	api, err := session.NewAPI(config)
	c.Cluster = session.Cluster{API: api, Connect: attacher(config, api)}
	return c, err
}

// attacher attaches by websockets, or by SPDY where a server or proxy does not know them, as kubectl does.
func attacher(config *rest.Config, api *session.API) session.Connect {
	return func(ctx context.Context, namespace, pod, container string, command []string, in io.Reader, out, errs io.Writer) error {
		request := api.Attach(namespace, pod, container)
		if len(command) > 0 {
			request = api.Exec(namespace, pod, container, command)
		}
		url := request.URL()
		spdy, err := remotecommand.NewSPDYExecutor(config, "POST", url)
		if err != nil {
			return err
		}
		websocket, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
		if err != nil {
			return err
		}
		executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		})
		if err != nil {
			return err
		}
		return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errs})
	}
}
