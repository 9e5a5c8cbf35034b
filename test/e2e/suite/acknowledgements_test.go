// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/weft-storage/weft/test/e2e/lab"
)

// writer is a script that appends numbers to a file, each made durable before it is acknowledged on standard output,
// with the node's uptime in seconds. It ends with the first write that fails.
const writer = `i=0
while :; do
	i=$((i+1))
	echo $i >> %[1]s && sync %[1]s && read up idle < /proc/uptime && echo acknowledged $i $up || { echo failed at $i; exit 1; }
done`

// uptimeTick is the resolution of /proc/uptime.
const uptimeTick = 10 * time.Millisecond

// acknowledgements of a writer. They are logged here, outside the cluster, as they come: neither the API server nor the
// cluster's network takes part, and what was acknowledged is known when the writer's node is off.
type acknowledgements struct {
	pod *corev1.Pod

	mu sync.Mutex
	// lines of the container's log that are here, and what is here of the next one.
	lines int
	part  []byte
	// at has the node's uptime of each acknowledgement; the first is that of number 1.
	at []time.Duration
	// failed is what the writer said that is no acknowledgement.
	failed []string
}

// file that the writer of a pod writes.
func (a *acknowledgements) file() string { return mountPath + "/" + a.pod.Name + ".log" }

// startWriter starts a writer in the background of a pod, and logs its acknowledgements until the test ends.
func startWriter(ctx context.Context, pod *corev1.Pod) *acknowledgements {
	GinkgoHelper()
	a := &acknowledgements{pod: pod}
	// What the container's first process would print is in the container's log.
	sh(ctx, pod, `(`+writer+`) > /proc/1/fd/1 2>&1 < /dev/null &`, a.file())
	follow, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.follow(follow)
	}()
	DeferCleanup(func() {
		cancel()
		<-ended
	})
	return a
}

// follow the log of the pod's container on its node.
func (a *acknowledgements) follow(ctx context.Context) {
	file := fmt.Sprintf("/var/log/pods/%s_%s_%s/%s/0.log", a.pod.Namespace, a.pod.Name, a.pod.UID, a.pod.Spec.Containers[0].Name)
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for ctx.Err() == nil {
		a.mu.Lock()
		a.part = nil
		next := strconv.Itoa(a.lines + 1)
		a.mu.Unlock()
		// It ends with the connection: its node may be off, for good or not.
		_ = machines.Exec(ctx, a.pod.Spec.NodeName, lab.Streams{Stdout: a}, "tail", "-n", "+"+next, "-F", file)
		select {
		case <-ctx.Done():
		case <-again.C:
		}
	}
}

// Write takes what comes of the log.
func (a *acknowledgements) Write(data []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.part = append(a.part, data...)
	for {
		end := bytes.IndexByte(a.part, '\n')
		if end < 0 {
			return len(data), nil
		}
		a.take(string(a.part[:end]))
		a.part = a.part[end+1:]
		a.lines++
	}
}

// take a line of the log: time, stream and a tag of the runtime, then what was printed.
func (a *acknowledgements) take(line string) {
	words := strings.SplitN(line, " ", 4)
	said := words[len(words)-1]
	var n int
	var up float64
	if _, err := fmt.Sscanf(said, "acknowledged %d %g", &n, &up); err != nil || n != len(a.at)+1 {
		a.failed = append(a.failed, said)
		return
	}
	a.at = append(a.at, time.Duration(up*float64(time.Second)).Round(uptimeTick))
}

// count is the highest number that was acknowledged. It fails when the writer did.
func (a *acknowledgements) count() int {
	GinkgoHelper()
	a.mu.Lock()
	defer a.mu.Unlock()
	Expect(a.failed).To(BeEmpty(), "what the writer said after number %d", len(a.at))
	return len(a.at)
}

// goOn waits until more than n are acknowledged.
func (a *acknowledgements) goOn(ctx context.Context, n int, within time.Duration) {
	GinkgoHelper()
	Eventually(ctx, a.count).WithTimeout(within).WithPolling(500 * time.Millisecond).Should(BeNumerically(">", n))
}

// goOnNow waits until ten more are acknowledged than are now.
func (a *acknowledgements) goOnNow(ctx context.Context) {
	GinkgoHelper()
	a.goOn(ctx, a.count()+10, 2*time.Minute)
}

// stall waits until nothing more is acknowledged for a time, and returns how far the writer came.
func (a *acknowledgements) stall(ctx context.Context, quiet time.Duration) int {
	GinkgoHelper()
	last, since := a.count(), time.Now()
	Eventually(ctx, func() time.Duration {
		if n := a.count(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since)
	}).WithTimeout(2 * time.Minute).WithPolling(500 * time.Millisecond).Should(BeNumerically(">", quiet))
	return last
}

// pause is the longest time from one acknowledgement to the next, from that of number n on, by the clock of the pod's
// node, and when it began, since the node's start. The report has it.
func (a *acknowledgements) pause(what string, n int) (longest, since time.Duration) {
	GinkgoHelper()
	a.mu.Lock()
	defer a.mu.Unlock()
	pauses := a.pauses(n)
	if len(pauses) == 0 {
		Fail(fmt.Sprintf("nothing was acknowledged after number %d", n))
	}
	longest = slices.Max(pauses)
	after := n + slices.Index(pauses, longest)
	slices.Sort(pauses)
	AddReportEntry("longest pause "+what, fmt.Sprintf("%s, after number %d of %d, at %s since the node's start; median %s", longest, after, len(a.at),
		a.at[after-1], pauses[len(pauses)/2]), ReportEntryVisibilityAlways)
	return longest, a.at[after-1]
}

// pauses between acknowledgements, from that of number n on, which is 1 at least.
func (a *acknowledgements) pauses(n int) []time.Duration {
	var all []time.Duration
	for i := n; i < len(a.at); i++ {
		all = append(all, a.at[i]-a.at[i-1])
	}
	return all
}

// nothingLost checks that a pod with the volume reads every acknowledged number, in order.
func (a *acknowledgements) nothingLost(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	n := a.count()
	Expect(sh(ctx, pod, `head -n %d %s | awk '$1 != NR {print "line " NR " holds " $1; exit}'`, n, a.file())).To(BeEmpty())
	Expect(strconv.Atoi(sh(ctx, pod, `wc -l < %s`, a.file()))).To(BeNumerically(">=", n))
}

func TestAcknowledgementsAreReadFromALog(t *testing.T) {
	a := &acknowledgements{}
	for _, part := range []string{
		"2026-01-02T03:04:05.6Z stdout F acknowledged 1 10.25\n2026-01-02T03:04:06.6Z std", "out F acknowledged 2 11.00\n",
		"2026-01-02T03:04:09.6Z stdout F acknowledged 3 14.50\n2026-01-02T03:04:09.6Z stdout F acknowledged 4 14.75\n",
	} {
		if n, err := a.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if want := []time.Duration{750 * time.Millisecond, 3500 * time.Millisecond, 250 * time.Millisecond}; !slices.Equal(a.pauses(1), want) {
		t.Errorf("pauses %v, not %v", a.pauses(1), want)
	}
	if a.lines != 4 || len(a.failed) > 0 {
		t.Errorf("%d lines, failed %q", a.lines, a.failed)
	}
	for _, bad := range []string{"failed at 5", "acknowledged 6 15.00", "sync: error syncing '/data/writer.log': Input/output error"} {
		a.failed = nil
		if _, err := a.Write([]byte("2026-01-02T03:04:10Z stdout F " + bad + "\n")); err != nil || !slices.Equal(a.failed, []string{bad}) {
			t.Errorf("%q is in no failure: %q, %v", bad, a.failed, err)
		}
	}
}
