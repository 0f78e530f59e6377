// Package session runs one command of lasthop on a node of a cluster: in a debug pod,
// which it makes, attaches to, and removes.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
	"github.com/lasthop/lasthop/probe/words"
)

const (
	// pollEvery is how often the API server is asked for the pod.
	pollEvery = 200 * time.Millisecond
	// startTime is how long a pod may take to start, and a sixth of it how long a user waits
	// without a word. While the image is pulled it may take pullFactor times as long.
	startTime  = time.Minute
	pullFactor = 5
	// fateTime is how long the job may take to tell why its pod was ended.
	fateTime = 5 * time.Second
	// removeTime bounds the removal, which is tried even when the user has left.
	removeTime = 15 * time.Second
)

// Cluster is what a session needs of the API server.
type Cluster struct {
	*API
	Connect Connect
}

// Connect runs a command in the container of a pod, or attaches to what it runs where there
// is none, until that or ctx ends.
type Connect func(ctx context.Context, namespace, pod, container string, command []string, in io.Reader, out, errs io.Writer) error

// agents are the labels of the agents' pods, as the chart makes them.
const agents = "app.kubernetes.io/name=lasthop,app.kubernetes.io/component=agent"

// Ask runs a command beside the agent on a node, which has its files: nothing is made for
// it. A namespace that is not empty is the agents'.
func (c Cluster) Ask(ctx context.Context, namespace, node string, s remote.Start, n remote.Near) (int, error) {
	pods, err := c.Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: agents, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return 0, ExplainLookup(err, "look for the agent's pod on "+node, namespace)
	}
	for _, pod := range pods.Items {
		if up, _, err := state(&pod); up && err == nil {
			return c.call(ctx, &pod, []string{"/lasthop", remote.Command}, s, n)
		}
	}
	return 0, &Refusal{
		fmt.Errorf("no agent runs on %s: no pod there is labelled %s", node, agents),
		"the chart charts/lasthop installs agents on all nodes; without --last and --at lasthop watches now, in a debug pod",
	}
}

// Run runs a command on a node, and returns its status. Near.Interrupt asks the command to end, or ends the wait for
// its pod; the end of ctx abandons it. Either way the pod is removed. say reports progress.
func (c Cluster) Run(ctx context.Context, o Options, s remote.Start, n remote.Near, say func(format string, args ...any)) (status int, err error) {
	starting, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-n.Interrupt:
			stop()
		case <-starting.Done():
		}
	}()
	early := func(err error) error {
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("%w on %s", ErrEarly, o.Node)
		}
		return err
	}
	job, err := c.create(starting, o)
	if err != nil {
		return 0, early(err)
	}
	defer func() { err = errors.Join(err, c.remove(ctx, job)) }()
	pod, err := c.awaitPod(starting, o, job, say)
	if err != nil {
		return 0, early(err)
	}
	status, err = c.call(ctx, pod, nil, s, n)
	switch {
	case ctx.Err() != nil && errors.Is(err, remote.ErrLost):
		if err = context.Cause(ctx); errors.Is(err, context.Canceled) {
			err = fmt.Errorf("before lasthop ended on %s", o.Node)
		}
	case errors.Is(err, remote.ErrLost):
		if why := c.awaitFate(ctx, job, o); why != "" {
			err = errors.New(why)
		}
	case starting.Err() != nil: // somebody here has asked it to end
	case status == Interrupted:
		if why := c.awaitFate(ctx, job, o); why != "" {
			say("%s", why)
		}
	case status > killed:
		err = errors.New(cmp.Or(c.awaitFate(ctx, job, o), fmt.Sprintf("lasthop on %s was killed by signal %[2]d (%[2]v)", o.Node,
			syscall.Signal(status-killed))))
	}
	return status, err
}

// ErrEarly says that the user left before there was anything to end.
var ErrEarly = errors.New("before lasthop ran")

// Interrupted is lasthop's status after it was asked to end. Above killed is that of a
// process that a signal has ended, by the signal's number.
const (
	Interrupted = 130
	killed      = 128
)

// awaitFate is fate. The pod ends before the cluster tells why.
func (c Cluster) awaitFate(ctx context.Context, job *batchv1.Job, o Options) (why string) {
	//nolint:errcheck // then it is not known
	wait.PollUntilContextTimeout(ctx, pollEvery, fateTime, true, func(ctx context.Context) (bool, error) {
		why = c.fate(ctx, job, o)
		return why != "", nil
	})
	return why
}

// create makes the job. What is refused to its pod would show only in events, so it is tried first.
func (c Cluster) create(ctx context.Context, o Options) (*batchv1.Job, error) {
	job := o.job()
	o.Trial.once.Do(func() {
		pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: job.Spec.Template.Spec}
		pod.GenerateName, pod.Namespace = job.GenerateName, o.Namespace
		_, o.Trial.err = c.Pods(o.Namespace).create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	})
	// A webhook that cannot do without effects tells nothing.
	if err := o.Trial.err; err != nil && !strings.Contains(err.Error(), "does not support dry run") {
		return nil, Explain(err, "create a debug pod", o.Namespace)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	// Without waiting for the answer, a job could be left whose name is not known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	job, err := c.jobs(o.Namespace).create(ctx, job, metav1.CreateOptions{})
	return job, Explain(err, "create the job of the debug pod", o.Namespace)
}

// remove removes the job and its pod, even after ctx has ended.
func (c Cluster) remove(ctx context.Context, job *batchv1.Job) error {
	ctx = context.WithoutCancel(ctx)
	err := wait.PollUntilContextTimeout(ctx, pollEvery, removeTime, true, func(ctx context.Context) (bool, error) {
		err := c.jobs(job.Namespace).remove(ctx, job.Name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			return false, err
		}
		// A connection that was lost may come back.
		return err == nil || apierrors.IsNotFound(err), nil
	})
	if err != nil {
		return &Refusal{
			fmt.Errorf("remove the debug pod: %w", err),
			fmt.Sprintf("it ends by itself, and its job is removed %v later; to remove it now:\n  %s",
				keptFor, words.Shell("kubectl delete job -n %s %s", job.Namespace, job.Name)),
		}
	}
	return nil
}

// awaitPod waits until the job's pod runs. If that takes long it says what for, and then gives
// up, but for an image that is being pulled.
func (c Cluster) awaitPod(
	ctx context.Context, o Options, job *batchv1.Job, say func(format string, args ...any),
) (*corev1.Pod, error) {
	var running *corev1.Pod
	told, begun, most := "", time.Now(), o.within()
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		pod, err := c.podOf(ctx, job)
		if err != nil {
			return false, Explain(err, "find the debug pod", job.Namespace)
		}
		why, of := "the job controller, which has made no pod for its job", job.UID
		if pod == nil {
			err = c.refused(ctx, job)
		} else {
			first, up := running == nil, false
			running, of = pod, pod.UID
			if up, why, err = state(pod); up || err != nil {
				return up, err
			}
			if first {
				err = c.deaf(ctx, pod.Spec.NodeName)
			}
		}
		waited := time.Since(begun)
		if err != nil || waited < most && (waited < o.within()/6 || why == told) {
			return false, err
		}
		told = why
		last := c.latest(ctx, job.Namespace, of)
		if last.Reason != "" {
			why += fmt.Sprintf(" (%s: %s)", last.Reason, last.Message)
		}
		switch {
		case waited < most:
			say("the debug pod on %s waits for %s", o.Node, why)
		case last.Reason == "Pulling" && most == o.within():
			most *= pullFactor
			say("the node %s still pulls the image %s", o.Node, o.Image)
		default:
			return false, hopelessWait(o, job, pod == nil, waited.Round(time.Second), why)
		}
		return false, nil
	})
	return running, err
}

// hopelessWait is the error of who has waited long enough, with what would help.
func hopelessWait(o Options, job *batchv1.Job, none bool, waited time.Duration, why string) error {
	err := fmt.Errorf("the debug pod on %s has not started in %v: it waits for %s", o.Node, waited, why)
	switch {
	case none && job.Spec.Suspend != nil && *job.Spec.Suspend:
		return &Refusal{err, "the job was suspended as it was made: what queues jobs here has to let it go, " +
			"or choose another --debug-namespace"}
	case none:
		return &Refusal{err, "no job makes pods here: is kube-controller-manager up? `kubectl get pods -n kube-system` shows it"}
	}
	return &Refusal{err, fmt.Sprintf("`kubectl describe node %s` shows whether its kubelet is well; --start-within waits longer", o.Node)}
}

// latest is the last event about an object; empty if there is none or they may not be read.
func (c Cluster) latest(ctx context.Context, namespace string, of types.UID) (last corev1.Event) {
	for _, e := range c.about(ctx, namespace, of) {
		if !e.LastTimestamp.Before(&last.LastTimestamp) {
			last = e
		}
	}
	return last
}

func (c Cluster) about(ctx context.Context, namespace string, of types.UID) []corev1.Event {
	// Without them it is only not known why there is no pod.
	events, _ := c.events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(of)})
	return events.Items
}

// podOf is the job's pod, nil before there is one.
func (c Cluster) podOf(ctx context.Context, job *batchv1.Job) (*corev1.Pod, error) {
	pods, err := c.Pods(job.Namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job.Name})
	if err != nil || len(pods.Items) == 0 {
		return nil, err
	}
	return &pods.Items[0], nil
}

// refused is why the job cannot make its pod, by its events.
func (c Cluster) refused(ctx context.Context, job *batchv1.Job) error {
	for _, e := range c.about(ctx, job.Namespace, job.UID) {
		if e.Reason == "FailedCreate" {
			return Explain(errors.New(e.Message), "create the debug pod", job.Namespace)
		}
	}
	return nil
}

// deaf is an error if a node's kubelet has not been heard of for so long that the
// cluster gives it up: it starts no pod.
func (c Cluster) deaf(ctx context.Context, name string) error {
	node, err := c.Nodes().Get(ctx, name)
	if err != nil {
		return nil // one may know a node that one may not look at
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionUnknown {
			return fmt.Errorf("the node does not start pods: %s", cmp.Or(condition.Message, "its kubelet does not answer"))
		}
	}
	return nil
}

// hopeless are reasons of waiting that do not pass by themselves.
var hopeless = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
	"CreateContainerError", "CreateContainerConfigError", "RunContainerError",
}

// state reports whether the container of a pod runs, or else what it waits for.
func state(pod *corev1.Pod) (up bool, waitsFor string, err error) {
	for _, s := range pod.Status.ContainerStatuses {
		switch {
		case s.State.Running != nil:
			return true, "", nil
		case s.State.Terminated != nil:
			t := s.State.Terminated
			return false, "",
				fmt.Errorf("the image %s exited with status %d before it got its command: is it as new as this plugin? %s",
					pod.Spec.Containers[0].Image, t.ExitCode, strings.TrimSpace(t.Reason+" "+t.Message))
		case s.State.Waiting != nil && slices.Contains(hopeless, s.State.Waiting.Reason):
			w := s.State.Waiting
			failed := fmt.Errorf("start the debug pod on %s: %s: %s", pod.Spec.NodeName, w.Reason, w.Message)
			if strings.Contains(w.Reason, "Image") {
				return false, "", &Refusal{failed, "use an image that the node has or can pull (--image)"}
			}
			return false, "", failed
		case s.State.Waiting != nil:
			waitsFor = s.State.Waiting.Reason
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return false, "", fmt.Errorf("the node %s does not admit the debug pod: %s %s", pod.Spec.NodeName,
			pod.Status.Reason, pod.Status.Message)
	}
	return false, cmp.Or(waitsFor, "the kubelet of "+pod.Spec.NodeName), nil
}

// call attaches to the pod, or runs the far end in it, and runs the command.
func (c Cluster) call(ctx context.Context, pod *corev1.Pod, far []string, s remote.Start, n remote.Near) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	inFar, inNear := io.Pipe()
	outNear, outFar := io.Pipe()
	attached, errs := make(chan error, 1), &valve{to: n.Stderr}
	go func() {
		err := c.Connect(ctx, pod.Namespace, pod.Name, container, far, inFar, outFar, errs)
		errs.close()
		inFar.CloseWithError(io.ErrClosedPipe) //nolint:errcheck // it never fails
		outFar.CloseWithError(io.EOF)          //nolint:errcheck // the same
		attached <- err
	}()
	status, err := remote.Call(ctx, outNear, inNear, s, n)
	cancel()
	inNear.Close()  //nolint:errcheck // it never fails
	outNear.Close() //nolint:errcheck // the same
	if end := <-attached; end != nil && errors.Is(err, remote.ErrLost) {
		if apierrors.IsForbidden(end) || strings.Contains(end.Error(), "orbidden") {
			return 0, Explain(end, "attach to the debug pod", pod.Namespace)
		}
		err = fmt.Errorf("%w: %w", err, end)
	}
	return status, err
}

// valve passes writes on until it is closed: an attachment that was abandoned may still write.
type valve struct {
	mu     sync.Mutex
	to     io.Writer
	closed bool
}

func (g *valve) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, io.ErrClosedPipe
	}
	return g.to.Write(p)
}

func (g *valve) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// fate is why a session ended that was not ended here; empty if that is not known.
func (c Cluster) fate(ctx context.Context, job *batchv1.Job, o Options) string {
	j, err := c.jobs(job.Namespace).Get(ctx, job.Name)
	if apierrors.IsNotFound(err) {
		return "somebody removed the job " + job.Name
	}
	failed := false
	for _, condition := range j.Status.Conditions {
		if condition.Reason == batchv1.JobReasonDeadlineExceeded {
			return fmt.Sprintf("the session reached its deadline of %v (--deadline)", o.Deadline)
		}
		failed = failed || condition.Type == batchv1.JobFailed || condition.Type == batchv1.JobFailureTarget
	}
	pod, err := c.podOf(ctx, job)
	switch {
	case err != nil:
		return ""
	// At the deadline the pod is deleted as well.
	case failed && (pod == nil || pod.DeletionTimestamp != nil):
		return "somebody, or the cluster, deleted the debug pod"
	case pod == nil:
		return ""
	}
	for _, s := range pod.Status.ContainerStatuses {
		t := s.State.Terminated
		if t != nil && t.Reason == "OOMKilled" {
			return fmt.Sprintf("the container ran out of memory (OOMKilled): check `%s`, or use "+
				"another namespace (--debug-namespace)", words.Shell("kubectl get limitrange -n %s", job.Namespace))
		}
		if t != nil && t.Reason != "Completed" && t.Reason != "Error" {
			return strings.TrimSpace(fmt.Sprintf("the container ended: %s %s", t.Reason, t.Message))
		}
	}
	return strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)
}
