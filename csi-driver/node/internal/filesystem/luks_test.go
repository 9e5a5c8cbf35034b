// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"bytes"
	"context"
	"errors"
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/utils/exec"
)

const luksSize = 16 << 20

// luksHost is a host, and a device with a LUKS header that a key opens.
func luksHost(t *testing.T) (*Host, string, []byte) {
	t.Helper()
	h, device := host(t, luksSize)
	h.PBKDFMemoryKiB = 32
	key := []byte("a planted key")
	is, err := h.PrepareLUKS(t.Context(), Request{Device: device, SizeBytes: luksSize, Type: LUKS, Fence: Fence{Blank: true}, Begin: begin}, func(context.Context) ([]byte, string, error) {
		return slices.Clone(key), "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := is.Close(); err != nil || is.Slots != 1 {
		t.Fatalf("%d slots, %v", is.Slots, err)
	}
	return h, device, key
}

// changed runs another program in the place of cryptsetup's with an argument, which gets all arguments.
type changed struct {
	exec.Interface
	argument, program string
	args              []string
}

// CommandContext implements exec.Interface.
func (c changed) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	if slices.Contains(args, c.argument) {
		name, args = c.program, append(slices.Clone(c.args), args...)
	}
	return c.Interface.CommandContext(ctx, name, args...)
}

// dumping is cryptsetup whose luksDump is another program.
func dumping(program string, args ...string) exec.Interface {
	return changed{exec.New(), "--dump-json-metadata", program, args}
}

// unreadable is a device whose first bytes cannot be read.
type unreadable struct{ Device }

// ReadAt implements io.ReaderAt.
func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, syscall.EIO }

// Not to know what a header is, is not to know that it is lost: nothing is formatted, nor is anybody told to allow it.
func TestLUKSHeaderThatIsNotKnown(t *testing.T) {
	for name, change := range map[string]func(*Host){
		"luksDump is killed":     func(h *Host) { h.Exec = dumping("sh", "-c", "kill -9 $$") },
		"luksDump has no memory": func(h *Host) { h.Exec = dumping("sh", "-c", "exit 3") },
		"luksDump has no device": func(h *Host) { h.Exec = dumping("sh", "-c", "exit 4") },
		"luksDump says no JSON":  func(h *Host) { h.Exec = dumping("echo") },
		"there is no cryptsetup": func(h *Host) { h.Exec = dumping("no-such-cryptsetup") },
		"the drive cannot be read": func(h *Host) {
			open := h.Open
			h.Open = func(device string) (Device, error) {
				d, err := open(device)
				return unreadable{d}, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, device, _ := luksHost(t)
			before := content(t, device)
			change(h)
			for _, f := range []Fence{{Header: HeaderFormatted, AllowFormat: true}, {Header: HeaderFormatting}, {Header: HeaderFormatted}} {
				_, err := h.PrepareLUKS(t.Context(), Request{Device: device, SizeBytes: luksSize, Type: LUKS, Fence: f, Begin: begin}, noKey(t))
				var refused *RefusedError
				if err == nil || errors.As(err, &refused) || errors.Is(err, ErrUnknownLUKS) || strings.Contains(err.Error(), "allow-format") {
					t.Errorf("%+v: got %v", f, err)
				}
			}
			if !bytes.Equal(before, content(t, device)) {
				t.Error("the device was written to")
			}
		})
	}
}

func content(t *testing.T, device string) []byte {
	t.Helper()
	data, err := os.ReadFile(device)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// noKey fails the test when a device is to be formatted.
func noKey(t *testing.T) func(context.Context) ([]byte, string, error) {
	t.Helper()
	return func(context.Context) ([]byte, string, error) {
		t.Error("a new key was asked for")
		return nil, "", errors.New("no key")
	}
}

// Who only reads is not told to mount a volume for writing whose LUKS header is lost.
func TestLUKSHeaderThatIsLostReadOnly(t *testing.T) {
	for name, c := range map[string]struct{ at, words string }{
		"lost":    {"", "contains no LUKS header"},
		"damaged": {"LUKS\xba\xbe\x00\x02", "contains an incomplete LUKS header"},
	} {
		t.Run(name, func(t *testing.T) {
			h, device := host(t, luksSize)
			writeAt(t, device, 0, c.at)
			_, err := h.PrepareLUKS(t.Context(), Request{Device: device, SizeBytes: luksSize, Type: LUKS, ReadOnly: true, Fence: Fence{Header: HeaderFormatted}, Begin: begin}, noKey(t))
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "for writing") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Whoever can write to the drive can make a header that opens with any passphrase, or takes a node's memory or time.
func TestLUKSHeaderThatIsForged(t *testing.T) {
	for name, c := range map[string]struct{ from, to, words string }{
		"a null cipher in a key slot":   {`"encryption":"aes-xts-plain64",\n *"key_size":64\n *},\n *"kdf"`, `"encryption":"cipher_null-ecb","key_size":64},"kdf"`, "the cipher of a key slot"},
		"a short key in a key slot":     {`"key_size":64\n *},\n *"kdf"`, `"key_size":32},"kdf"`, "the cipher of a key slot"},
		"a short key":                   {`"type":"luks2",\n *"key_size":64`, `"type":"luks2","key_size":32`, "the key's length"},
		"another type of key slot":      {`"type":"luks2"`, `"type":"reencrypt"`, "the type of a key slot"},
		"another key derivation":        {`"type":"argon2id"`, `"type":"pbkdf2"`, "the key derivation"},
		"too much memory":               {`"memory":32`, `"memory":1048577`, "the cost of a key slot"},
		"too many passes":               {`"memory":32`, `"memory":4194305`, "the cost of a key slot"},
		"too many passes over little":   {`"time":4`, `"time":524289`, "the cost of a key slot"},
		"passes that overflow":          {`"time":4`, `"time":9223372036854775807`, "the cost of a key slot"},
		"too many threads":              {`"cpus":1`, `"cpus":5`, "the cost of a key slot"},
		"no memory":                     {`"memory":32`, `"memory":0`, "the cost of a key slot"},
		"too many iterations of digest": {`"iterations":[0-9]*`, `"iterations":10000001`, "the digest of the key"},
		"a null cipher for the data":    {`"encryption":"aes-xts-plain64",\n *"sector_size"`, `"encryption":"cipher_null-ecb","sector_size"`, "the cipher"},
	} {
		t.Run(name, func(t *testing.T) {
			h, device, _ := luksHost(t)
			h.Exec = dumping("sh", "-c", `cryptsetup "$@" | sed -z 's/`+c.from+`/`+c.to+`/'`, "sh")
			_, err := h.PrepareLUKS(t.Context(), Request{Device: device, SizeBytes: luksSize, Type: LUKS, Fence: Fence{Header: HeaderFormatted, AllowFormat: true}, Begin: begin}, noKey(t))
			if !errors.Is(err, ErrUnknownLUKS) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A key slot that a person adds with cryptsetup's own settings is taken.
func TestLUKSHeaderWithASlotOfCryptsetups(t *testing.T) {
	h, device, key := luksHost(t)
	cmd := osexec.CommandContext(t.Context(), "cryptsetup", "luksAddKey", "--batch-mode", "--iter-time", "1", "--key-file", "-", "--keyfile-size", "13", "--new-keyfile", "-", "--new-keyfile-size", "11", device)
	cmd.Stdin = strings.NewReader(string(key) + "another key")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	is, err := h.ReadLUKS(t.Context(), device)
	if err != nil || is.Slots != 2 {
		t.Fatalf("%d slots, %v", is.Slots, err)
	}
	defer is.Close() //nolint:errcheck // it is memory
	if _, err := h.LUKSKey(t.Context(), is, []byte("another key")); err != nil {
		t.Error(err)
	}
}

// The header that was checked is the one that a key is taken from, whatever the drive answers afterwards; and
// cryptsetup is not killed at it.
func TestLUKSKeyIsOfTheHeaderThatWasChecked(t *testing.T) {
	h, device, key := luksHost(t)
	is, err := h.ReadLUKS(t.Context(), device)
	if err != nil {
		t.Fatal(err)
	}
	defer is.Close() //nolint:errcheck // it is memory
	first, err := h.LUKSKey(t.Context(), is, key)
	if err != nil {
		t.Fatal(err)
	}
	writeAt(t, device, 0, strings.Repeat("x", luksSize))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if again, err := h.LUKSKey(ctx, is, key); err != nil || !bytes.Equal(first, again) || len(again) != luksKeyBytes {
		t.Errorf("got a key of %d bytes, %v", len(again), err)
	}
}
