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
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
)

const (
	// pollEvery is how often the API server is asked for the pod.
	pollEvery = 200 * time.Millisecond
	// startTime is how long a pod may take to start; most of it is for the image.
	startTime = 3 * time.Minute
	// patience is how long a user waits without a word for a pod to start.
	patience = 10 * time.Second
	// fateTime is how long the job may take to tell why its pod was ended.
	fateTime = 5 * time.Second
	// removeTime bounds the removal, which is tried even when the user has left.
	removeTime = 15 * time.Second
)

// Cluster is what a session needs of the API server.
type Cluster struct {
	*API
	// Connect attaches to the container of a pod, until it or ctx ends.
	Connect func(ctx context.Context, namespace, pod, container string, in io.Reader, out, errs io.Writer) error
}

// Run runs a command on a node, and returns its status. Near.Interrupt asks the
// command to end, or ends the wait for its pod; the end of ctx abandons it. Either way
// the pod is removed. say tells of progress.
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
	pod, err := c.awaitPod(starting, job, say)
	if err != nil {
		return 0, early(err)
	}
	status, err = c.call(ctx, pod, s, n)
	switch {
	case ctx.Err() != nil && errors.Is(err, remote.ErrLost):
		err = fmt.Errorf("before lasthop ended on %s", o.Node)
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
		number := syscall.Signal(status - killed)
		err = errors.New(cmp.Or(c.awaitFate(ctx, job, o), fmt.Sprintf("lasthop was ended on %s by signal %d (%v)", o.Node, number, number)))
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

// create makes the job. What is refused to its pod would show only in events, so it is
// tried first.
func (c Cluster) create(ctx context.Context, o Options) (*batchv1.Job, error) {
	job := o.job()
	trial := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: job.Spec.Template.Spec}
	trial.GenerateName, trial.Namespace = job.GenerateName, o.Namespace
	_, err := c.Pods(o.Namespace).create(ctx, trial, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	// A webhook that cannot do without effects tells nothing.
	if err != nil && !strings.Contains(err.Error(), "does not support dry run") {
		return nil, Explain(err, "create a debug pod", o.Namespace)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	// An answer that nobody awaited would leave a job of which nobody knows the name.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	job, err = c.jobs(o.Namespace).create(ctx, job, metav1.CreateOptions{})
	return job, Explain(err, "create the job of the debug pod", o.Namespace)
}

// remove removes the job and its pod, even after ctx has ended.
func (c Cluster) remove(ctx context.Context, job *batchv1.Job) error {
	ctx = context.WithoutCancel(ctx)
	err := wait.PollUntilContextTimeout(ctx, pollEvery, removeTime, true, func(ctx context.Context) (bool, error) {
		err := c.jobs(job.Namespace).remove(ctx, job.Name, metav1.DeleteOptions{PropagationPolicy: to(metav1.DeletePropagationBackground)})
		// A connection that was lost may come back.
		return err == nil || apierrors.IsNotFound(err), permanent(err)
	})
	if err != nil {
		return &Refusal{
			fmt.Errorf("remove the debug pod: %w", err),
			fmt.Sprintf("it ends by itself, and its job is removed %v later; until then\n  kubectl delete job -n %s %s", keptFor, job.Namespace, job.Name),
		}
	}
	return nil
}

// permanent is an error that will be the same again.
func permanent(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return err
	}
	return nil
}

// awaitPod waits until the job's pod runs. If that takes long it says what for.
func (c Cluster) awaitPod(ctx context.Context, job *batchv1.Job, say func(format string, args ...any)) (*corev1.Pod, error) {
	var running *corev1.Pod
	waitsFor, told, begun := "its pod", "", time.Now()
	err := wait.PollUntilContextTimeout(ctx, pollEvery, startTime, true, func(ctx context.Context) (bool, error) {
		pod, err := c.podOf(ctx, job)
		if err != nil {
			return false, Explain(err, "look for the debug pod", job.Namespace)
		}
		if pod == nil {
			return false, c.refused(ctx, job)
		}
		first := running == nil
		up, why, err := state(pod)
		waitsFor, running = why, pod
		if up || err != nil {
			return up, err
		}
		if first {
			err = c.deaf(ctx, pod.Spec.NodeName)
		}
		if why != told && time.Since(begun) > patience {
			told = why
			say("the debug pod on %s waits for %s", pod.Spec.NodeName, why)
		}
		return false, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the debug pod did not start within %v: it waits for %s", startTime, waitsFor)
	}
	return running, err
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
	events, err := c.events(job.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(job.UID)})
	if err != nil {
		return nil // they say why there is no pod, no more
	}
	for _, e := range events.Items {
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
			return fmt.Errorf("the node starts no pods: %s", cmp.Or(condition.Message, "its kubelet does not answer"))
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
			return false, "", fmt.Errorf("the image %s ended with status %d before it was told what to do: is it as new as this plugin? %s",
				pod.Spec.Containers[0].Image, t.ExitCode, strings.TrimSpace(t.Reason+" "+t.Message))
		case s.State.Waiting != nil && slices.Contains(hopeless, s.State.Waiting.Reason):
			w := s.State.Waiting
			failed := fmt.Errorf("start the debug pod on %s: %s: %s", pod.Spec.NodeName, w.Reason, w.Message)
			if strings.Contains(w.Reason, "Image") {
				return false, "", &Refusal{failed, "choose an image that the node has, or can pull, with --image"}
			}
			return false, "", failed
		case s.State.Waiting != nil:
			waitsFor = s.State.Waiting.Reason
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return false, "", fmt.Errorf("the node %s does not take the debug pod: %s %s", pod.Spec.NodeName, pod.Status.Reason, pod.Status.Message)
	}
	if waitsFor == "" {
		waitsFor = "the kubelet of " + pod.Spec.NodeName
	}
	return false, waitsFor, nil
}

// call attaches to the pod and runs the command.
func (c Cluster) call(ctx context.Context, pod *corev1.Pod, s remote.Start, n remote.Near) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	inFar, inNear := io.Pipe()
	outNear, outFar := io.Pipe()
	attached := make(chan error, 1)
	errs := &valve{to: n.Stderr}
	go func() {
		err := c.Connect(ctx, pod.Namespace, pod.Name, container, inFar, outFar, errs)
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

// valve passes writes on until it is closed: an attachment that was abandoned may still
// write.
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

// fate is why a session ended that nobody here has ended; empty if that is not known.
func (c Cluster) fate(ctx context.Context, job *batchv1.Job, o Options) string {
	j, err := c.jobs(job.Namespace).Get(ctx, job.Name)
	if apierrors.IsNotFound(err) {
		return "somebody has removed the job " + job.Name
	}
	failed := false
	for _, condition := range j.Status.Conditions {
		if condition.Reason == batchv1.JobReasonDeadlineExceeded {
			return fmt.Sprintf("the session has reached its deadline of %v (--deadline)", o.Deadline)
		}
		failed = failed || condition.Type == batchv1.JobFailed || condition.Type == batchv1.JobFailureTarget
	}
	pod, err := c.podOf(ctx, job)
	switch {
	case err != nil:
		return ""
	// At the deadline the pod is deleted as well.
	case failed && (pod == nil || pod.DeletionTimestamp != nil):
		return "somebody, or the cluster, has deleted the debug pod"
	case pod == nil:
		return ""
	}
	for _, s := range pod.Status.ContainerStatuses {
		t := s.State.Terminated
		if t != nil && t.Reason == "OOMKilled" {
			return fmt.Sprintf("the container ran out of memory (OOMKilled): `kubectl get limitrange -n %s` shows what may bound it, and --debug-namespace chooses another namespace", job.Namespace)
		}
		if t != nil && t.Reason != "Completed" && t.Reason != "Error" {
			return strings.TrimSpace(fmt.Sprintf("the container has ended: %s %s", t.Reason, t.Message))
		}
	}
	return strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)
}
