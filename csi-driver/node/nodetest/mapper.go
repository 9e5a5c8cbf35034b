// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

const (
	mappedDir   = "sys/devices/virtual/block"
	mappedMajor = "253:"
	sectorBytes = 512
)

// mapped is a device of device mapper. The kernel keeps it until it is removed, whatever becomes of who made it.
type mapped struct {
	name, number, label, uuid string
	// live is the table in force, and loaded the one for the next resume; nil for none.
	live, loaded *table
	// opens by processes, besides what is mounted.
	opens int
	// waiting are calls whose I/O is on its way to the lower device.
	waiting int
	// suspended: new I/O waits.
	suspended bool
	// deferred: it is removed when its last user lets go of it.
	deferred bool
}

// table of one line.
type table struct {
	sectors int64
	// lower device by its number, with the name that it had; empty for the error target.
	number, name string
	// offset in it, in sectors, and cipher of a table that encrypts.
	offset int64
	cipher *mapper.Cipher
}

// DeviceMapper of this kernel.
func (k *Kernel) DeviceMapper() mapper.Control { return deviceMapper{k} }

type deviceMapper struct{ kernel *Kernel }

func (deviceMapper) failed(what, label string, err error) error {
	if err != nil {
		return fmt.Errorf("device mapper: %s %s: %w", what, label, err)
	}
	return nil
}

// Create implements mapper.Control.
func (d deviceMapper) Create(label, uuid string) error {
	return d.failed("create", label, d.kernel.createMapped(label, uuid))
}

// Load implements mapper.Control.
func (d deviceMapper) Load(label string, t mapper.Table) error {
	return d.failed("load a table into", label, d.kernel.loadMapped(label, t))
}

// Table implements mapper.Control.
func (d deviceMapper) Table(label string) (mapper.Table, error) {
	t, err := d.kernel.tableOf(label)
	return t, d.failed("read the table of", label, err)
}

// Types implements mapper.Control.
func (d deviceMapper) Types() ([]string, error) {
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	types := []string{"linear", "error", "striped"}
	if !d.kernel.noCrypt {
		types = append(types, "crypt")
	}
	return types, nil
}

// Resume implements mapper.Control.
func (d deviceMapper) Resume(label string) error {
	return d.failed("resume", label, d.kernel.resumeMapped(label))
}

// Suspend implements mapper.Control.
func (d deviceMapper) Suspend(label string) error {
	return d.failed("suspend", label, d.kernel.suspendMapped(label))
}

// Rename implements mapper.Control.
func (d deviceMapper) Rename(label, to string) error {
	return d.failed("rename", label, d.kernel.renameMapped(label, to))
}

// Remove implements mapper.Control.
func (d deviceMapper) Remove(label string) error {
	return d.failed("remove", label, d.kernel.removeMapped(label, false))
}

// RemoveLater implements mapper.Control.
func (d deviceMapper) RemoveLater(label string) error {
	return d.failed("remove", label, d.kernel.removeMapped(label, true))
}

// SetBlockBytes gives a device of device mapper that is created later other logical blocks than 512 bytes, as one has
// that is over a namespace with such blocks.
func (k *Kernel) SetBlockBytes(label string, size int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.blockBytes == nil {
		k.blockBytes = map[string]int{}
	}
	k.blockBytes[label] = size
}

func (k *Kernel) blocksOf(m *mapped) int { return cmp.Or(k.blockBytes[m.label], 512) }

func (k *Kernel) createMapped(label, uuid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.mapped {
		if m.label == label || uuid != "" && m.uuid == uuid {
			return syscall.EBUSY
		}
	}
	m := &mapped{label: label, uuid: uuid}
	m.name = k.freeName("dm-", func(n string) bool { return k.mapped[n] != nil })
	m.number = mappedMajor + strings.TrimPrefix(m.name, "dm-")
	k.mapped[m.name] = m
	dir := filepath.Join(mappedDir, m.name)
	return errors.Join(
		k.write(filepath.Join(dir, "dev"), m.number), k.write(filepath.Join(dir, "ro"), "0"), k.write(filepath.Join(dir, "size"), "0"), k.statistics(dir),
		k.write(filepath.Join(dir, "dm/uuid"), m.uuid), k.write(filepath.Join(dir, "dm/name"), m.label), k.write(filepath.Join(dir, "dm/suspended"), "0"),
		k.write(filepath.Join(dir, "queue/logical_block_size"), strconv.Itoa(k.blocksOf(m))),
		os.MkdirAll(filepath.Join(k.Root, dir, "holders"), 0o755), os.MkdirAll(filepath.Join(k.Root, dir, "slaves"), 0o755),
		k.link(dir, filepath.Join("sys/class/block", m.name)), k.link(dir, filepath.Join("sys/dev/block", m.number)),
		k.point(m),
	)
}

// check a table of a device as the kernel does that loads it.
func (k *Kernel) check(m *mapped, t mapper.Table) (*table, error) {
	if t.SizeBytes <= 0 || t.SizeBytes%sectorBytes != 0 || t.OffsetBytes%sectorBytes != 0 {
		return nil, fmt.Errorf("table %+v: %w", t, syscall.EINVAL)
	}
	sectors, start := t.SizeBytes/sectorBytes, t.OffsetBytes/sectorBytes
	if t.Lower == "" {
		return &table{sectors: sectors}, nil
	}
	found, begins := &table{sectors: sectors, number: t.Lower, offset: start}, int64(v1alpha1.HeaderBytes)
	if c := t.Cipher; c != nil {
		switch {
		case k.noCrypt || len(c.Key) != 64 || c.Name != "aes-xts-plain64":
			return nil, fmt.Errorf("unknown target type, or cipher: %w", syscall.EINVAL)
		case c.SectorBytes < sectorBytes || t.SizeBytes%c.SectorBytes != 0:
			return nil, fmt.Errorf("device size is not multiple of sector_size feature: %w", syscall.EINVAL)
		}
		found.cipher = &mapper.Cipher{Name: c.Name, Key: slices.Clone(c.Key), SectorBytes: c.SectorBytes}
	}
	for _, h := range k.heads {
		if h.device == t.Lower {
			found.name = h.name
		}
	}
	for _, r := range k.mirrors {
		if r.number == t.Lower {
			found.name, begins = r.name, md.FrontBytes
		}
	}
	if found.name == "" {
		return nil, fmt.Errorf("device lookup of %s failed: %w", t.Lower, syscall.ENXIO)
	}
	if isSlice(m) {
		begins = md.RecordBytes
	}
	size, err := k.sectors(k.lowerDir(found))
	if err != nil {
		return nil, err
	}
	if start+sectors > size {
		return nil, fmt.Errorf("device %s too small for target: %w", t.Lower, syscall.EINVAL)
	}
	if k.users(found.name) {
		return nil, fmt.Errorf("device %s is claimed: %w", t.Lower, syscall.EBUSY)
	}
	if owner, _, _ := mapper.Parse(m.uuid); owner.Kind == mapper.Crypt {
		begins += v1alpha1.LUKSHeaderBytes
		if t.Cipher == nil {
			return nil, fmt.Errorf("a test's device %s is of an encrypted volume, and would not encrypt: %w", m.label, syscall.EINVAL)
		}
	}
	if t.OffsetBytes != begins {
		return nil, fmt.Errorf("a test's device begins at %d of %s, not at %d: %w", begins, found.name, t.OffsetBytes, syscall.EINVAL)
	}
	return found, nil
}

func isSlice(m *mapped) bool {
	owner, _, ours := mapper.Parse(m.uuid)
	return ours && owner.Replica != ""
}

// lowerDir is the folder in sysfs of what a table is over; empty when that is gone.
func (k *Kernel) lowerDir(t *table) string {
	if t == nil || t.name == "" {
		return ""
	}
	if h := k.heads[t.name]; h != nil && h.device == t.number {
		return k.headDir(h)
	}
	if r := k.mirrors[t.name]; r != nil && r.number == t.number {
		return filepath.Join(mappedDir, r.name)
	}
	return ""
}

func (k *Kernel) sectors(dir string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(k.Root, dir, "size"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

func (k *Kernel) labelled(label string) (*mapped, error) {
	for _, m := range k.mapped {
		if m.label == label {
			return m, nil
		}
	}
	return nil, syscall.ENXIO
}

func (k *Kernel) loadMapped(label string, t mapper.Table) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, err := k.labelled(label)
	if err != nil {
		return err
	}
	loaded, err := k.check(m, t)
	if err == nil {
		m.loaded = loaded
	}
	return err
}

func (k *Kernel) tableOf(label string) (mapper.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, err := k.labelled(label)
	if err != nil || m.live == nil {
		return mapper.Table{}, err
	}
	t := mapper.Table{SizeBytes: m.live.sectors * sectorBytes}
	if m.live.name != "" {
		t.Lower, t.OffsetBytes = m.live.number, m.live.offset*sectorBytes
	}
	if c := m.live.cipher; c != nil {
		t.Cipher = &mapper.Cipher{Name: c.Name, Key: slices.Clone(c.Key), SectorBytes: c.SectorBytes}
	}
	return t, nil
}

// suspendMapped makes new I/O wait, and waits for what is on its way.
func (k *Kernel) suspendMapped(label string) error {
	for told := false; ; told = true {
		k.mu.Lock()
		m, err := k.labelled(label)
		if err != nil {
			k.mu.Unlock()
			return err
		}
		if !m.suspended {
			m.suspended = true
			err = k.write(filepath.Join(mappedDir, m.name, "dm/suspended"), "1")
		}
		waiting, changed := m.waiting, k.changed
		k.mu.Unlock()
		if err != nil || waiting == 0 {
			return err
		}
		if !told {
			k.tell()
		}
		<-changed
	}
}

// resumeMapped puts the loaded table in force, once what is on its way through the former has come to its end.
func (k *Kernel) resumeMapped(label string) error {
	for told := false; ; told = true {
		k.mu.Lock()
		m, err := k.labelled(label)
		if err == nil && (m.waiting == 0 || m.loaded == nil) {
			m.suspended = false
			err = errors.Join(k.write(filepath.Join(mappedDir, m.name, "dm/suspended"), "0"), k.swapTable(m))
			k.change()
			k.mu.Unlock()
			return err
		}
		changed := k.changed
		k.mu.Unlock()
		if err != nil {
			return err
		}
		if !told {
			k.tell()
		}
		<-changed
	}
}

// swapTable puts the loaded table in force: the device shows what is behind the header of its lower device.
func (k *Kernel) swapTable(m *mapped) error {
	if m.loaded == nil {
		return nil
	}
	dir := filepath.Join(mappedDir, m.name)
	var errs []error
	if m.live != nil && m.live.name != "" {
		errs = append(errs, k.delete(filepath.Join(dir, "slaves", m.live.name)))
		if lower := k.lowerDir(m.live); lower != "" {
			errs = append(errs, k.delete(filepath.Join(lower, "holders", m.name)))
		}
	}
	m.live, m.loaded = m.loaded, nil
	errs = append(errs, k.write(filepath.Join(dir, "size"), strconv.FormatInt(m.live.sectors, 10)))
	if lower := k.lowerDir(m.live); lower != "" {
		errs = append(errs,
			k.delete(filepath.Join(dir, "slaves", m.live.name)), // a table over the same
			k.link(lower, filepath.Join(dir, "slaves", m.live.name)),
			k.link(dir, filepath.Join(lower, "holders", m.name)),
		)
	}
	if h := k.under(m); h != nil {
		size := m.live.sectors * sectorBytes
		if isSlice(m) {
			size -= v1alpha1.HeaderBytes - md.RecordBytes
		}
		errs = append(errs, growFile(k.shows(m, h), size))
	}
	return errors.Join(append(errs, k.point(m))...)
}

// growFile makes a file as long as the device that shows it.
func growFile(path string, sizeBytes int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		err = os.WriteFile(path, nil, 0o600)
	} else if err == nil && info.Size() >= sizeBytes {
		return nil
	}
	return errors.Join(err, os.Truncate(path, sizeBytes))
}

// shows is the file with what a device shows of a namespace. A key shows a file of its own: what was written under
// another one cannot be read.
func (k *Kernel) shows(m *mapped, h *head) string {
	if m.live.cipher == nil {
		return k.Backing(h.nguid)
	}
	return k.Decrypted(h.nguid, m.live.cipher.Key)
}

// Decrypted is the path of the file with what a namespace's data are behind a LUKS header, read with a key.
func (k *Kernel) Decrypted(nguid string, key []byte) string {
	return fmt.Sprintf("%s.%x", k.Backing(nguid), sha256.Sum256(key))
}

// point a device's node to the file with its data, or to none when it has lost that.
func (k *Kernel) point(m *mapped) error {
	to := filepath.Join(k.Root, "backing/lost")
	if h := k.under(m); h != nil {
		to = k.shows(m, h)
	}
	node := filepath.Join(k.Root, "dev", m.name)
	return errors.Join(os.RemoveAll(node), os.Symlink(to, node))
}

// under is the namespace's device that a device's I/O goes to, and of a mirror the one that is read; nil when it has
// lost that.
func (k *Kernel) under(m *mapped) *head {
	if m.live == nil || m.live.name == "" {
		return nil
	}
	if h := k.heads[m.live.name]; h != nil && h.device == m.live.number {
		return h
	}
	if r := k.mirrors[m.live.name]; r != nil && r.number == m.live.number {
		return k.read(r)
	}
	return nil
}

func (k *Kernel) renameMapped(label, to string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, err := k.labelled(label)
	if err != nil {
		return err
	}
	if _, err := k.labelled(to); err == nil {
		return syscall.EBUSY
	}
	m.label = to
	return k.write(filepath.Join(mappedDir, m.name, "dm/name"), to)
}

func (k *Kernel) removeMapped(label string, deferred bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, err := k.labelled(label)
	if err != nil {
		return err
	}
	if m.opens > 0 || k.users(m.name) || k.mirrored(m.name) {
		if !deferred {
			return syscall.EBUSY
		}
		m.deferred = true
		return nil
	}
	return k.dropMapped(m)
}

// dropMapped takes a device away that nobody has open. Where its node is bound, that stays, without a device.
func (k *Kernel) dropMapped(m *mapped) error {
	delete(k.mapped, m.name)
	var errs []error
	if lower := k.lowerDir(m.live); lower != "" {
		errs = append(errs, k.delete(filepath.Join(lower, "holders", m.name)))
	}
	errs = append(errs, k.delete(filepath.Join("sys/class/block", m.name)), k.delete(filepath.Join("sys/dev/block", m.number)),
		k.delete(filepath.Join("dev", m.name)), k.delete(filepath.Join(mappedDir, m.name)))
	k.onGone(m.name)
	return errors.Join(errs...)
}

// released is called when somebody has let go of a device: what was to be removed then, is.
func (k *Kernel) released() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, m := range k.mapped {
		if m.deferred && m.opens == 0 && !k.users(m.name) && !k.mirrored(m.name) {
			errs = append(errs, k.dropMapped(m))
		}
	}
	return errors.Join(errs...)
}

// lost shows, in what is made of a namespace's device that is gone, that it is.
func (k *Kernel) lost(h *head) error {
	var errs []error
	for _, m := range k.mapped {
		if m.live != nil && (m.live.number == h.device || k.mirrors[m.live.name] != nil) {
			errs = append(errs, k.point(m))
		}
	}
	return errors.Join(errs...)
}

// keepsName tells whether a device that is gone still has its name, because something is made of it.
func (k *Kernel) keepsName(prefix string) bool {
	for _, m := range k.mapped {
		if m.live != nil && m.live.name != "" && strings.HasPrefix(m.live.name, prefix) {
			return true
		}
	}
	return false
}

// readable fails with an I/O error when a device, by its name, has lost what it was made of.
func (k *Kernel) readable(device string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.mapped[device]; m != nil && k.under(m) == nil {
		return fmt.Errorf("read %s: %w", device, syscall.EIO)
	}
	return nil
}

// Mapped lists device mapper's devices, by their names there.
func (k *Kernel) Mapped() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var labels []string
	for _, m := range k.mapped {
		labels = append(labels, m.label)
	}
	slices.Sort(labels)
	return labels
}
