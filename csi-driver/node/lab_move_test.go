// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

// setUpPlainLab is a lab with a volume that has one replica, no mirror, and is attached to this machine.
func setUpPlainLab(t *testing.T) (*lab, client.Client, labMirror, *labLeg) {
	l := setUpLab(t)
	l.SetDefaultEventuallyTimeout(2 * labTimeout)
	only := l.leg(1)
	only.identity = attachment
	only.attach(attachment, only.port)
	api := apiWith(t, attachedVolume(only.context.Connection, only.leg), only.object(labSize))
	editReplica(t, api, only.name, only.admitted(true))
	return l, api, l.keep(api, only.volume), only
}

// A volume with one replica moves from one target to the next, WEFT_MOVES times, while it is mounted and written.
func TestLabVolumeMovesWhileItIsWritten(t *testing.T) {
	for name, encryption := range map[string]v1alpha1.VolumeEncryption{"plain": "", "encrypted": v1alpha1.EncryptionLUKS2} {
		t.Run(name, func(t *testing.T) {
			if encryption != "" {
				notInAShortRun(t)
			}
			movesWhileItIsWritten(t, encryption)
		})
	}
}

func movesWhileItIsWritten(t *testing.T, encryption v1alpha1.VolumeEncryption) {
	moves := labNumber(t, "WEFT_MOVES", 2)
	l, api, m, from := setUpPlainLab(t)
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Encryption = encryption })
	if encryption != "" {
		m.volume.secrets = map[string]string{"passphrase": firstKey}
	}
	must(t, m.stage())
	defer func() { must(t, m.unstage()) }() // before the cleanups of the legs that it uses
	written := filepath.Join(m.staging, "written")
	must(t, put(filepath.Join(m.staging, "before"), "before"))
	w := startWriter(written)
	defer func() {
		if w != nil {
			must(t, w.end())
		}
	}()

	began := time.Now()
	m.mirrored(from.leg)
	must(t, l.service.MirrorChanged(t.Context(), vol))
	t.Logf("mirrored in place in %s", time.Since(began))
	for n := range moves {
		to := l.leg(n + 2)
		began := time.Now()
		m.add(to.leg, labSize)
		to.admit(api, true)
		must(t, l.service.MirrorChanged(t.Context(), vol)) // or its keeper looks within 10 s
		l.Eventually(m.stateOf(to.leg)).Should(Equal(v1alpha1.MemberInSync))
		filled := time.Since(began)
		m.retire(l, from.leg)
		from.port.close(from.volume)
		from.refuse()
		t.Logf("move %d: filled after %s, moved after %s", n+1, filled, time.Since(began))
		must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
		from = to
	}
	must(t, w.end())
	t.Logf("%d writes, the longest %s", w.writes, w.longest)
	must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	done := w
	w = nil
	must(t, done.check(written))
	if text, err := os.ReadFile(filepath.Join(m.staging, "before")); err != nil || !bytes.Equal(text, []byte("before")) {
		t.Errorf("the first file has %q: %v", text, err)
	}
	from.grow(2 * labSize)
	editReplica(t, api, from.name, func(r *v1alpha1.NvmfReplica) { r.Spec.Size.Set(2 * labSize) })
	_, err := l.service.NodeExpandVolume(from.timeout(), &csi.NodeExpandVolumeRequest{
		VolumeId: vol, VolumePath: m.staging, StagingTargetPath: m.staging, CapacityRange: &csi.CapacityRange{RequiredBytes: 2*labSize - encryption.HeaderBytes()},
	})
	must(t, err)
	if top := l.only(); top.SizeBytes != 2*labSize-encryption.HeaderBytes() {
		t.Errorf("grown, the volume's device is %+v", top)
	}
	must(t, m.unstage())
	if r := m.record(); r.Dirty || len(r.Members) != 1 || !mirror.Whole(r) {
		t.Errorf("unstaged, the record is %s", mirror.String(r))
	}
	must(t, m.stage())
	must(t, done.check(written))
}

// only device of the volume that there is.
func (l *lab) only() mapper.Device {
	l.Helper()
	all, err := l.service.Mapper.Of(volumeUUID)
	must(l, err)
	l.Expect(all).To(HaveLen(1))
	return all[0]
}
