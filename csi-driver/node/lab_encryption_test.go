// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"context"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

// planted is what a pod writes, and what nobody else may find.
var planted = bytes.Repeat([]byte("a pod's planted secret."), 1<<14)

// encrypted makes a volume of so many bytes that a pod sees.
func (l *lab) encrypted(id string, sizeBytes int64, nguid string, ports ...*port) *volume {
	l.Helper()
	return l.volume(id, sizeBytes+v1alpha1.LUKSHeaderBytes, nguid, ports...).encrypt()
}

// encrypt a volume that was never staged.
func (v *volume) encrypt() *volume {
	v.context.Encryption = v1alpha1.EncryptionLUKS2
	v.secrets = map[string]string{"passphrase": firstKey}
	return v
}

// wantNothingPlanted in what the target has of the volume.
func (v *volume) wantNothingPlanted() {
	v.Helper()
	must(v, osexec.CommandContext(context.WithoutCancel(v.Context()), "sync", v.file).Run())
	data, err := os.ReadFile(v.file)
	must(v, err)
	for _, text := range []string{string(planted[:16]), firstKey, "lost+found"} {
		if bytes.Contains(data, []byte(text)) {
			v.Errorf("%s has %q", v.file, text)
		}
	}
}

// byHand opens the volume's LUKS header with nothing of weft's, mounts what is inside, and gives a file of it.
func (v *volume) byHand(file string) []byte {
	v.Helper()
	const name = "lab-by-hand"
	loop := v.run("losetup", "--find", "--show", "--read-only", "--offset", "4194304", v.file)
	defer v.run("losetup", "--detach", loop)
	cmd := osexec.CommandContext(context.WithoutCancel(v.Context()), "cryptsetup", "open", "--readonly", "--key-file", "-", loop, name)
	cmd.Stdin = strings.NewReader(firstKey)
	out, err := cmd.CombinedOutput()
	if err != nil {
		v.Fatalf("cryptsetup open: %v: %s", err, out)
	}
	defer v.run("cryptsetup", "close", name)
	dir := v.path("by-hand")
	must(v, os.MkdirAll(dir, 0o700))
	v.run("mount", "-o", "ro,noload", "/dev/mapper/"+name, dir)
	defer v.run("umount", dir)
	data, err := os.ReadFile(filepath.Join(dir, file))
	must(v, err)
	return data
}

// What a pod writes is nowhere with the target, is there again with the key, also by hand, and grows while it is used.
func TestLabEncryptedVolume(t *testing.T) {
	const sizeBytes = 64 << 20
	l := setUpLab(t)
	v := l.encrypted("encrypted", sizeBytes, guid(1), l.port(4450, v1alpha1.TransportTCP))
	must(t, os.MkdirAll(v.path(""), 0o700))
	began := time.Now()
	must(t, v.stage(mountCapability("ext4")))
	t.Logf("encrypted, formatted and mounted in %s", time.Since(began))
	must(t, v.publish(mountCapability("ext4")))
	d := v.device()
	if d.SizeBytes != sizeBytes || d.Kind != mapper.Crypt {
		t.Errorf("pods see %+v", d)
	}
	must(t, put(v.path("pod/file"), string(planted)))
	v.wantNothingPlanted()
	if head := v.head(4); head != "LUKS" {
		t.Errorf("the data begin with %q", head)
	}

	v.grow(2*sizeBytes + v1alpha1.LUKSHeaderBytes)
	grown, err := v.service.NodeExpandVolume(v.timeout(), &csi.NodeExpandVolumeRequest{
		VolumeId: v.id, VolumePath: v.path("pod"), StagingTargetPath: v.path("staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * sizeBytes},
	})
	must(t, err)
	if now := v.device(); grown.GetCapacityBytes() != 2*sizeBytes || now.SizeBytes != 2*sizeBytes || now.Number != d.Number {
		t.Errorf("grown to %d: %+v", grown.GetCapacityBytes(), now)
	}
	if out := v.run("dmsetup", "table", d.Label); strings.Contains(out, "crypt") && !strings.Contains(out, "0000") {
		t.Errorf("dmsetup shows the key to who does not ask for it: %s", out)
	}
	v.down()
	if data := v.byHand("file"); !bytes.Equal(data, planted) {
		t.Errorf("by hand, the file has %d other bytes", len(data))
	}

	v.context.Blank, v.context.SizeBytes = false, 2*sizeBytes+v1alpha1.LUKSHeaderBytes
	before, err := os.ReadFile(v.file)
	must(t, err)
	v.secrets = map[string]string{"passphrase": secondKey}
	want(t, v.stage(mountCapability("ext4")), codes.FailedPrecondition, "does not open the volume's LUKS header")
	v.gone()
	after, err := os.ReadFile(v.file)
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("a stage with another key wrote something")
	}
	v.secrets["previousPassphrase"] = firstKey
	must(t, v.stage(onlyRead(mountCapability("ext4")))) // on a device that takes no writes
	must(t, v.unstage())
	now, err := os.ReadFile(v.file)
	must(t, err)
	if !bytes.Equal(before, now) {
		t.Error("a stage for reading wrote something")
	}
	began = time.Now()
	must(t, v.stage(mountCapability("ext4")))
	t.Logf("staged with a changed key in %s", time.Since(began))
	must(t, v.unstage())
	v.secrets = map[string]string{"passphrase": secondKey}
	began = time.Now()
	must(t, v.stage(mountCapability("ext4")))
	t.Logf("staged again in %s", time.Since(began))
	must(t, v.unstage())
	v.comesBackWith("pod/file", planted)
}

// A raw block volume is encrypted, too, and a device that a process holds stays until it lets go.
func TestLabEncryptedBlockVolume(t *testing.T) {
	l := setUpLab(t)
	v := l.encrypted("encrypted", 32<<20, guid(1), l.port(4450, v1alpha1.TransportTCP))
	v.up(blockCapability())
	must(t, put(v.path("pod"), string(planted)))
	v.wantNothingPlanted()
	if most := sysfs(t, v.device().Name, "queue/discard_max_bytes"); most != "0" {
		t.Errorf("the volume passes on discards of %s bytes", most)
	}
	held, err := os.Open(v.device().Path)
	must(t, err)
	must(t, v.unpublish())
	if err := v.unstage(); err == nil {
		t.Error("it was unstaged while its device was open")
	}
	must(t, held.Close())
	must(t, v.unstage())
	v.gone()
	v.context.Blank = false
	must(t, v.stage(blockCapability()))
	must(t, v.publish(blockCapability()))
	if text := start(t, v.path("pod"), len(planted)); text != string(planted) {
		t.Error("the volume has other data than was written")
	}
}

// A leg is lost under an encrypted volume, and comes back.
func TestLabEncryptedMirrorLosesALeg(t *testing.T) {
	notInAShortRun(t)
	l := setUpLab(t)
	l.SetDefaultEventuallyTimeout(2 * labTimeout)
	m, legs := l.twoReplicas(func(api client.Client) client.Client { return api })
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Encryption = v1alpha1.EncryptionLUKS2 })
	m.volume.secrets = map[string]string{"passphrase": firstKey}
	must(t, m.stage())
	defer func() { must(t, m.unstage()) }()
	must(t, put(filepath.Join(m.staging, "before"), string(planted)))
	legs[1].port.close(legs[1].volume)
	must(t, put(filepath.Join(m.staging, "without"), string(planted)))
	l.Eventually(m.stateOf(legs[1].leg)).Should(Equal(v1alpha1.MemberOut))
	l.Eventually(func() (int, error) {
		controllers, err := l.initiator.Controllers(legs[1].nqn())
		return len(controllers), err
	}).Should(BeZero())

	legs[1].admit(m.api, false)
	l.Eventually(m.stateOf(legs[1].leg)).Should(Equal(v1alpha1.MemberInSync))
	must(t, put(filepath.Join(m.staging, "back"), string(planted)))
	must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	for _, name := range []string{"before", "without", "back"} {
		if data, err := os.ReadFile(filepath.Join(m.staging, name)); err != nil || !bytes.Equal(data, planted) {
			t.Errorf("%s has %d other bytes: %v", name, len(data), err)
		}
	}
	must(t, m.unstage())
	m.wantEqual(legs...)
	for _, g := range legs {
		g.wantNothingPlanted()
	}
}
