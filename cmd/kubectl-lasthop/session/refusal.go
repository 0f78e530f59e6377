package session

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/lasthop/lasthop/probe/words"
)

// Refusal is an error of the API server with what would help.
type Refusal struct {
	Err    error
	Advice string
}

func (r *Refusal) Error() string { return r.Err.Error() + "\n" + r.Advice }
func (r *Refusal) Unwrap() error { return r.Err }

// role is all that a session needs in its namespace.
const role = "kubectl create role lasthop -n %[1]s --verb=create,get,list,delete --resource=jobs.batch,pods,pods/attach,events\n" +
	"  kubectl create rolebinding lasthop -n %[1]s --role=lasthop --user=%[2]s"

// reader is what finding nodes, pods and services takes, in the whole cluster.
const reader = "kubectl create clusterrole lasthop-reader --verb=get,list --resource=nodes,pods,services\n" +
	"  kubectl create clusterrolebinding lasthop-reader --clusterrole=lasthop-reader --user=%s"

// named finds who was refused. A user's name may be anything.
var named = regexp.MustCompile(`User "([^"]+)" cannot`)

func user(text string) words.Command {
	if m := named.FindStringSubmatch(text); m != nil {
		return words.Shell("%s", m[1])
	}
	return "USER"
}

// ExplainLookup is Explain where something was only looked up.
func ExplainLookup(err error, tried, namespace string) error {
	if err != nil && apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot ") {
		return &Refusal{fmt.Errorf("%s: %w", tried, err),
			fmt.Sprintf("RBAC does not allow it; an administrator can grant all lookups with\n  "+reader, user(err.Error()))}
	}
	return Explain(err, tried, namespace)
}

// Explain adds what would help to an error of the API server about what was tried in
// a namespace. The words of policies are those of Kubernetes' own admission plugins.
func Explain(err error, tried, in string) error {
	if err == nil {
		return nil
	}
	text, failed, namespace := err.Error(), fmt.Errorf("%s: %w", tried, err), words.Shell("%s", in)
	advise := func(format string, args ...any) error { return &Refusal{failed, fmt.Sprintf(format, args...)} }
	switch {
	case strings.Contains(text, "violates PodSecurity"):
		return advise("Pod Security in the namespace %[1]s forbids what lasthop needs: use another namespace, such as "+
			"--debug-namespace kube-system, or allow it:\n"+
			"  kubectl label namespace %[1]s pod-security.kubernetes.io/enforce=privileged --overwrite", namespace)
	case strings.Contains(text, "ValidatingAdmissionPolicy 'aks-managed-"):
		// Of AKS Automatic, which has them everywhere. Excluding a namespace replaces the list of those that are.
		return advise("AKS's Deployment Safeguards forbid what lasthop needs, and no label changes that: exclude a namespace " +
			"beside those that `az aks safeguards show` lists, and use it (--debug-namespace lasthop):\n" +
			"  kubectl create namespace lasthop\n" +
			"  az aks safeguards update --resource-group RESOURCE_GROUP --name CLUSTER --excluded-ns lasthop")
	case strings.Contains(text, "admission webhook"), strings.Contains(text, "ValidatingAdmissionPolicy"):
		return advise("exempt pods with the label app.kubernetes.io/managed-by=%s from that policy, or use a namespace "+
			"that it excludes (--debug-namespace):\n"+
			"  kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies", ManagedBy)
	case strings.Contains(text, "exceeded quota"), strings.Contains(text, "failed quota"):
		return advise("the quota of the namespace %[1]s is exhausted or requires limits: use another namespace "+
			"(--debug-namespace), or check\n"+
			"  kubectl describe resourcequota -n %[1]s", namespace)
	case apierrors.IsForbidden(err) && strings.Contains(text, "cannot "):
		return advise("RBAC does not allow it. `kubectl auth can-i --list -n %s` lists your rights; an administrator can "+
			"grant all that a debug pod needs with\n  "+role, namespace, user(text))
	case apierrors.IsUnauthorized(err):
		return advise("the API server rejects your credentials: check `kubectl auth whoami`, or log in again")
	case apierrors.IsNotFound(err) && strings.Contains(text, "namespaces"):
		return advise("no namespace %s: `kubectl get namespaces` lists them", namespace)
	}
	if _, unreachable := errors.AsType[*url.Error](err); unreachable && !errors.Is(err, context.Canceled) {
		return advise("the API server does not answer: `kubectl cluster-info` shows its address; --context selects " +
			"another cluster")
	}
	return failed
}
