// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	launch "github.com/weft-storage/weft/dataplane/cmd/weft-launch"
	"github.com/weft-storage/weft/dataplane/device"
)

const drive = "0000:5e:00.0"

// asLauncher makes this binary weft-launch. What it starts is this binary again: SPDK's
// target, by TargetMode.
const asLauncher = "WEFT_TEST_LAUNCHER"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asLauncher) != "":
		_ = os.Unsetenv(asLauncher)
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		err := launch.Command("test").ExecuteContext(ctx)
		stop()
		os.Exit(launch.ExitCode(err, os.Stderr))
	case os.Getenv(TargetMode) != "":
		os.Exit(RunTarget())
	}
	os.Exit(m.Run())
}

// launcher is a weft-launch process on a node of its own.
type launcher struct {
	*WithT
	node   *node
	cmd    *exec.Cmd
	events *json.Decoder
	stderr bytes.Buffer
	dir    string
}

// startLauncher runs weft-launch on a node with one blank drive.
func startLauncher(t *testing.T, targetMode string, args ...string) *launcher {
	t.Helper()
	l := &launcher{WithT: NewWithT(t), node: newNode(t)}
	l.node.AddDriver("vfio-pci")
	l.node.AddDrive(drive, 0, "")
	dir, err := os.MkdirTemp("", "weft") // short enough for a socket's path
	l.Expect(err).NotTo(HaveOccurred())
	l.dir = dir
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	l.Expect(err).NotTo(HaveOccurred())
	l.cmd = exec.CommandContext(t.Context(), self, append([]string{
		"run", "--root", l.node.Root, "--socket", l.socket(), "--target", self, "--reason-file", filepath.Join(dir, "reason"),
		"--core-mask", "0xffff", "--memory-bytes", "1073741824",
	}, args...)...)
	l.cmd.Env = append(os.Environ(), asLauncher+"=1", TargetMode+"="+targetMode)
	l.cmd.Stderr = &l.stderr
	out, err := l.cmd.StdoutPipe()
	l.Expect(err).NotTo(HaveOccurred())
	l.events = json.NewDecoder(out)
	l.Expect(l.cmd.Start()).To(Succeed())
	t.Cleanup(func() { _ = l.cmd.Process.Kill() })
	return l
}

func (l *launcher) socket() string { return filepath.Join(l.dir, "run", "spdk.sock") }

// next waits for what the target says.
func (l *launcher) next() Event {
	var e Event
	l.Expect(l.events.Decode(&e)).To(Succeed(), "stderr: %s", &l.stderr)
	return e
}

// wait waits for the end, and gives the exit code.
func (l *launcher) wait() int {
	_, err := io.Copy(io.Discard, l.events.Buffered())
	l.Expect(err).NotTo(HaveOccurred())
	err = l.cmd.Wait()
	var exit *exec.ExitError
	if err != nil {
		l.Expect(errors.As(err, &exit)).To(BeTrue(), "%v", err)
	}
	return l.cmd.ProcessState.ExitCode()
}

func (l *launcher) signal(s syscall.Signal) { l.Expect(l.cmd.Process.Signal(s)).To(Succeed()) }

func TestBecomesTheTarget(t *testing.T) {
	l := startLauncher(t, TargetServes, "--hugepages", "2Mi", "--driver", "Kernel")
	started := l.next().Started
	l.Expect(started.PID).To(Equal(l.cmd.Process.Pid), "the launcher is nvmf_tgt now")
	l.Expect(started.Umask).To(Equal(0o077))
	l.Expect(strings.Join(started.Args, " ")).To(MatchRegexp(
		`^-m 0x[0-9a-f]+ -s 1024 -r ` + l.socket() + ` --wait-for-rpc --num-trace-entries 0 --huge-dir /dev/hugepages --no-pci$`))
	l.signal(syscall.SIGTERM)
	l.Expect(l.next().Signal).To(Equal("terminated"))
	l.Expect(l.wait()).To(Equal(0))
	l.Expect(l.node.Driver(drive)).To(Equal("nvme"))
}

func TestGivesDrivesBack(t *testing.T) {
	l := startLauncher(t, TargetServes, "--driver", "VFIO", "--pci", drive+"="+wwid(0), "--interrupt")
	started := l.next().Started
	l.Expect(started.ParentPID).To(Equal(l.cmd.Process.Pid), "the launcher stays")
	l.Expect(started.Umask).To(Equal(0o077))
	l.Expect(started.Args).To(ContainElements("--interrupt-mode", "--pci-allowed", drive))
	l.Expect(l.node.Driver(drive)).To(Equal("vfio-pci"))
	records, err := device.ReadRecords(l.socket())
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(records[drive].Content).To(Equal(v1alpha1.ContentBlank))

	l.signal(syscall.SIGHUP)
	l.Expect(l.next().Signal).To(Equal("hangup"))
	l.signal(syscall.SIGUSR1)
	l.Expect(l.next().Signal).To(Equal("user defined signal 1"))
	l.signal(syscall.SIGTERM)
	l.Expect(l.next().Signal).To(Equal("terminated"))
	l.Expect(l.wait()).To(Equal(0), "%s", &l.stderr)
	l.Expect(l.node.Driver(drive)).To(Equal("nvme"))
	l.Expect(l.node.Read("sys/bus/pci/devices/" + drive + "/driver_override")).To(BeEmpty())
	records, err = device.ReadRecords(l.socket())
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(records).To(BeEmpty())
}

// TestKeepsDrivesAfterACrash: the kubelet starts the container again at once.
func TestKeepsDrivesAfterACrash(t *testing.T) {
	t.Run("exit", func(t *testing.T) {
		l := startLauncher(t, TargetFails, "--driver", "VFIO", "--pci", drive+"="+wwid(0))
		l.next()
		l.Expect(l.wait()).To(Equal(3))
		l.Expect(l.stderr.String()).To(HaveSuffix("weft-launch: nvmf_tgt exited with code 3\n"))
		l.Expect(l.node.Driver(drive)).To(Equal("vfio-pci"))
	})
	t.Run("signal", func(t *testing.T) {
		l := startLauncher(t, TargetServes, "--driver", "VFIO", "--pci", drive+"="+wwid(0))
		l.Expect(syscall.Kill(l.next().Started.PID, syscall.SIGKILL)).To(Succeed())
		l.Expect(l.wait()).To(Equal(128 + 9))
		l.Expect(l.stderr.String()).To(HaveSuffix("weft-launch: nvmf_tgt was killed by a signal: killed\n"))
		l.Expect(l.node.Driver(drive)).To(Equal("vfio-pci"))
	})
}

// TestTargetDiesWithItsParent: or the next launcher would find it alive, and refuse.
func TestTargetDiesWithItsParent(t *testing.T) {
	l := startLauncher(t, TargetServes, "--driver", "VFIO", "--pci", drive+"="+wwid(0))
	l.next()
	l.signal(syscall.SIGKILL)
	// The target holds the other end of the pipe; it ends without having said anything, when the target does.
	l.Expect(l.events.Decode(&Event{})).To(MatchError(io.EOF))
	l.wait()
}

func TestRefusal(t *testing.T) {
	l := startLauncher(t, TargetServes, "--memory-bytes", "1099511627776")
	l.Expect(l.wait()).To(Equal(1))
	l.Expect(l.stderr.String()).To(MatchRegexp(`(?m)^weft-launch: HugepagesMissing: 524288 pages of 2Mi are needed, but .*\n\z`))
	text, err := os.ReadFile(filepath.Join(l.dir, "reason"))
	l.Expect(err).NotTo(HaveOccurred())
	var said launch.RefusalError
	l.Expect(json.Unmarshal(text, &said)).To(Succeed())
	l.Expect(said.Reason).To(Equal(v1alpha1.ReasonHugepagesMissing))
	l.Expect(l.stderr.String()).To(ContainSubstring(said.Message))
}

func TestFlags(t *testing.T) {
	g := NewWithT(t)
	run, _, err := launch.Command("test").Find([]string{"run"})
	g.Expect(err).NotTo(HaveOccurred())
	for name, value := range map[string]string{
		"socket": "/run/weft/spdk.sock", "core-mask": "", "memory-bytes": "0", "hugepages": "2Mi", "interrupt": "false",
		"driver": "Kernel", "pci": "[]", "target": "nvmf_tgt", "reason-file": "/dev/termination-log",
	} {
		flag := run.Flags().Lookup(name)
		g.Expect(flag).NotTo(BeNil(), name)
		g.Expect(flag.DefValue).To(Equal(value), name)
	}
}

func TestProbe(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	probe := func() (string, error) {
		cmd := launch.Command("test")
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"probe", "--socket", socket, "--timeout", "200ms"})
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	t.Run("no target", func(t *testing.T) {
		_, err := probe()
		NewWithT(t).Expect(err).To(HaveOccurred())
	})
	for name, test := range map[string]struct{ answer, says, fails string }{
		"a target":                 {answer: `{"jsonrpc":"2.0","id":1,"result":{"version":"SPDK v26.05","fields":{"major":26,"minor":5,"patch":0,"suffix":""}}}`, says: "SPDK v26.05\n"},
		"one that refuses":         {answer: `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}`, fails: "Method not found"},
		"one that does not answer": {fails: " "},
		"something else":           {answer: "SSH-2.0-OpenSSH_9.2\r\n", fails: " "},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var config net.ListenConfig
			listener, err := config.Listen(t.Context(), "unix", socket)
			g.Expect(err).NotTo(HaveOccurred())
			served := make(chan struct{})
			go func() {
				defer close(served)
				serve(listener, test.answer)
			}()
			said, err := probe()
			_ = listener.Close()
			<-served
			g.Expect(said).To(Equal(test.says))
			if test.fails != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.fails)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

// serve gives each client the answer to its question, until the listener is closed.
func serve(listener net.Listener, answer string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		question := json.NewDecoder(conn)
		var call struct{ ID json.RawMessage }
		for question.Decode(&call) == nil {
			if _, err := conn.Write([]byte(strings.Replace(answer, `"id":1`, `"id":`+string(call.ID), 1))); err != nil {
				break
			}
		}
		_ = conn.Close()
	}
}
