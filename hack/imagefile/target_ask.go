// SPDX-License-Identifier: Apache-2.0

package imagefile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/internal/capability"
)

const (
	// memoryMiB is enough for SPDK's default pools, which take 374 MB, and a transport.
	memoryMiB = "512"
	// patience with a target: a few seconds where it is not starved.
	patience = 2 * time.Minute
	// maxTail of a target's log that an error quotes.
	maxTail = 4 << 10
	// cannotLoad is the exit status of the loader that did not find a library.
	cannotLoad = 127
	// noTransport is a transport that no SPDK has.
	noTransport = "weft-none"
)

// ask a target what it can do: start it without PCI devices and hugepages, with a socket in a directory of its own, and
// call it. loaded are the files of the libraries that it has loaded by the end. With root, the target runs with nothing
// but what is in that folder, and program is a path in it.
func ask(ctx context.Context, root, program string, env []string) (can *capability.Capabilities, loaded []string, err error) {
	temporary := ""
	if root != "" {
		temporary = filepath.Join(root, "tmp")
	}
	dir, err := os.MkdirTemp(temporary, "weft-ask-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cpu, err := firstCPU()
	if err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(dir, "spdk.sock")
	args := []string{program, "-r", strings.TrimPrefix(socket, root), "-m", fmt.Sprintf("[%d]", cpu), "-s", memoryMiB, "--wait-for-rpc",
		"--no-pci", "--no-huge", "--num-trace-entries", "0"}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the caller's own program
	if root != "" {
		cmd = alone(ctx, root, args...)
	}
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	// Ended well, it takes away what it put under /var/tmp and /run.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ended, stop := context.WithCancelCause(ctx)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		_ = cmd.Wait() // the state says more
		stop(fmt.Errorf("it ended before it had answered: %s", cmd.ProcessState))
	}()
	can, err = call(ended, socket)
	if err == nil {
		loaded, err = libraries(cmd.Process.Pid)
	} else if cause := context.Cause(ended); cause != nil && !errors.Is(err, cause) {
		err = cause
	}
	cancel()
	<-waited
	if library := missing(cmd.ProcessState, log.Bytes()); err != nil && library != "" && root == "" {
		err = lacks(program, library)
	} else if err != nil {
		err = fmt.Errorf("%s: %w; it said:\n%s", program, err, tail(log.Bytes()))
	}
	return can, loaded, err
}

// missing is the library without which the loader did not start a program, or "" if that is not how it ended.
func missing(state *os.ProcessState, log []byte) string {
	if state.ExitCode() != cannotLoad {
		return ""
	}
	_, said, _ := bytes.Cut(log, []byte("error while loading shared libraries: "))
	library, _, _ := bytes.Cut(said, []byte(":"))
	return string(library)
}

// alone runs a program of a folder with nothing but the folder, and /dev, /proc and /sys. It needs root, or a kernel
// that lets everybody have namespaces.
func alone(ctx context.Context, root string, command ...string) *exec.Cmd {
	return isolated(ctx, `set -e
for d in dev proc sys; do mount --rbind /$d "$0/$d"; done
exec chroot "$0" "$@"`, append([]string{root}, command...)...)
}

// canIsolate fails where alone cannot.
func canIsolate(ctx context.Context, root string) error {
	cmd := isolated(ctx, `mount --rbind /dev "$0/dev" && chroot "$0" /nothing; [ $? = 127 ]`, root)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(said))
	}
	return nil
}

// isolated is a shell script with its arguments, from $0 on, as root in namespaces of its own.
func isolated(ctx context.Context, script string, args ...string) *exec.Cmd {
	args = append([]string{"--map-root-user", "--mount", "--propagation", "private", "sh", "-c", script}, args...)
	return exec.CommandContext(ctx, "unshare", args...) //nolint:gosec // the caller's own program
}

// call a target that waits for its settings, and initialize it.
func call(ctx context.Context, socket string) (*capability.Capabilities, error) {
	client, err := spdkrpc.New(socket, spdkrpc.Options{})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	conn, err := client.Connect(ctx)
	if err != nil {
		return nil, err
	}
	version, err := spdkrpc.Call(ctx, conn, spdkrpc.SpdkGetVersion{})
	if err != nil {
		return nil, err
	}
	can := &capability.Capabilities{Version: release(version), Transports: []string{}, Sockets: []string{}}
	if can.Methods, err = spdkrpc.Call(ctx, conn, spdkrpc.RPCGetMethods{}); err != nil {
		return nil, err
	}
	for _, impl := range []string{capability.SockPosix, "ssl", capability.SockURing, "xlio"} {
		_, err := spdkrpc.Call(ctx, conn, spdkrpc.SockImplGetOptions{Impl: impl})
		if answered := (*spdkrpc.Error)(nil); err != nil && !errors.As(err, &answered) {
			return nil, err
		}
		if err == nil {
			can.Sockets = append(can.Sockets, impl)
		}
	}
	if _, err := spdkrpc.Call(ctx, conn, spdkrpc.FrameworkStartInit{}); err != nil {
		return nil, err
	}
	// A transport that a target was built without is refused as one that there is not (-32602, from
	// spdk_nvmf_transport_opts_init), and one that finds no device otherwise (-32603).
	_, none := spdkrpc.Call(ctx, conn, spdkrpc.NvmfCreateTransport{Type: noTransport})
	var unknown *spdkrpc.Error
	if !errors.As(none, &unknown) {
		return nil, fmt.Errorf("it was asked for a transport %s, and answered: %w", noTransport, errors.Join(none, errors.New("no refusal")))
	}
	for _, transport := range []spdkrpc.NvmfCreateTransport{{Type: capability.TCP}, {Type: capability.RDMA, NoSRQ: true}} {
		_, err := spdkrpc.Call(ctx, conn, transport)
		var refused *spdkrpc.Error
		if err != nil && !errors.As(err, &refused) {
			return nil, err
		}
		if err == nil || refused.Code != unknown.Code {
			can.Transports = append(can.Transports, transport.Type)
		}
	}
	return can, nil
}

// release such as 26.05 or 26.09-pre.
func release(v spdkrpc.Version) string {
	text, _, _ := strings.Cut(strings.TrimPrefix(v.Text, "SPDK v"), " ")
	return text
}

// libraries that a process has mapped.
func libraries(pid int) ([]string, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var found []string
	for line := range strings.Lines(string(maps)) {
		// Address, rights, offset, device, inode and, of a file, its path.
		_, path, ok := strings.Cut(strings.TrimSpace(line), "/")
		path = "/" + path
		if ok && !seen[path] && strings.Contains(filepath.Base(path), ".so") {
			seen[path] = true
			found = append(found, path)
		}
	}
	return found, nil
}

// firstCPU that this process may run on.
func firstCPU() (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, err
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			return cpu, nil
		}
	}
	return 0, errors.New("this process may run on no CPU")
}

func tail(log []byte) string {
	if len(log) > maxTail {
		log = log[len(log)-maxTail:]
	}
	return string(bytes.TrimSpace(log))
}
