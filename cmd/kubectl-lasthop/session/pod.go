package session

import (
	"cmp"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
)

// ManagedBy is the value of the label app.kubernetes.io/managed-by of all that a session makes.
const ManagedBy = "kubectl-lasthop"

// Profiles are the rights that a session may have. Least has the capabilities that
// suffice (docs/rights.md says what each is for).
const (
	Least    = "least"
	Sysadmin = "sysadmin"
)

const (
	// keptFor is how long a job remains after its end, if it was not removed.
	keptFor = 10 * time.Second
	// graceTime is how long lasthop may take to detach its programs.
	graceTime = 10 * time.Second
	// filesSize bounds the files of a session, which are in memory.
	filesSize = "256Mi"
	container = "lasthop"
)

// Options are what a session's pod is made of.
type Options struct {
	Namespace, Node, Image, Profile string
	// Deadline is how long the pod may run.
	Deadline time.Duration
	// StartWithin is how long it may take to start, 0 for a minute.
	StartWithin time.Duration
	// Trial is of all sessions that are started together.
	Trial *Trial
}

// Trial is whether the cluster lets such a pod be made, which is tried once.
type Trial struct {
	once sync.Once
	err  error
}

func (o Options) within() time.Duration { return cmp.Or(o.StartWithin, startTime) }

// job is what runs the pod. A bare pod would outlive a plugin that was killed; the
// controllers end a job at its deadline, and remove it when it has ended.
func (o Options) job() *batchv1.Job {
	labels := map[string]string{"app.kubernetes.io/managed-by": ManagedBy, "app.kubernetes.io/name": "lasthop"}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "lasthop-", Namespace: o.Namespace, Labels: labels},
		Spec: batchv1.JobSpec{
			ActiveDeadlineSeconds:   new(max(1, int64(o.Deadline/time.Second))),
			TTLSecondsAfterFinished: new(int32(keptFor / time.Second)),
			BackoffLimit:            new(int32(0)),
			Template:                corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: o.podSpec()},
		},
	}
}

func (o Options) podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		NodeName:                      o.Node,
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: new(int64(graceTime / time.Second)),
		HostNetwork:                   true,
		HostPID:                       true,
		DNSPolicy:                     corev1.DNSDefault,
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		// A node with a fault may well be tainted.
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Volumes: []corev1.Volume{
			{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/", Type: new(corev1.HostPathDirectory)}}},
			{Name: "files", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse(filesSize))}}},
		},
		Containers: []corev1.Container{{
			Name:            container,
			Image:           o.Image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Command:         []string{"/lasthop", remote.Command},
			Stdin:           true,
			// The far end learns that the plugin is gone.
			StdinOnce:       true,
			SecurityContext: o.securityContext(),
			VolumeMounts: []corev1.VolumeMount{
				{Name: "host", MountPath: "/host", ReadOnly: true},
				{Name: "files", MountPath: remote.Dir},
			},
		}},
	}
}

func (o Options) securityContext() *corev1.SecurityContext {
	if o.Profile == Sysadmin {
		return &corev1.SecurityContext{Privileged: new(true), ReadOnlyRootFilesystem: new(true)}
	}
	return &corev1.SecurityContext{
		Capabilities: &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"},
			Add:  []corev1.Capability{"NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "SYSLOG", "NET_RAW"},
		},
		// AppArmor's default for containers does not let one look at other processes.
		AppArmorProfile:        &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined},
		ReadOnlyRootFilesystem: new(true),
	}
}
