// SPDX-License-Identifier: Apache-2.0

// Package lab runs a real Kubernetes cluster on one machine: etcd and the
// control plane as processes on the host, nodes as virtual machines with a
// kernel, a container runtime and NVMe drives of their own. Everything lives in
// a network namespace of the lab's own.
//
// A test opens the running lab with Open and then uses the node operations:
// Exec, PowerOff, PowerOn, CutNetwork, RestoreNetwork, KernelLog; and those of
// the API server: FreezeAPI, ThawAPI, BackUp, RestoreBackup.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/test/e2e/internal/build"
)

// DirVariable names the environment variable with the folder of the lab's
// state. Labs in different folders run side by side.
const DirVariable = "WEFT_LAB_DIR"

// Lab is a lab in a folder, running or not. Its methods are safe for concurrent
// use, except Up and Down.
type Lab struct {
	// Dir is the absolute path of the lab's folder.
	Dir string

	id    string
	state state

	mu     sync.Mutex
	shells map[string]*ssh.Client
}

// DefaultDir returns WEFT_LAB_DIR, or .lab at the root of the repository around
// the working directory, or else around this program.
func DefaultDir() (string, error) {
	if dir := os.Getenv(DirVariable); dir != "" {
		return filepath.Abs(dir)
	}
	repo, err := build.Repo()
	if err != nil {
		return "", err
	}
	return filepath.Join(repo, ".lab"), nil
}

// Open returns the lab in dir. It returns ErrNotUp when there is none.
func Open(dir string) (*Lab, error) {
	l, err := at(dir)
	if err != nil {
		return nil, err
	}
	if l.state, err = readState(l.statePath()); err != nil {
		return nil, err
	}
	return l, nil
}

func at(dir string) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &Lab{Dir: dir, id: labID(dir)}, nil
}

// Close ends the connections to the nodes. The lab itself runs on.
func (l *Lab) Close() {
	for _, node := range l.state.Nodes {
		l.forgetShell(node)
	}
}

// Nodes returns the names of the nodes.
func (l *Lab) Nodes() []string { return slices.Clone(l.state.Nodes) }

// Kubeconfig returns the file with an administrator's access to the cluster.
func (l *Lab) Kubeconfig() string { return l.path("kubeconfig") }

// ShareDir is a folder that every node sees, read-only, as /host-share.
func (l *Lab) ShareDir() string { return l.path("share") }

// AssetsDir is the folder with kubectl and the other programs of the cluster.
func (l *Lab) AssetsDir() string { return l.state.AssetsDir }

func (l *Lab) path(elem ...string) string {
	return filepath.Join(append([]string{l.Dir}, elem...)...)
}

func (l *Lab) statePath() string { return l.path("state.json") }

// lock makes sure that only one command changes the lab at a time.
func (l *Lab) lock() (func(), error) {
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(l.path("lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another weft-lab command is changing the lab in %s; wait for it", l.Dir)
		}
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// Down stops everything that the lab in dir started and removes its namespace,
// interfaces and disks. Logs and the share folder stay. It ends nothing else,
// and succeeds when there is nothing to do.
func Down(ctx context.Context, dir string) error {
	l, err := at(dir)
	if err != nil {
		return err
	}
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return l.down(ctx)
}

func (l *Lab) down(ctx context.Context) error {
	if err := l.stopAll(ctx); err != nil {
		return err
	}
	if err := l.removeNetwork(); err != nil {
		return err
	}
	// The state goes last: as long as it is there, something may be left.
	for _, name := range []string{"run", "nodes", "etcd", "etcd.restored", "pki", "config", "kubeconfig", "disk.img", "disk.img.tmp", "disk.img.mnt", "state.json"} {
		if err := os.RemoveAll(l.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// stopAll stops machines first, as hard as a power failure: their disks are
// thrown away. Then the control plane, and last what was never written down.
func (l *Lab) stopAll(ctx context.Context) error {
	names, err := l.daemons()
	if err != nil {
		return err
	}
	slices.SortStableFunc(names, func(a, b string) int { return stopOrder(a) - stopOrder(b) })
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		stop := processID.stop
		if isMachine(name) {
			stop = processID.kill
		}
		if err := l.stopDaemon(name, stop); err != nil {
			return err
		}
	}
	strays, err := l.strays()
	if err != nil {
		return err
	}
	for _, p := range strays {
		if err := p.stop(); err != nil {
			return err
		}
	}
	return nil
}

// Process is one of the lab's processes.
type Process struct {
	Name    string
	PID     int
	Running bool
}

// Processes lists the lab's processes on the host.
func (l *Lab) Processes() ([]Process, error) {
	names, err := l.daemons()
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, name := range names {
		p, ok, err := l.running(name)
		if err != nil {
			return nil, err
		}
		out = append(out, Process{Name: name, PID: p.PID, Running: ok})
	}
	return out, nil
}
