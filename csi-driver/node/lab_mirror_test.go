// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// mirrors of this machine's kernel.
func (l *lab) mirrors() *md.Host { return l.service.Mirrors.(*md.Host) }

// TestLabMirrors holds this machine's kernel to what is said of mirrors.
func TestLabMirrors(t *testing.T) {
	nodetest.TestMirrors(t, func(t *testing.T) nodetest.MirrorMachine {
		l := setUpLab(t)
		files := map[string]string{}
		return nodetest.MirrorMachine{
			Mirrors: l.mirrors(), Mapper: l.service.Mapper.(*mapper.Host),
			Replica: func(t *testing.T, sizeBytes int64) mapper.Lower {
				file := filepath.Join(l.dir, "replica"+strconv.Itoa(len(files)))
				must(t, os.WriteFile(file, nil, 0o600))
				must(t, os.Truncate(file, sizeBytes))
				name := l.loop(file)
				l.Cleanup(func() { l.run("losetup", "--detach", "/dev/"+name) })
				files[name] = file
				return mapper.Lower{Name: name, Number: sysfs(t, name, "dev")}
			},
			Enlarge: func(t *testing.T, lower mapper.Lower, sizeBytes int64) {
				must(t, os.Truncate(files[lower.Name], sizeBytes))
				l.run("losetup", "--set-capacity", "/dev/"+lower.Name)
			},
			Write: writeRegion, Read: readRegion,
			Written: func(t *testing.T, device string) int64 { return writtenTo(t, device) },
		}
	})
}

func sysfs(t testing.TB, device, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/class/block", device, file))
	must(t, err)
	return strings.TrimSpace(string(text))
}

// writtenTo a block device so far, in bytes.
func writtenTo(t testing.TB, device string) int64 {
	t.Helper()
	sectors, err := strconv.ParseInt(strings.Fields(sysfs(t, device, "stat"))[6], 10, 64)
	must(t, err)
	return sectors * 512
}

// region of memory that fits direct I/O.
func region() ([]byte, error) {
	return unix.Mmap(-1, 0, nodetest.RegionBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func onRegion(path string, flags int, do func(f *os.File, memory []byte) error) error {
	memory, err := region()
	if err != nil {
		return err
	}
	defer unix.Munmap(memory) //nolint:errcheck // the process ends soon
	f, err := os.OpenFile(path, flags|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // what was written was not buffered
	return do(f, memory)
}

func writeRegion(path string, offset int64, value byte) error {
	return onRegion(path, os.O_WRONLY, func(f *os.File, memory []byte) error {
		for i := range memory {
			memory[i] = value
		}
		_, err := f.WriteAt(memory, offset)
		return err
	})
}

func readRegion(path string, offset int64) (byte, error) {
	var value byte
	err := onRegion(path, os.O_RDONLY, func(f *os.File, memory []byte) error {
		_, err := f.ReadAt(memory, offset)
		value = memory[0]
		return err
	})
	return value, err
}
