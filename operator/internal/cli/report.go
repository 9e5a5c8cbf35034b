// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// defaultReportSize bounds what is in a bundle, before it is compressed.
	defaultReportSize = "256Mi"
	// maxLogBytes of one container, the last ones.
	maxLogBytes = 4 << 20
	// maxLogLines that are asked for: 4 MiB have fewer, unless a line has less than 100 bytes.
	maxLogLines = 40000
	// logTimeout of one container's log. A node that is off does not answer.
	logTimeout = 30 * time.Second
	// objectsShare of the size that the objects of one kind may take: 1/objectsShare.
	objectsShare = 4
)

func reportCommand(at *cluster, version string, now clock.PassiveClock) *cobra.Command {
	var file string
	kernelLogs := true
	namespace, most := defaultNamespace, defaultReportSize
	cmd := &cobra.Command{
		Use:   "report [-o FILE]",
		Short: "Collect what is needed to report a problem into one file, without secrets",
		Long: `Collect what is needed to report a problem into one file, a tar.gz: the objects of weft, what Kubernetes knows of its volumes and nodes, Events,
the logs of weft's pods, also of containers that ended before, their metrics, versions, values of the chart, and the tables of status, check,
pools, drives and snapshots. Of the log of each node's kernel, it has the lines about storage: the command runs dmesg in the node plugins and agents,
unless --kernel-logs is false.

No Secret is read. Encrypted keys, values of environment variables, annotations of others, and everything that looks like a key, token or
password is left out, also of logs. Names of nodes, namespaces, claims and addresses are in the file. Look through it before you publish it.

What cannot be read is listed in errors.txt of the file, and the rest is collected anyway.

Exit codes: 0 the file is written; 1 error.`,
		Example: `  kubectl weft report
  kubectl weft report -o weft.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			size, err := resource.ParseQuantity(most)
			if err != nil || size.Value() < 1<<20 {
				return fmt.Errorf("--max-size is %q; must be a size of at least 1Mi, such as %s", most, defaultReportSize)
			}
			r, err := newReporter(at, version, namespace, now.Now())
			if err != nil {
				return err
			}
			r.progress = newScreen(cmd.ErrOrStderr(), io.Discard)
			if !kernelLogs {
				r.exec = nil
			}
			return r.writeFile(cmd, file, size.Value())
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "output", "o", "", `file to write, or "-" for standard output (default weft-report-TIME.tar.gz)`)
	flags.StringVarP(&namespace, "namespace", "n", namespace, "namespace that weft is installed in")
	flags.StringVar(&most, "max-size", most, "size of what is collected, before compression; logs are left out first")
	flags.BoolVar(&kernelLogs, "kernel-logs", kernelLogs, "run dmesg in the node plugins and agents, to collect the lines about storage of the logs of kernels")
	return cmd
}

// reporter reads what a bundle is made of.
type reporter struct {
	api     client.Reader
	objects dynamic.Interface
	// logs of a container, the last maxLogLines of them; of the one that ended before, if previous.
	logs func(ctx context.Context, namespace, pod, container string, previous bool) (io.ReadCloser, error)
	// check all nodes, as kubectl weft check does.
	check func(ctx context.Context) (*survey, error)
	// metrics of a pod, as it serves them.
	metrics func(ctx context.Context, pod *corev1.Pod) (string, error)
	// exec runs a command in a container; nil: logs of kernels are not wanted.
	exec executor
	// server's version.
	server func() (string, error)
	// progress is shown here, on a terminal; nil: nowhere.
	progress           *screen
	namespace, version string
	now                time.Time
}

func newReporter(at *cluster, version, namespace string, now time.Time) (*reporter, error) {
	api, err := at.client()
	if err != nil {
		return nil, err
	}
	config, err := at.config().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	asked, err := at.asker(api, namespace)
	if err != nil {
		return nil, err
	}
	exec, err := executing(config)
	if err != nil {
		return nil, err
	}
	return &reporter{
		metrics: asked.text, exec: exec, check: func(ctx context.Context) (*survey, error) {
			return surveyOf(ctx, api, version, namespace, whichNodes{})
		},
		api: api, objects: objects, namespace: namespace, version: version, now: now,
		logs: func(ctx context.Context, namespace, pod, container string, previous bool) (io.ReadCloser, error) {
			options := &corev1.PodLogOptions{Container: container, Previous: previous, TailLines: new(int64(maxLogLines))}
			return typed.CoreV1().Pods(namespace).GetLogs(pod, options).Stream(ctx)
		},
		server: func() (string, error) {
			v, err := typed.Discovery().ServerVersion()
			if err != nil {
				return "", err
			}
			return v.GitVersion, nil
		},
	}, nil
}

// writeFile writes the bundle so that only its owner can read it. A file that exists is not overwritten.
func (r *reporter) writeFile(cmd *cobra.Command, file string, most int64) error {
	if file == "-" {
		_, err := r.write(cmd.Context(), cmd.OutOrStdout(), most)
		return err
	}
	if file == "" {
		file = r.name() + ".tar.gz"
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	failed, err := r.write(cmd.Context(), f, most)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	t := newTable(cmd.OutOrStdout())
	t.line("wrote %s", file)
	if failed > 0 {
		t.line("%d parts could not be collected; they are listed in errors.txt in the file", failed)
	}
	t.line("Look through the file before you publish it.")
	return t.err
}

// name of the bundle.
func (r *reporter) name() string { return "weft-report-" + r.now.UTC().Format("20060102-150405") }

// write the bundle; how many parts failed. An error is one of the output, or that the person interrupted it.
func (r *reporter) write(ctx context.Context, out io.Writer, most int64) (failed int, err error) {
	zipped := gzip.NewWriter(out)
	b := &bundle{tar: tar.NewWriter(zipped), dir: r.name(), now: r.now, left: most, most: most, progress: r.progress}
	r.collect(ctx, b)
	if r.progress != nil {
		_ = r.progress.bars(nil)
	}
	b.finish()
	return len(b.failures), errors.Join(ctx.Err(), b.err, b.tar.Close(), zipped.Close())
}

// bundle is a tar of bounded size, and keeps the first error of its output.
type bundle struct {
	tar        *tar.Writer
	dir        string
	now        time.Time
	left, most int64
	// failures of single parts.
	failures []string
	err      error
	// collected parts, of so many as are known of.
	collected, parts int
	progress         *screen
}

// step: a part was collected, or failed.
func (b *bundle) step() {
	b.collected++
	if b.progress != nil {
		_ = b.progress.bars([]string{countBar(b.collected, b.parts, "parts")}) // the bundle is what matters
	}
}

// add a part to the bundle, without secrets.
func (b *bundle) add(name, text string) {
	text = redactText(text)
	if int64(len(text)) > b.left {
		b.fail(name, fmt.Errorf("left out: with its %d bytes the report would be larger than --max-size", len(text)))
		return
	}
	b.left -= int64(len(text))
	b.put(name, text)
}

// put a file, whatever is left.
func (b *bundle) put(name, text string) {
	if b.err != nil {
		return
	}
	if b.err = b.tar.WriteHeader(&tar.Header{Name: b.dir + "/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: b.now, Format: tar.FormatPAX}); b.err == nil {
		_, b.err = io.WriteString(b.tar, text)
	}
}

// fail notes that a part is not there, and why.
func (b *bundle) fail(name string, err error) {
	b.failures = append(b.failures, redactText(strings.Join(strings.Fields(name+": "+err.Error()), " ")))
}

// finish with what is not there.
func (b *bundle) finish() {
	text := "Everything was collected.\n"
	if len(b.failures) > 0 {
		text = strings.Join(b.failures, "\n") + "\n"
	}
	b.put("errors.txt", text)
}

// lastBytes of a text, from the beginning of a line.
func lastBytes(in io.Reader, most int) (string, error) {
	var kept []byte
	buffer := make([]byte, 64<<10)
	cut := false
	for {
		n, err := in.Read(buffer)
		kept = append(kept, buffer[:n]...)
		if len(kept) > 2*most { // now and then: moving it costs
			kept, cut = append(kept[:0], kept[len(kept)-most:]...), true
		}
		if err != nil {
			if len(kept) > most {
				kept, cut = kept[len(kept)-most:], true
			}
			if i := bytes.IndexByte(kept, '\n'); cut && i >= 0 {
				kept = kept[i+1:]
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return string(kept), err
		}
	}
}
