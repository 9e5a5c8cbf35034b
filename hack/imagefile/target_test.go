// SPDX-License-Identifier: Apache-2.0

package imagefile

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/capability"
)

// actsAs is set for this test's program when it takes the place of nvmf_tgt: to the options of the fake, in JSON.
const actsAs = "WEFT_TEST_TARGET"

func TestMain(m *testing.M) {
	if options := os.Getenv(actsAs); options != "" {
		if err := fake(options); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// fake is an nvmf_tgt that takes the flags that it should be given and no others, as SPDK does.
func fake(text string) error {
	var options struct {
		Version     string
		WithoutRDMA bool
		Without     []string
		// Dies before it has a socket, with a word, and this exit status.
		Dies   string
		Status int
	}
	if err := json.Unmarshal([]byte(text), &options); err != nil {
		return err
	}
	if options.Dies != "" {
		fmt.Fprintln(os.Stderr, options.Dies)
		os.Exit(options.Status)
	}
	flags := flag.NewFlagSet("nvmf_tgt", flag.ContinueOnError)
	o := spdktest.Options{Version: options.Version, WithoutRDMA: options.WithoutRDMA, Without: options.Without}
	flags.StringVar(&o.Socket, "r", "", "")
	flags.StringVar(&o.CoreMask, "m", "", "")
	flags.BoolVar(&o.WaitForRPC, "wait-for-rpc", false, "")
	noPCI, noHuge := flags.Bool("no-pci", false, ""), flags.Bool("no-huge", false, "")
	memory := flags.Int("s", 0, "")
	flags.Int("num-trace-entries", -1, "")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if !*noPCI || !*noHuge || *memory == 0 {
		return errors.New("an nvmf_tgt that is only asked must not look for PCI devices or take hugepages")
	}
	target, err := spdktest.Listen(context.Background(), o)
	if err == nil {
		<-target.Done()
	}
	return err
}

// self is this program, which is a target when actsAs is set.
func self(t *testing.T, options string) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(actsAs, options)
	return path
}

func build(t *testing.T, program string) (file string, can *capability.Capabilities) {
	t.Helper()
	launcher, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image, can, err := Target(t.Context(), TargetOptions{Program: program, Launcher: launcher, Version: "1.2.3", Note: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "image.tar")
	if err := image.Write(file, "example.org/weft-target:test"); err != nil {
		t.Fatal(err)
	}
	return file, can
}

func read(t *testing.T, file string) (v1.Image, *v1.ConfigFile) {
	t.Helper()
	image, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return image, config
}

// The labels of an image are what its nvmf_tgt answers.
func TestLabelsAreAsked(t *testing.T) {
	file, can := build(t, self(t, `{"Version":"26.05"}`))
	_, config := read(t, file)
	if want := can.Labels(); len(want) != 7 {
		t.Errorf("%d labels: %v", len(want), want)
	}
	for label, want := range can.Labels() {
		if got := config.Config.Labels[label]; got != want {
			t.Errorf("label %s is %q, not %q", label, got, want)
		}
	}
	for label, want := range map[string]string{
		capability.LabelVersion: "26.05", capability.LabelTransports: "RDMA,TCP", capability.LabelSockets: "posix,ssl",
		capability.LabelIOUring: "false", capability.LabelPrograms: "blkid", "org.opencontainers.image.version": "1.2.3",
	} {
		if got := config.Config.Labels[label]; got != want {
			t.Errorf("label %s is %q, not %q", label, got, want)
		}
	}
	for _, f := range can.Check() {
		if f.Has != capability.Yes {
			t.Errorf("the fake of 26.05 has not got %s: %s %s", f.Name, f.Has, f.Detail)
		}
	}
}

func TestWhatATargetLacks(t *testing.T) {
	file, can := build(t, self(t, `{"Version":"25.05","WithoutRDMA":true,"Without":["bdev_nvme_attach_controller"]}`))
	_, config := read(t, file)
	if got := config.Config.Labels[capability.LabelTransports]; got != "TCP" {
		t.Errorf("transports of a target without RDMA are %q", got)
	}
	lacks := map[string]bool{}
	for _, f := range can.Check() {
		lacks[f.Name] = f.Has == capability.No
	}
	for _, name := range []string{"transport RDMA", "NVMe driver", "buffer cache of each size"} {
		if !lacks[name] {
			t.Errorf("it has %s", name)
		}
	}
	if lacks["RPC methods"] || lacks["transport TCP"] {
		t.Errorf("it lacks %v", slices.Collect(maps.Keys(lacks)))
	}
}

// The same nvmf_tgt gives the same image.
func TestImagesAreTheSameEachTime(t *testing.T) {
	program := self(t, `{"Version":"26.05"}`)
	var digests []string
	for range 2 {
		file, _ := build(t, program)
		image, _ := read(t, file)
		digest, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest.String())
	}
	if digests[0] != digests[1] {
		t.Errorf("two images of one program: %v", digests)
	}
}

func TestRefusesWhatIsNoTarget(t *testing.T) {
	script := filepath.Join(t.TempDir(), "nvmf_tgt")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec /opt/nvmf_tgt \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	launcher, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for name, c := range map[string]struct{ program, options, says string }{
		"a script": {script, "", "name nvmf_tgt itself"},
		"nothing":  {"/nowhere/nvmf_tgt", "", "no such file"},
		"it ends":  {launcher, `{"Dies":"EAL: cannot get memory","Status":1}`, "EAL: cannot get memory"},
		"it does not load": {launcher, `{"Dies":"nvmf_tgt: error while loading shared libraries: libspdk_nvmf.so.20: cannot open shared object file","Status":127}`,
			"lacks libspdk_nvmf.so.20 on this machine; install it, or set LD_LIBRARY_PATH"},
		"it says 127":   {launcher, `{"Dies":"no memory","Status":127}`, "exit status 127; it said:\nno memory"},
		"it needs more": {launcher, `{"Without":["rpc_get_methods"]}`, "rpc_get_methods"},
	} {
		t.Setenv(actsAs, c.options)
		_, _, err := Target(t.Context(), TargetOptions{Program: c.program, Launcher: launcher, Note: t.Logf})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := os.ReadDir(temporary); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// fromImage is a folder with all that an image has, and the environment of its programs.
func fromImage(t *testing.T, file string) (dir string, env []string) {
	t.Helper()
	image, config := read(t, file)
	dir, err := os.MkdirTemp("", "weft-alone-") // short: the socket of a program in it has its name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	unpack(t, image, dir)
	return dir, config.Config.Env
}

func unpack(t *testing.T, image v1.Image, dir string) {
	t.Helper()
	content := mutate.Extract(image)
	defer content.Close() //nolint:errcheck // only read
	entries := tar.NewReader(content)
	for {
		head, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+head.Name))
		switch head.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(head.Linkname, path)
		default:
			data, readErr := io.ReadAll(entries)
			err = errors.Join(readErr, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, head.FileInfo().Mode()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What an image has is enough for its programs: for blkid, with its libraries, and for nvmf_tgt, which can do there
// what the labels say. With WEFT_SPDK_TARGET that is a real one.
func TestStartsFromItsImageAlone(t *testing.T) {
	program := os.Getenv(spdktest.TargetVariable)
	if program == "" {
		program = self(t, `{"Version":"26.05"}`)
	}
	file, can := build(t, program)
	t.Logf("%v", can.Labels())

	dir, env := fromImage(t, file)
	cmd := alone(t.Context(), dir, capability.Blkid, "--version")
	cmd.Env = env
	if said, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(said), "util-linux") {
		t.Errorf("blkid of the image said %q: %v; the test needs unshare and chroot, as root or where everybody may have namespaces", said, err)
	}
	again, _, err := ask(t.Context(), dir, "nvmf_tgt", env)
	if err != nil {
		t.Fatal(err)
	}
	again.Programs = can.Programs
	if !maps.Equal(again.Labels(), can.Labels()) {
		t.Errorf("from its image alone it can do %v, not %v", again.Labels(), can.Labels())
	}
}
