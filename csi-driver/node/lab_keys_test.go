// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// adminTimeout of the kernel's host, for which it waits after some proofs that failed: 60 s by default.
const adminTimeout = "/sys/module/nvme_core/parameters/admin_timeout"

// labKeys is a volume whose target wants a proof of its hosts.
type labKeys struct {
	*volume
	ports []*port
	// all keys that there ever were.
	all []dhchap.Pair
}

func (l *lab) keyed(id string, ports ...*port) *labKeys {
	l.Helper()
	var err error
	l.service.Identity, err = dhchap.NewIdentity()
	must(l, err)
	k := &labKeys{volume: l.volume(id, labSize, guid(1), ports...), ports: ports}
	k.admitAs(attachment)
	l.Cleanup(k.wantNoKeys)
	return k
}

// impatient has the kernel wait 5 s only for some answers, which a proof that failed may never bring. A machine that is
// busy may take longer for those that come.
func (k *labKeys) impatient() {
	k.Helper()
	was, err := os.ReadFile(adminTimeout)
	must(k, err)
	k.write(adminTimeout, "5")
	k.Cleanup(func() { k.write(adminTimeout, strings.TrimSpace(string(was))) })
}

// pair of keys that are looked for in the end.
func (k *labKeys) pair() dhchap.Pair {
	k.Helper()
	pair, err := dhchap.NewPair()
	must(k, err)
	k.all = append(k.all, pair)
	return pair
}

// admitAs another host of the attachment, with keys of its own, as controller and agent do.
func (k *labKeys) admitAs(identity string) {
	k.Helper()
	pair := k.pair()
	k.list(identity, pair)
	dir := filepath.Join(nvmet, "hosts", v1alpha1.HostNQN(identity))
	if err := os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrExist) {
		must(k, err)
	}
	k.give(identity, pair)
	link := filepath.Join(k.subsystem, "allowed_hosts", v1alpha1.HostNQN(identity))
	if err := os.Symlink(dir, link); !errors.Is(err, fs.ErrExist) {
		must(k, err)
	}
	k.Cleanup(func() {
		if err := os.Remove(link); !errors.Is(err, fs.ErrNotExist) {
			must(k, err)
		}
		must(k, os.Remove(dir))
	})
}

// give the target keys of a host.
func (k *labKeys) give(identity string, pair dhchap.Pair) {
	k.Helper()
	dir := filepath.Join(nvmet, "hosts", v1alpha1.HostNQN(identity))
	k.write(dir+"/dhchap_ctrl_key", pair.Controller.Text())
	k.write(dir+"/dhchap_key", pair.Host.Text())
}

// forget the keys of the first host, which the kernel cannot take away from it: it is made again, without.
func (k *labKeys) forget() {
	k.Helper()
	host := v1alpha1.HostNQN(k.context.Rotated[0].Identity)
	dir, link := filepath.Join(nvmet, "hosts", host), filepath.Join(k.subsystem, "allowed_hosts", host)
	must(k, os.Remove(link))
	must(k, os.Remove(dir))
	must(k, os.Mkdir(dir, 0o755))
	must(k, os.Symlink(dir, link))
	k.context.Rotated[0].Keys = ""
}

// clockOff sets this machine's clock, until the test ends.
func (l *lab) clockOff(by time.Duration) {
	l.Helper()
	set := func(to time.Time) {
		l.Helper()
		now := unix.NsecToTimespec(to.UnixNano())
		must(l, unix.ClockSettime(unix.CLOCK_REALTIME, &now))
	}
	began := time.Now()
	l.Cleanup(func() { set(began.Add(time.Since(began)).Round(0)) }) // by the clock that counts on
	set(began.Add(by).Round(0))
}

// list a host of the attachment, or other keys of it, in the replica's object.
func (k *labKeys) list(identity string, pair dhchap.Pair) {
	k.Helper()
	sealed, err := pair.Seal(k.service.Identity.PublicKey())
	must(k, err)
	h := nodetest.RotatedHost{Identity: identity, Sealed: sealed, Keys: pair.Fingerprint()}
	for i := range k.context.Rotated {
		if k.context.Rotated[i].Identity == identity {
			k.context.Rotated[i] = h
			return
		}
	}
	k.context.Rotated = append(k.context.Rotated, h)
}

// dismiss the first host, as the kernel engine does: the subsystem leaves its ports, which disconnects all hosts.
func (k *labKeys) dismiss() {
	k.Helper()
	for _, p := range k.ports {
		p.close(k.volume)
	}
	must(k, os.Remove(filepath.Join(k.subsystem, "allowed_hosts", v1alpha1.HostNQN(k.context.Rotated[0].Identity))))
	for _, p := range k.ports {
		p.open(k.volume)
	}
	k.context.Rotated = k.context.Rotated[1:]
}

// wantNoKeys in the kernel's log and in what was recorded, and none in sysfs that others than root can read.
func (k *labKeys) wantNoKeys() {
	k.Helper()
	told, err := exec.CommandContext(context.WithoutCancel(k.Context()), "dmesg").Output()
	must(k, err)
	err = filepath.WalkDir(filepath.Join(k.dir, "staged"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		told = append(told, content...)
		return err
	})
	if !errors.Is(err, fs.ErrNotExist) {
		must(k, err)
	}
	for _, pair := range k.all {
		for _, key := range []dhchap.Key{pair.Host, pair.Controller} {
			if strings.Contains(string(told), strings.Split(key.Text(), ":")[2]) {
				k.Error("the kernel's log, or a record, has a key in it")
			}
		}
	}
}

// hosts as which the volume has live paths, each once for each path.
func (k *labKeys) hosts() []string { return k.hostsOf(k.context.NQN) }

// hostsOf a subsystem as which this machine is connected to it, each once for each path; with its state unless it is
// live.
func (l *lab) hostsOf(nqn string) []string {
	controllers, err := l.initiator.Controllers(nqn)
	l.Expect(err).NotTo(HaveOccurred())
	var identities []string
	for _, c := range controllers {
		identity, _ := v1alpha1.AttachmentOfHost(c.HostNQN)
		if !c.Live() {
			identity += " " + c.State
		}
		identities = append(identities, identity)
	}
	return identities
}

// A volume is staged only with the keys that are its own, by a target that has them, too.
func TestLabKeys(t *testing.T) {
	l := setUpLab(t)
	k := l.keyed("lab-keys", l.port(4420, v1alpha1.TransportTCP))
	k.impatient()
	own, listed := k.all[0], k.context.Rotated[0]
	right := func() {
		k.context.Rotated = []nodetest.RotatedHost{listed}
		k.give(attachment, own)
	}
	for _, c := range []struct {
		name, want string
		change     func()
	}{
		{"no key", "authenticate", func() { k.context.Rotated[0].Sealed, k.context.Rotated[0].Keys = "", "" }},
		{"the key of another volume", "", func() { k.list(attachment, k.pair()) }},
		{"the target's proof is wrong", "", func() { k.list(attachment, dhchap.Pair{Host: own.Host, Controller: k.pair().Controller}) }},
		{"keys that were sealed while the agent was away", "", func() { k.list(attachment, k.pair()) }},
		{"keys that the agent took before they were sealed again", "", func() { k.give(attachment, k.pair()) }},
		{"the target asks for nothing", "does not report that the target", k.forget},
	} {
		right()
		c.change()
		err := k.stage(mountCapability("ext4"))
		t.Logf("%s: %v", c.name, err)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: staged with %v", c.name, err)
		}
		if left := k.hosts(); len(left) > 0 {
			t.Errorf("%s: connected as %v", c.name, left)
		}
		for _, pair := range k.all {
			if err != nil && (strings.Contains(err.Error(), pair.Host.Text()) || strings.Contains(err.Error(), pair.Controller.Text())) {
				t.Errorf("%s: the error has a key in it", c.name)
			}
		}
	}
	right()
	k.up(mountCapability("ext4"))
	must(t, put(k.path("pod/file"), "hello"))
	secrets, err := filepath.Glob("/sys/class/nvme/nvme*/dhchap_*secret")
	must(t, err)
	l.Expect(secrets).NotTo(BeEmpty())
	for _, path := range secrets {
		info, err := os.Stat(path)
		must(t, err)
		l.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)), path)
	}
}

// The clock of a machine does not matter: keys have no dates.
func TestLabKeysWithAnotherClock(t *testing.T) {
	const far = 20 * 365 * 24 * time.Hour
	for _, by := range []time.Duration{-far, far} {
		t.Run(by.String(), func(t *testing.T) {
			l := setUpLab(t)
			k := l.keyed("lab-clock", l.port(4420, v1alpha1.TransportTCP))
			l.clockOff(by)
			k.up(mountCapability("ext4"))
			must(t, put(k.path("pod/file"), "hello"))
			l.Expect(k.hosts()).To(Equal([]string{attachment}))
		})
	}
}

// The objects of an attachment that has ended come back, with its keys: the target knows neither any more.
func TestLabKeysOfAnEarlierAttachment(t *testing.T) {
	l := setUpLab(t)
	p := l.port(4420, v1alpha1.TransportTCP)
	k := l.keyed("lab-replayed", p)
	must(t, k.stage(mountCapability("ext4")))
	must(t, k.unstage())
	former, rotated := *k.volume, k.context.Rotated
	formerContext := k.context
	p.close(&former)
	former.refuse()
	k.context.Rotated, k.context.Blank = nil, false
	const next = "b2b2b2b2-2222-4333-8444-555555555555"
	k.attach(next, p)
	k.admitAs(next)
	must(t, k.stage(mountCapability("ext4")))
	must(t, k.unstage())

	now := k.context
	k.context, k.context.Rotated = formerContext, rotated
	err := k.stage(mountCapability("ext4"))
	t.Log(err)
	l.Expect(err).To(HaveOccurred())
	l.Expect(k.hosts()).To(BeEmpty())
	k.context = now
	must(t, k.stage(mountCapability("ext4")))
	must(t, k.unstage())
}

// The keys of a volume are rotated twice while it is written: no write fails, and the node plugin is restarted in the
// middle. With one path, the device would be lost if that went a moment too early.
func TestLabRotateKeysUnderAWriter(t *testing.T) {
	for _, paths := range []int{1, 2} {
		t.Run(fmt.Sprint(paths), func(t *testing.T) { rotateUnderAWriter(t, paths) })
	}
}

func rotateUnderAWriter(t *testing.T, paths int) {
	l := setUpLab(t)
	var ports []*port
	for n := range paths {
		ports = append(ports, l.port(4420+int32(n), v1alpha1.TransportTCP))
	}
	k := l.keyed("lab-rotate", ports...)
	k.up(mountCapability("ext4"))
	device := k.device()
	w := k.startWriter("pod/written")
	w.goesOn()
	former := attachment
	for _, next := range []string{secondIdentity, thirdIdentity} {
		k.admitAs(next)
		k.context.Blank = false
		l.clock.Step(time.Hour)
		must(t, l.service.MendPaths(k.timeout()))
		w.goesOn()
		was := l.service
		l.service = &node.Service{
			NodeName: was.NodeName, NodeUID: was.NodeUID, Initiator: was.Initiator, Mapper: was.Mapper, Filesystems: was.Filesystems,
			Mirrors: was.Mirrors, Processes: was.Processes, Records: was.Records, Clock: was.Clock, Volumes: was.Volumes, Identity: was.Identity,
		}
		l.Eventually(func(g Gomega) {
			g.Expect(l.service.MendPaths(k.timeout())).To(Succeed())
			g.Expect(k.hosts()).To(Equal(slices.Repeat([]string{next}, paths)))
		}).Should(Succeed())
		w.goesOn()
		retired, err := l.service.RetiredIdentities()
		must(t, err)
		l.Expect(retired).To(Equal([]string{former}))

		begun := time.Now()
		k.dismiss()
		w.goesOn()
		t.Logf("writes went on %s after the former host was dismissed", time.Since(begun).Round(time.Millisecond))
		l.Eventually(k.hosts).Should(Equal(slices.Repeat([]string{next}, paths)))
		must(t, l.service.MendPaths(k.timeout()))
		retired, err = l.service.RetiredIdentities()
		must(t, err)
		l.Expect(retired).To(BeEmpty())
		l.Expect(k.device().Name).To(Equal(device.Name))
		l.Expect(k.health()).To(BeEmpty())
		former = next
	}
	w.end()
}
