// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// controlPlaneTimeout bounds etcd's and the API server's start, nodesTimeout
	// the time from then until all nodes are Ready.
	controlPlaneTimeout = 2 * time.Minute
	nodesTimeout        = 5 * time.Minute
	etcdURL             = "http://127.0.0.1:2379"
	etcdPeerURL         = "http://127.0.0.1:2380"
	workerLabel         = "node-role.kubernetes.io/worker"
)

// The control plane's daemons, in the order in which they are started.
const (
	etcdName      = "etcd"
	apiServerName = "kube-apiserver"
	managerName   = "kube-controller-manager"
	schedulerName = "kube-scheduler"
)

func controlPlaneNames() []string {
	return []string{etcdName, apiServerName, managerName, schedulerName}
}

func isMachine(name string) bool { return strings.HasPrefix(name, qemuDaemon("")) }

// stopOrder stops machines first, then the control plane against the order of
// its start, so that nothing waits for what is gone.
func stopOrder(name string) int {
	if isMachine(name) {
		return -1
	}
	return len(controlPlaneNames()) - slices.Index(controlPlaneNames(), name)
}

// controlPlane returns the daemons of the control plane. All listen on the
// lab's bridge or on the loopback of its namespace, never on the host.
func (l *Lab) controlPlane() []daemon {
	pki := func(file string) string { return l.path("pki", file) }
	program := func(name string, args ...string) daemon {
		args = append([]string{filepath.Join(l.state.AssetsDir, name)}, args...)
		return daemon{name: name, args: args, log: l.path("logs", name+".log")}
	}
	client := func(name string) []string {
		kubeconfig := l.path("config", name+".kubeconfig")
		return []string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1", "--leader-elect=false",
		}
	}
	plan := l.state.addresses()
	return []daemon{
		program(etcdName, "--data-dir="+l.path("etcd"), "--name=lab",
			"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
			"--listen-peer-urls="+etcdPeerURL, "--initial-advertise-peer-urls="+etcdPeerURL,
			"--initial-cluster=lab="+etcdPeerURL, "--log-level=warn",
			// The host's power is not what the lab tests.
			"--unsafe-no-fsync"),
		program(apiServerName,
			"--etcd-servers="+etcdURL,
			"--bind-address="+l.apiServer().Addr().String(), fmt.Sprintf("--secure-port=%d", apiPort),
			"--advertise-address="+l.apiServer().Addr().String(),
			"--service-cluster-ip-range="+serviceRange,
			"--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"),
			"--client-ca-file="+pki("ca.crt"),
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--kubelet-certificate-authority="+pki("ca.crt"),
			"--kubelet-client-certificate="+pki("apiserver-kubelet.crt"), "--kubelet-client-key="+pki("apiserver-kubelet.key"),
			"--kubelet-preferred-address-types=InternalIP",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-signing-key-file="+pki("service-account.key"),
			"--service-account-key-file="+pki("service-account.pub"),
			"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file="+pki("front-proxy.crt"), "--proxy-client-key-file="+pki("front-proxy.key"),
			// No kube-proxy runs where the API server does: it reaches webhooks
			// at their pods.
			"--enable-aggregator-routing=true",
			"--allow-privileged=true", "--profiling=false", "--v=1",
		),
		program(managerName, append(client(managerName),
			"--root-ca-file="+pki("ca.crt"), "--service-account-private-key-file="+pki("service-account.key"),
			"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"),
			"--use-service-account-credentials=true", "--cluster-cidr="+plan.podRange().String(), "--allocate-node-cidrs=false",
		)...),
		program(schedulerName, client(schedulerName)...),
	}
}

// startControlPlane starts what is not running of the control plane and waits
// until the API server serves.
func (l *Lab) startControlPlane(ctx context.Context) error {
	for _, d := range l.controlPlane() {
		if err := l.start(d); err != nil {
			return err
		}
		if d.name != apiServerName {
			continue
		}
		// The other two would only fail and wait without it.
		if err := l.waitForAPI(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) client() (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", l.Kubeconfig(), err)
	}
	return kubernetes.NewForConfig(config)
}

func (l *Lab) waitForAPI(ctx context.Context) error {
	client, err := l.client()
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, pollPeriod, controlPlaneTimeout, true, func(ctx context.Context) (bool, error) {
		for _, name := range []string{etcdName, apiServerName} {
			if _, ok, err := l.running(name); err != nil || !ok {
				return false, errors.Join(err, fmt.Errorf("%s ended; see %s", name, l.path("logs", name+".log")))
			}
		}
		last = client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return last == nil, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("the API server is not ready: %w (%w)", last, err)
	}
	return err
}

// waitForNodes waits until every node of the lab is Ready, and names its role.
func (l *Lab) waitForNodes(ctx context.Context) error {
	client, err := l.client()
	if err != nil {
		return err
	}
	started := time.Now()
	waiting := map[string]string{}
	err = wait.PollUntilContextTimeout(ctx, pollPeriod, nodesTimeout, true, func(ctx context.Context) (bool, error) {
		for _, name := range l.state.Nodes {
			delete(waiting, name)
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				waiting[name] = err.Error()
			} else if why := notReady(node, started); why != "" {
				waiting[name] = why
			}
		}
		return len(waiting) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait for nodes to be Ready: %w: %v", err, waiting)
	}
	patch := []byte(`{"metadata":{"labels":{"` + workerLabel + `":""}}}`)
	for _, name := range l.state.Nodes {
		if _, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("label %s: %w", name, err)
		}
	}
	return nil
}

// notReady says why the node is not Ready, or "" when it is.
func notReady(node *corev1.Node, _ time.Time) string {
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return ""
		}
		return c.Reason + ": " + c.Message
	}
	return "no Ready condition yet"
}
