// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// scannedSize of a volume with room for any of these.
const scannedSize = 64 << 20

// scanned is what this machine's udev, LVM and MD take up by themselves where they find it.
type scanned struct {
	// make it on a device, under a name, and leave it there, not in use.
	make func(device, name string) [][]string
	// taken tells whether the machine has taken up what has a name, on a device.
	taken func(l *lab, device, name string) bool
	// release it then.
	release func(l *lab, device, name string)
}

func allScanned() map[string]scanned {
	array := func(options ...string) scanned {
		return scanned{
			make: func(device, name string) [][]string {
				create := append([]string{"mdadm", "--create", "/dev/md/" + name, "--run", "--force", "--raid-devices=1"}, options...)
				return [][]string{append(create, device), {"mdadm", "--stop", "/dev/md/" + name}}
			},
			taken: func(l *lab, device, _ string) bool { return len(l.holders(device)) > 0 },
			release: func(l *lab, device, _ string) {
				for _, holder := range l.holders(device) {
					l.run("mdadm", "--stop", "/dev/"+holder)
				}
			},
		}
	}
	return map[string]scanned{
		"a volume group": {
			make: func(device, name string) [][]string {
				return [][]string{
					{"pvcreate", "-qq", device},
					{"vgcreate", "-qq", name, device},
				}
			},
			// systemd, which this machine has not, activates the group then (69-lvm.rules).
			taken: func(_ *lab, _, name string) bool {
				_, err := os.Stat(filepath.Join("/run/lvm/vgs_online", name))
				return err == nil
			},
			release: func(*lab, string, string) {},
		},
		"an array, by its start":                  array("--level=1", "--metadata=1.2"),
		"an array, by its end":                    array("--level=1", "--metadata=0.90"),
		"an array, by its end, of a later format": array("--level=1", "--metadata=1.0"),
		"a container, by its end":                 array("--metadata=ddf"),
	}
}

func (l *lab) run(command ...string) string {
	l.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(l.Context()), command[0], command[1:]...).CombinedOutput()
	if err != nil {
		l.Fatalf("%q: %v: %s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

// holders of a block device: those that are made of it.
func (l *lab) holders(device string) []string {
	entries, err := os.ReadDir(filepath.Join("/sys/class/block", device, "holders"))
	must(l, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// loop makes a device of a file.
func (l *lab) loop(file string) string {
	l.Helper()
	return filepath.Base(l.run("losetup", "--find", "--show", file))
}

// mapped makes a device of a file as others do with device mapper.
func (l *lab) mapped(file string) string {
	l.Helper()
	loop := "/dev/" + l.loop(file)
	l.Cleanup(func() { l.run("losetup", "--detach", loop) })
	l.run("dmsetup", "create", "lab-of-host", "--table", fmt.Sprintf("0 %d linear %s 0", scannedSize/512, loop))
	l.Cleanup(func() { l.run("dmsetup", "remove", "--retry", "lab-of-host") })
	return filepath.Base(l.run("readlink", "--canonicalize", "/dev/mapper/lab-of-host"))
}

// image is a file with something that is scanned in it, under a name.
func (l *lab) image(c scanned, name string) string {
	l.Helper()
	file := filepath.Join(l.dir, name+".img")
	must(l, os.WriteFile(file, nil, 0o600))
	must(l, os.Truncate(file, scannedSize))
	device := l.loop(file)
	for _, command := range c.make("/dev/"+device, name) {
		l.run(command...)
	}
	l.run("losetup", "--detach", "/dev/"+device)
	l.run("udevadm", "settle")
	must(l, os.RemoveAll("/run/lvm")) // what was noted while it was made
	return file
}

// What a pod writes to its raw device concerns the pod alone: no program of the host takes it up when it is
// attached, nor when the kernel announces it once more. A device of the host's own, which
// comes after, is taken up all the while.
func TestLabScannersLeaveVolumesAlone(t *testing.T) {
	for name, c := range allScanned() {
		t.Run(name, func(t *testing.T) { scannersLeaveAlone(t, c, (*lab).volume) })
		t.Run(name+", in an encrypted volume", func(t *testing.T) {
			notInAShortRun(t)
			scannersLeaveAlone(t, c, (*lab).encrypted)
		})
	}
}

func scannersLeaveAlone(t *testing.T, c scanned, volumeWith func(l *lab, id string, sizeBytes int64, nguid string, ports ...*port) *volume) {
	l := setUpLab(t)
	of, others := l.image(c, "labofvolume"), l.image(c, "labofhost")

	v := volumeWith(l, "lab-scanned", scannedSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
	v.up(blockCapability())
	copyTo(l, v.path("pod"), of)
	must(t, v.unpublish())
	must(t, v.unstage())
	v.context.Blank = false
	// A node plugin that is killed here leaves the namespace with nothing built on it.
	connection := fabrics.Connection{NQN: v.context.NQN, HostNQN: v.context.HostNQN(), Portals: v.context.Portals, Connection: v.context.Connection}
	must(t, l.initiator.Connect(v.timeout(), connection))
	ns, err := l.initiator.WaitNamespace(v.timeout(), fabrics.ID{NQN: v.context.NQN, NGUID: v.context.NGUID}, v1alpha1.WithOverhead(v.context.SizeBytes))
	must(t, err)
	l.run("udevadm", "settle")
	l.Expect(l.holders(ns.Name)).To(BeEmpty())
	must(t, v.stage(blockCapability()))
	must(t, v.publish(blockCapability()))
	l.run("udevadm", "trigger", "--action=change", "--subsystem-match=block")
	l.run("udevadm", "settle")

	host := l.mapped(others)
	l.Eventually(func() bool { return c.taken(l, host, "labofhost") }).Should(BeTrue())
	c.release(l, host, "labofhost")

	device := v.device()
	l.Expect(c.taken(l, device.Name, "labofvolume")).To(BeFalse())
	l.Expect(l.holders(device.Name)).To(BeEmpty())
	l.Expect(l.holders(device.Lower.Name)).To(Equal([]string{device.Name}))
	// The volume is taken away when the test ends, which something that uses it would refuse.
}

// copyTo a device what a file holds.
func copyTo(l *lab, device, file string) {
	l.Helper()
	in, err := os.Open(file)
	must(l, err)
	defer in.Close() //nolint:errcheck // nothing was written to it
	out, err := os.OpenFile(device, os.O_WRONLY, 0)
	must(l, err)
	n, err := io.Copy(out, in)
	must(l, err)
	must(l, out.Sync())
	must(l, out.Close())
	if n != scannedSize {
		l.Errorf("%d bytes were copied, want %d", n, scannedSize)
	}
}
