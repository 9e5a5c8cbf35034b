// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"io/fs"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21"
	for _, name := range []string{"(qemu)", "(a b)", "(a) S 1 (b)"} {
		procState, ticks, err := parseStat("17 " + name + rest)
		if err != nil || procState != "S" || ticks != 4242 {
			t.Errorf("%s: state %q, ticks %d, error %v", name, procState, ticks, err)
		}
	}
	for _, bad := range []string{"", "17 qemu S 1", "17 (qemu) S 1", "17 (qemu) S" + rest[2:20]} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// startSleep starts a process and reaps it when it ends.
func startSleep(t *testing.T, script string) processID {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	id, err := identifyProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestStopEndsTheProcess(t *testing.T) {
	p := startSleep(t, "echo; exec sleep 600")
	if ok, err := p.alive(); err != nil || !ok {
		t.Fatalf("alive before: %v, %v", ok, err)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if ok, err := p.alive(); err != nil || ok {
		t.Errorf("alive after: %v, %v", ok, err)
	}
	if err := p.stop(); err != nil {
		t.Errorf("stopping what has ended: %v", err)
	}
}

func TestKillEndsAProcessThatIgnoresTerm(t *testing.T) {
	p := startSleep(t, "trap '' TERM; echo; while :; do read x; done <&2")
	gone, err := p.signal(unix.SIGTERM, 50*time.Millisecond)
	if err != nil || gone {
		t.Fatalf("gone after SIGTERM: %v, %v", gone, err)
	}
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
}

func TestForeignProcessWithOurPIDIsSpared(t *testing.T) {
	p := startSleep(t, "echo; exec sleep 600")
	for name, other := range map[string]processID{
		"started at another time": {PID: p.PID, StartTicks: p.StartTicks + 1, BootID: p.BootID},
		"started at another boot": {PID: p.PID, StartTicks: p.StartTicks, BootID: "another"},
	} {
		if ok, err := other.alive(); err != nil || ok {
			t.Errorf("%s: alive %v, %v", name, ok, err)
		}
		if err := other.kill(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ok, err := p.alive(); err != nil || !ok {
		t.Errorf("the process that has the PID was ended: %v, %v", ok, err)
	}
}

func TestIdentifyProcessThatIsNotThere(t *testing.T) {
	// Above the largest PID that Linux allows.
	if _, err := identifyProcess(1 << 23); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestFrozenProcessGoesOnWhenItIsThawed(t *testing.T) {
	p := startSleep(t, "echo; while :; do :; done")
	if frozen, err := p.frozen(); err != nil || frozen {
		t.Fatalf("frozen before: %v, %v", frozen, err)
	}
	if err := p.freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if frozen, err := p.frozen(); err != nil || !frozen {
		t.Errorf("frozen: %v, %v", frozen, err)
	}
	if err := p.thaw(); err != nil {
		t.Fatal(err)
	}
	if frozen, err := p.frozen(); err != nil || frozen {
		t.Errorf("frozen after it was thawed: %v, %v", frozen, err)
	}
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.freeze(t.Context()); err == nil {
		t.Error("a process that has ended was frozen")
	}
}

func TestStopOrder(t *testing.T) {
	order := []string{qemuDaemon("node1"), schedulerName, managerName, apiServerName, etcdName}
	for i := 1; i < len(order); i++ {
		if stopOrder(order[i-1]) >= stopOrder(order[i]) {
			t.Errorf("%s is not stopped before %s", order[i-1], order[i])
		}
	}
}
