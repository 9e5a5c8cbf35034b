// SPDX-License-Identifier: Apache-2.0

package md

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/internal/tracing"
)

// Numbers of our arrays. mdadm chooses from 127 downward, and takes none above 1024; people name low ones.
const (
	firstNumber = 256
	lastNumber  = 1023
)

// ErrNoProgram says that mdadm is not in the image.
var ErrNoProgram = fmt.Errorf("program mdadm %w", doing.ErrNoProgram)

// Load what mirrors need, unless it is there. It fails with ErrNoProgram, or with doing.ErrNoModule; any other error
// says that it is not known. It is idempotent.
func (h *Host) Load(ctx context.Context) error {
	if _, err := h.Exec.LookPath("mdadm"); err != nil {
		return fmt.Errorf("%w: %w", ErrNoProgram, err)
	}
	return doing.LoadModules(ctx, h.LoadModule, h.mirrors, "md_mod", "raid1")
}

// mirrors tells whether the kernel has mirrors among its kinds of arrays (md_seq_show).
func (h *Host) mirrors() (bool, error) {
	stat, err := os.ReadFile(filepath.Join(h.Root, "proc/mdstat"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // md_mod makes it
	}
	kinds, _, _ := strings.Cut(string(stat), "\n")
	return strings.HasPrefix(kinds, "Personalities :") && slices.Contains(strings.Fields(kinds), "[raid1]"), err
}

// configuration of mdadm for new arrays: no log of bad blocks. With one, a member that fails a write stays in sync, and
// only the log says what it has not got.
const configuration = "CREATE bbl=no\n"

// noConfiguration keeps mdadm from what the host has configured.
const noConfiguration = "none"

// Create implements Mirrors.
func (h *Host) Create(ctx context.Context, s Spec) (_ Array, err error) {
	ctx, span := tracing.Start(ctx, "create mirror")
	defer func() { tracing.End(span, err) }()
	if err := h.check(s); err != nil {
		return Array{}, err
	}
	for _, m := range s.Members {
		if m == Missing {
			continue
		}
		if _, err := h.Superblock(ctx, m); !errors.Is(err, ErrNoSuperblock) {
			return Array{}, fmt.Errorf("%s has a superblock, or may have one; zero it if it is not needed: %w", m.Name, errors.Join(ErrState, err))
		}
	}
	config, err := os.CreateTemp("", "mdadm-*.conf")
	if err != nil {
		return Array{}, err
	}
	_, err = config.WriteString(configuration)
	err = errors.Join(err, config.Close())
	defer os.Remove(config.Name()) //nolint:errcheck // a file left behind does no harm
	if err != nil {
		return Array{}, err
	}
	return h.start(ctx, s.Volume, s.Members, func(path string) error {
		args := []string{
			"--create", path, "--config=" + config.Name(), "--quiet", "--run", "--assume-clean", "--level=1", "--metadata=1.2",
			"--raid-devices=" + strconv.Itoa(len(s.Members)), "--data-offset=" + kibibytes(dataAt), "--size=" + kibibytes(FrontBytes+s.DataBytes),
			"--bitmap=none", "--homehost=any", "--name=weft", "--uuid=" + s.Volume,
		}
		for _, m := range s.Members {
			if m == Missing {
				args = append(args, "missing")
			} else {
				args = append(args, h.dev(m.Name))
			}
		}
		if err := h.mdadm(ctx, args...); err != nil {
			return err
		}
		// Not with --create, which leaves no room for this many chunks, and takes 64 KiB up to 2 GiB only.
		return h.mdadm(ctx, "--grow", path, "--bitmap=internal", "--bitmap-chunk="+kibibytes(chunkBytes(FrontBytes+s.DataBytes)))
	})
}

func (h *Host) check(s Spec) error {
	switch {
	case len(s.Members) < 2 || !slices.ContainsFunc(s.Members, func(m Slice) bool { return m != Missing }):
		return fmt.Errorf("a mirror needs two places, and a member: %w", ErrState)
	case s.DataBytes <= 0 || s.DataBytes%blockBytes != 0:
		return fmt.Errorf("a mirror of %d bytes: %w", s.DataBytes, ErrState)
	}
	for _, m := range s.Members {
		if m == Missing {
			continue
		}
		size, err := h.sizeOf(m)
		if err == nil && size < dataAt+FrontBytes+s.DataBytes {
			err = fmt.Errorf("%s has %d bytes, too few for %d of data: %w", m.Name, size, s.DataBytes, ErrState)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func kibibytes(bytes int64) string { return strconv.FormatInt(bytes>>10, 10) + "K" }

// sizeOf a slice in bytes. It fails with ErrNotFound when its name is another's by now.
func (h *Host) sizeOf(s Slice) (int64, error) {
	values, err := attributes(h.sys("class/block", s.Name), "dev", "size")
	if err == nil && values["dev"] != s.Number {
		err = fmt.Errorf("it is %s, not %s: %w", values["dev"], s.Number, ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.Name, err)
	}
	sectors, err := strconv.ParseInt(values["size"], 10, 64)
	return sectors * sectorBytes, err
}

// MembersError says which members cannot be assembled, and why.
type MembersError struct {
	// Reports of the members that were named, in their order.
	Reports []Report
	// Err is ErrDisagree, or what is wrong with one of them.
	Err error
}

// Report of a member.
type Report struct {
	Slice
	Superblock
	// Err says why the superblock cannot be used; nil when it can by itself.
	Err error
}

// Error gives what each member says.
func (e *MembersError) Error() string {
	said := make([]string, len(e.Reports))
	for i, r := range e.Reports {
		said[i] = fmt.Sprintf("%s has role %d and %d events and knows roles %v", r.Name, r.Role, r.Events, r.Roles)
		if r.Err != nil {
			said[i] = fmt.Sprintf("%s: %v", r.Name, r.Err)
		}
	}
	return fmt.Sprintf("assemble a mirror: %v (%s)", e.Err, strings.Join(said, "; "))
}

// Unwrap gives the reason.
func (e *MembersError) Unwrap() error { return e.Err }

// Agree tells whether members can be in sync with each other, by their superblocks alone: all are of the volume, none
// was being copied to, none misses another, and none is behind. It gives a *MembersError when not.
func Agree(volume string, reports []Report) error {
	failed := func(err error) error { return &MembersError{Reports: reports, Err: err} }
	var most uint64
	seen := map[Role]bool{}
	for i := range reports {
		r := &reports[i]
		if r.Err == nil {
			r.Err = r.usable(volume)
		}
		if r.Err != nil {
			return failed(r.Err)
		}
		if seen[r.Role] {
			return failed(ErrDisagree)
		}
		seen[r.Role] = true
		most = max(most, r.Events)
	}
	for _, r := range reports {
		for _, o := range reports {
			if !slices.Contains(r.Roles, o.Role) {
				return failed(fmt.Errorf("%s went on without %s: %w", r.Name, o.Name, ErrDisagree))
			}
		}
		// One less is what a write that was cut off leaves; the kernel takes it, too (super_1_validate).
		if r.Events+1 < most {
			return failed(fmt.Errorf("%s is behind: %w", r.Name, ErrDisagree))
		}
	}
	return nil
}

// usable tells whether a member can be in sync.
func (s Superblock) usable(volume string) error {
	switch {
	case s.Array != volume:
		return unusable("it is a member of %s", s.Array)
	case !s.Bitmap:
		return unusable("it has no bitmap: making the mirror was cut off")
	case s.Role < 0:
		return fmt.Errorf("it has no place in its mirror: %w", ErrFullCopy)
	case s.Filling:
		return fmt.Errorf("it was being copied to, and is not in sync: %w", ErrFullCopy)
	}
	return nil
}

// Assemble implements Mirrors.
func (h *Host) Assemble(ctx context.Context, volume string, members []Slice) (_ Array, err error) {
	ctx, span := tracing.Start(ctx, "assemble mirror")
	defer func() { tracing.End(span, err) }()
	if len(members) == 0 {
		return Array{}, fmt.Errorf("a mirror needs a member: %w", ErrState)
	}
	reports := make([]Report, len(members))
	for i, m := range members {
		s, err := h.Superblock(ctx, m)
		reports[i] = Report{Slice: m, Superblock: s, Err: err}
	}
	if err := Agree(volume, reports); err != nil {
		return Array{}, err
	}
	return h.start(ctx, volume, members, func(path string) error {
		args := []string{"--assemble", path, "--config=" + noConfiguration, "--quiet", "--run"}
		for _, m := range members {
			args = append(args, h.dev(m.Name))
		}
		return h.mdadm(ctx, args...)
	})
}

// start a volume's array with a number that is free, by a program, and see that it is the one that was asked for. Else
// nothing is left of it.
func (h *Host) start(ctx context.Context, volume string, members []Slice, program func(path string) error) (Array, error) {
	if a, err := h.Of(volume); !errors.Is(err, ErrNotFound) {
		return Array{}, fmt.Errorf("volume %s has an array already, %s: %w", volume, a.Name, errors.Join(ErrState, err))
	}
	if err := h.Load(ctx); err != nil {
		return Array{}, err
	}
	name, err := h.free()
	if err != nil {
		return Array{}, err
	}
	a, err := h.started(volume, name, members, program(h.dev(name)))
	if err != nil {
		return Array{}, errors.Join(err, h.clear(ctx, name))
	}
	return a, nil
}

func (h *Host) started(volume, name string, members []Slice, err error) (Array, error) {
	if err != nil {
		return Array{}, err
	}
	a, err := h.array(name)
	if err == nil && a.Volume != volume {
		err = fmt.Errorf("%s was made for volume %s, and is of %q: %w", name, volume, a.Volume, ErrState)
	}
	if err != nil {
		return a, err
	}
	// Where md_mod's start_ro is set, as Debian does, an array begins read-only, and copies nothing until its first
	// write.
	if s, err := h.State(a); err != nil {
		return a, err
	} else if s.Array == ReadAuto {
		if err := h.set(a.Name, "array_state", Active); err != nil {
			return a, err
		}
	}
	s, err := h.State(a)
	if err != nil {
		return a, err
	}
	named := slices.DeleteFunc(slices.Clone(members), func(m Slice) bool { return m == Missing })
	for _, m := range named {
		if got, ok := s.Member(m); !ok || got.Number != m.Number || !got.InSync {
			err = errors.Join(err, fmt.Errorf("%s was started, and %s is not in sync: %w", name, m.Name, ErrState))
		}
	}
	if !s.Writable() || len(s.Members) != len(named) {
		err = errors.Join(err, fmt.Errorf("%s was started, and is %s with %d members, not %d: %w", name, s.Array, len(s.Members), len(named), ErrState))
	}
	return a, err
}

// free makes an empty array with a number that nobody has. The kernel makes none that is there.
func (h *Host) free() (string, error) {
	for n := lastNumber; n >= firstNumber; n-- {
		name := "md" + strconv.Itoa(n)
		err := write(h.sys("module/md_mod/parameters/new_array"), name)
		if errors.Is(err, syscall.EEXIST) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("make array %s: %w", name, err)
		}
		return name, nil
	}
	return "", fmt.Errorf("all arrays from md%d to md%d are in use: %w", firstNumber, lastNumber, ErrState)
}

// mdadm runs to its end. Its words serve only for errors.
func (h *Host) mdadm(ctx context.Context, args ...string) error {
	defer doing.Begin(ctx, "running mdadm "+strings.Join(args, " "))()
	cmd := h.Exec.CommandContext(context.WithoutCancel(ctx), "mdadm", args...)
	// Nothing waits for udev, which is told to leave these devices alone, and nothing is monitored.
	cmd.SetEnv(append(os.Environ(), "LC_ALL=C", "MDADM_NO_UDEV=1", "MDADM_NO_MDMON=1", "MDADM_NO_SYSTEMCTL=1"))
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrExecutableNotFound) {
		return fmt.Errorf("%w; install mdadm", err)
	}
	if err != nil {
		return fmt.Errorf("mdadm %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// write to a file of sysfs, by one call.
func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// set an attribute of an array.
func (h *Host) set(name, file, value string) error {
	err := write(h.sys("class/block", name, "md", file), value)
	if err != nil {
		return fmt.Errorf("set %s of %s to %q: %w", file, name, value, notFound(err))
	}
	return nil
}

// held is how long a scanner may have a device open, such as lsblk.
var held = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Steps: 7}

func busy(ctx context.Context) func(error) bool {
	return func(err error) bool { return errors.Is(err, syscall.EBUSY) && ctx.Err() == nil }
}

// Stop implements Mirrors.
func (h *Host) Stop(ctx context.Context, a Array) error {
	if err := h.confirm(a); errors.Is(err, ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	return h.clear(ctx, a.Name)
}

// clear an array away, by its name.
func (h *Host) clear(ctx context.Context, name string) error {
	defer doing.Begin(ctx, "stopping "+name)()
	err := retry.OnError(held, busy(ctx), func() error {
		if err := h.set(name, "array_state", Clear); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		// A worker of the kernel's removes the device.
		if _, err := os.Stat(h.sys("class/block", name)); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, fmt.Errorf("%s is stopped, and still there: %w", name, syscall.EBUSY))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("stop %s, which a process may have open: %w", name, err)
	}
	return nil
}

// Clean implements Mirrors.
func (h *Host) Clean(ctx context.Context) error {
	all, err := h.All()
	for _, a := range all {
		if a.Volume != "" {
			continue
		}
		if s, stateErr := h.State(a); stateErr == nil && s.Array == Clear && len(s.Members) == 0 {
			err = errors.Join(err, h.clear(ctx, a.Name))
		}
	}
	return err
}
