// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// dirtyBytes of a pod are written, and not synced, when its node shuts down.
const dirtyBytes = 32 << 20

// writeDirty leaves data in the page cache.
func (v *volume) writeDirty(name string) []byte {
	v.Helper()
	data := bytes.Repeat([]byte("weft"), dirtyBytes/4)
	must(v, os.WriteFile(v.path(name), data, 0o600))
	return data
}

// What a node's shutdown does while targets serve: all that was written is there, and nothing is left that could hold
// it up.
func TestLabShutdownWhileTheTargetServes(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-shutdown", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
	v.up(mountCapability("ext4"))
	data := v.writeDirty("pod/file")
	begun := time.Now()
	v.down()
	took := time.Since(begun)
	t.Logf("unmounted and disconnected with %d MiB to write: %v", dirtyBytes>>20, took.Round(time.Millisecond))
	l.Expect(took).To(BeNumerically("<", 30*time.Second))
	v.comesBackWith("pod/file", data)
}

// What a node's shutdown meets when a target is gone for good: how the wait of an unmount ends, and when. No signal
// ends it.
func TestLabUnmountWhileTheTargetIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		lossTimeoutSeconds int32
		// before or meanwhile is when the attachment is revoked, relative to the unmount; else it is not.
		before, meanwhile bool
		// within what time it ends.
		within time.Duration
	}{
		// It counts tries, one each 2 s, from when the connection was lost.
		"by ctrlLossTimeout":                            {10, false, false, 30 * time.Second},
		"after the attachment was revoked":              {-1, true, false, 20 * time.Second},
		"when the attachment is revoked while it hangs": {-1, false, true, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			l := setUpLab(t)
			p := l.port(4420, v1alpha1.TransportTCP)
			v, other := l.volume("lab-gone", labSize, guid(1), p), l.volume("lab-other", labSize, guid(2), l.port(4421, v1alpha1.TransportTCP))
			v.context.CtrlLossTimeoutSeconds = c.lossTimeoutSeconds
			v.up(mountCapability("ext4"))
			other.up(mountCapability("ext4"))
			must(t, put(v.path("pod/synced"), "hello"))
			v.writeDirty("pod/file")
			p.close(v)
			l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
			must(t, v.unpublish())
			if c.before {
				v.context.Revoked = true
			}
			ended := make(chan error, 1)
			begun := time.Now()
			go func() { ended <- v.unstage() }()
			if c.meanwhile {
				v.hangs()
				v.context.Revoked = true
				must(t, l.service.GiveUpRevoked(v.timeout()))
			}
			var err error
			l.Eventually(ended, c.within).Should(Receive(&err))
			t.Logf("ended after %v: %v", time.Since(begun).Round(time.Millisecond), err)
			must(t, v.unstage())
			v.gone()
			l.Expect(other.paths()).To(Equal([]string{"live"}))
			must(t, put(other.path("pod/file"), "hello"))
			// What was acknowledged is there.
			p.open(v)
			v.context.Revoked = false
			v.comesBackWith("pod/synced", []byte("hello"))
		})
	}
}

// hangs waits until the unmount hangs, and shows that neither a signal nor a look at what is attached ends it.
func (v *volume) hangs() {
	v.Helper()
	unmounting := func() (bool, error) { return uninterruptible("/proc", "umount") }
	v.Eventually(unmounting).Should(BeTrue())
	for _, signal := range []string{"-TERM", "-KILL"} {
		must(v, exec.CommandContext(v.Context(), "pkill", signal, "-x", "umount").Run())
		v.Consistently(unmounting, "2s").Should(BeTrue())
	}
	must(v, v.service.GiveUpRevoked(v.timeout()))
	v.Consistently(unmounting, "2s").Should(BeTrue())
	v.Expect(v.paths()).To(Equal([]string{"connecting"}))
}
