// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// maxKernelLog of one node, the last bytes. The kernel's own buffer has less by default (CONFIG_LOG_BUF_SHIFT: 128
	// KiB to 1 MiB).
	maxKernelLog = 4 << 20
	// maxComplaint of a command, in bytes.
	maxComplaint = 200
	// maxTraceLines that belong to a report of the kernel about itself.
	maxTraceLines = 100
)

// readKernelLog is run in a pod that may read the log of its node's kernel: with levels, and the time of day.
var readKernelLog = []string{"dmesg", "--decode", "--time-format", "iso"}

// storageParts are what the kernel's storage, and what it depends on, begin their messages with, or have in them.
var storageParts = regexp.MustCompile(`(?i)` + strings.Join([]string{
	`\bnvmet?`,                               // hosts and targets
	`\bmd[0-9/:_]`, `\braid1\b`, `\bmdadm\b`, // mirrors
	`device-mapper`, `\bdm[-_]`, `\bdm_crypt\b`, // what a pod's device is made of
	`\bXFS\b`, `\bEXT4-fs\b`, `\bJBD2\b`, `\bloop[0-9]+\b`, // filesystems and pools
	`\bI/O error`, `\bblk_update_request\b`, `\bcritical (?:medium|target)\b`, `\blost async page write\b`,
	`\bmlx[45]`, `\binfiniband\b`, `\brdma`, `\brxe`, `\bib_`, `\biw_`, // RDMA
	`\blink (?:is|becomes) `, `\bbond[0-9]`, `\bTCP: `, // networks
	`\bvfio`, `\buio`, `\bDMAR\b`, `\bAMD-Vi\b`, `\biommu`, `\bAER\b`, `\bpcie`, `\bhugetlb`, `\bhugepage`, // devices and memory
	`\bout of memory\b`, `\boom-kill`, `\bblocked for more than\b`, `\blockup\b`, `\bstall`,
}, "|"))

var (
	// traceBegins a report of the kernel about itself, of several lines, and traceEnds its last one.
	traceBegins = regexp.MustCompile(`\bBUG:|\bWARNING:|\bOops\b|\bINFO: (?:task|rcu)|\bgeneral protection fault\b`)
	traceEnds   = regexp.MustCompile(`---\[ end trace|</TASK>`)
)

// storageLines of a kernel's log: what concerns storage. The rest, such as what the kernel audits of others, is left
// out.
func storageLines(log string) string {
	var kept strings.Builder
	trace := 0
	for line := range strings.Lines(log) {
		if traceBegins.MatchString(line) {
			trace = maxTraceLines
		}
		if trace > 0 || storageParts.MatchString(line) && !strings.Contains(line, "audit(") {
			kept.WriteString(line)
		}
		if trace--; traceEnds.MatchString(line) {
			trace = 0
		}
	}
	return kept.String()
}

// readers of the logs of kernels: of each node a pod of weft that may.
func readers(pods []corev1.Pod) []corev1.Pod {
	on := map[string]corev1.Pod{}
	for _, component := range []string{componentAgent, componentNodePlugin} { // the latter is on more nodes
		for _, pod := range pods {
			if pod.Labels[v1alpha1.ComponentLabel] == component && pod.Status.Phase == corev1.PodRunning {
				on[pod.Spec.NodeName] = pod
			}
		}
	}
	return slices.SortedFunc(maps.Values(on), func(a, b corev1.Pod) int { return cmp.Compare(a.Spec.NodeName, b.Spec.NodeName) })
}

// collectKernelLogs of all nodes with a pod of weft that may read them.
func (r *reporter) collectKernelLogs(ctx context.Context, b *bundle, pods []corev1.Pod) {
	b.collect(ctx, readers(pods), func(pod *corev1.Pod) string { return "kernel/" + pod.Spec.NodeName + ".log" }, r.kernelLog)
}

// kernelLog of the node of a pod.
func (r *reporter) kernelLog(ctx context.Context, pod *corev1.Pod) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	container := find(pod.Spec.Containers, func(c *corev1.Container) bool { return strings.HasPrefix(c.Name, "weft-") })
	if container == nil {
		return "", fmt.Errorf("pod %s has no container of weft", pod.Name)
	}
	out, in := io.Pipe()
	go func() { _ = in.CloseWithError(r.exec(ctx, pod, container.Name, readKernelLog, in)) }() // closing never fails
	log, err := lastBytes(out, maxKernelLog)
	if err != nil {
		return "", fmt.Errorf("run %s in pod %s: %w: %s", readKernelLog[0], pod.Name, err, text.Clip(log, maxComplaint))
	}
	return fmt.Sprintf("Lines about storage, of the log of the kernel of node %s:\n%s", pod.Spec.NodeName, storageLines(log)), nil
}

// An executor runs a command in a container and copies what it prints and complains about.
type executor func(ctx context.Context, pod *corev1.Pod, container string, command []string, out io.Writer) error

// executing through the API server, over a WebSocket, or over SPDY where something on the way passes no WebSockets.
func executing(config *rest.Config) (executor, error) {
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, pod *corev1.Pod, container string, command []string, out io.Writer) error {
		url := typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
		overWebSocket, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
		if err != nil {
			return err
		}
		overSPDY, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, url)
		if err != nil {
			return err
		}
		either, err := remotecommand.NewFallbackExecutor(overWebSocket, overSPDY, cannotUpgrade)
		if err != nil {
			return err
		}
		return either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: out})
	}, nil
}
