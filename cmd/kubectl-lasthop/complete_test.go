//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestComplete runs the plugin by the name by which kubectl has it complete a command
// line. The last line is what the shell does with the words.
func TestComplete(t *testing.T) {
	a := newAPI(t)
	a.services = []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop"}}}
	plugin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(completing, "1")
	complete := func(typed string) string {
		cmd := exec.Cmd{Path: plugin, Args: append([]string{completer}, strings.Split(typed, " ")...)}
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%q: %v", typed, err)
		}
		return string(out)
	}
	const files, names, open = 0, 4, 6
	for _, c := range []struct {
		// typed are the words, the last as far as it was typed.
		typed string
		want  string
		then  int
	}{
		{"", "check audit explain watch record past doctor replay mcp screen node1 node2", names},
		{"check ", "node1 node2", names},
		{"check node/", "node/node1 node/node2", names},
		{"check po", "pod/", open},
		{"check -n shop pod/", "pod/cart-1 pod/cart-2", names},
		{"explain -n shop ", "pod/cart-1 pod/cart-2", names},
		{"check nothing/", "", names},
		{"record ", "", files},
		{"record x.rec node", "node1 node2", names},
		{"explain --to ", "pod/ svc/", open},
		{"explain -n shop --to svc/", "svc/cart", names},
		{"check --fail-on ", "critical warning info", names},
		{"check --profile ", "least sysadmin", names},
		{"check --nodes ", "", files},
	} {
		want := strings.TrimPrefix(fmt.Sprintf("%s\n:%d\n", strings.Join(strings.Fields(c.want), "\n"), c.then), "\n")
		if got := complete(c.typed); got != want {
			t.Errorf("%q: %s", c.typed, got)
		}
	}
	for _, server := range []string{os.Getenv("KUBECONFIG"), "none"} {
		t.Setenv("KUBECONFIG", server)
		a.refuse["list nodes"] = forbidden("list", "nodes")
		if got := complete("check "); got != fmt.Sprintf("pod/\n:%d\n", open) {
			t.Errorf("where the nodes are not known: %s", got)
		}
	}
}
