// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/internal/tracing"
)

// LUKS is the Type of a Request for an encrypted volume: what is looked for, and made, at the start of its data.
const LUKS = "crypto_LUKS"

const (
	// LUKSCipher and luksKeyBytes: AES-256 in XTS mode, which takes two keys. It is cryptsetup's default with a longer
	// key.
	LUKSCipher   = "aes-xts-plain64"
	luksKeyBytes = 64
	// LUKSSectorBytes are encrypted at a time. It is what drives and filesystems write at a time; with 512, dm-crypt
	// begins anew eight times as often.
	LUKSSectorBytes = 4096
	// metadataBytes of each of the two copies of the metadata; the smallest that cryptsetup takes, and its default.
	metadataBytes = 16 << 10
	// The cost of a guess at a passphrase: Argon2id with 64 MiB, 4 passes, 1 thread. cryptsetup's default takes as much
	// as lasts 2 s on the machine that formats, up to 1 GiB: a volume would open slowly on a smaller node, and many
	// that are staged at once would take the memory of pods. RFC 9106 recommends 64 MiB and 3 passes where memory is
	// limited.
	pbkdfMemoryKiB, pbkdfPasses = 64 << 10, 4
)

// Exit codes of cryptsetup (man 8 cryptsetup, "RETURN CODES").
const (
	// luksInvalid: wrong parameters, among them a device without a header that is valid.
	luksInvalid  = 1
	luksWrongKey = 2
)

// Errors of what concerns encryption.
var (
	// ErrWrongKey says that a key opens no key slot of a volume's LUKS header.
	ErrWrongKey = errors.New("the key does not open the volume's LUKS header")
	// errInvalidLUKS says that what a device begins with is not a whole LUKS header.
	errInvalidLUKS = errors.New("the LUKS header is not valid")
	// ErrUnknownLUKS says that a LUKS header is not one that this version makes.
	ErrUnknownLUKS = errors.New("the volume's LUKS header is not one that weft makes")
)

// LUKSHeader is what the data of an encrypted volume begin with, as it was copied once into this machine's memory: what
// was checked is what a key is taken from, whatever a target answers the next time. Close it.
type LUKSHeader struct {
	// Slots that hold the volume's key, each encrypted with another key.
	Slots int
	// Token that was kept with the header; empty for none.
	Token string

	copied *os.File
}

// Close lets go of the copy.
func (l LUKSHeader) Close() error {
	if l.copied == nil {
		return nil
	}
	return l.copied.Close()
}

// path of the copy, for programs that this process runs.
func (l LUKSHeader) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.copied.Fd()) }

// copyLUKS copies the header that a device begins with.
func (h *Host) copyLUKS(ctx context.Context, device string) (LUKSHeader, error) {
	defer doing.Begin(ctx, "reading "+device)()
	from, err := h.Open(device)
	if err != nil {
		return LUKSHeader{}, err
	}
	defer func() { _ = from.Close() }()
	fd, err := unix.MemfdCreate("weft-luks", unix.MFD_CLOEXEC)
	if err != nil {
		return LUKSHeader{}, fmt.Errorf("make a file in memory: %w", err)
	}
	l := LUKSHeader{copied: os.NewFile(uintptr(fd), "weft-luks")}
	if _, err := io.CopyN(l.copied, io.NewSectionReader(from, 0, v1alpha1.LUKSHeaderBytes), v1alpha1.LUKSHeaderBytes); err != nil {
		_ = l.Close()
		return LUKSHeader{}, fmt.Errorf("read the LUKS header of %s: %w", device, err)
	}
	return l, nil
}

// luksMetadata is what `cryptsetup luksDump --dump-json-metadata` writes, as far as it is read.
type luksMetadata struct {
	Keyslots map[string]luksSlot `json:"keyslots"`
	Digests  map[string]struct {
		Type       string `json:"type"`
		Iterations int64  `json:"iterations"`
	} `json:"digests"`
	Tokens   map[string]json.RawMessage `json:"tokens"`
	Segments map[string]struct {
		Type       string `json:"type"`
		Offset     string `json:"offset"`
		Size       string `json:"size"`
		IVTweak    string `json:"iv_tweak"`
		Encryption string `json:"encryption"`
		SectorSize int    `json:"sector_size"`
	} `json:"segments"`
	Config struct {
		Requirements struct {
			Mandatory []string `json:"mandatory"`
		} `json:"requirements"`
	} `json:"config"`
}

// luksSlot is a key slot.
type luksSlot struct {
	Type    string `json:"type"`
	KeySize int    `json:"key_size"`
	// Area with the volume's key, as it is encrypted with the key that KDF makes of a passphrase.
	Area struct {
		Encryption string `json:"encryption"`
		KeySize    int    `json:"key_size"`
	} `json:"area"`
	KDF struct {
		Type      string `json:"type"`
		Passes    int64  `json:"time"`
		MemoryKiB int64  `json:"memory"`
		Threads   int    `json:"cpus"`
	} `json:"kdf"`
}

// Bounds of what it may cost to try a key: a header comes from the drive, and may be made to take the memory and the
// time of a node. Slots that cryptsetup adds by default are within them.
const (
	// 1 GiB and 4 threads are cryptsetup's defaults at most.
	maxPBKDFMemoryKiB, maxPBKDFThreads = 1 << 20, 4
	// maxPBKDFWorkKiB is memory times passes: 16 GiB, which take 4 s where a GiB takes 0.25 s.
	maxPBKDFWorkKiB = 16 << 20
	// maxDigestIterations of PBKDF2 when a key was found: about 5 s. cryptsetup takes what lasts 0.125 s.
	maxDigestIterations = 10_000_000
)

// checkSlots fails unless key slots are encrypted as formatLUKS encrypts them. A slot with a null cipher opens with any
// passphrase, and gives a volume key that its maker knows.
func (m luksMetadata) checkSlots(unknown func(what string, value any) error) error {
	for _, slot := range m.Keyslots {
		kdf := slot.KDF
		switch {
		case slot.Type != "luks2":
			return unknown("the type of a key slot", slot.Type)
		case slot.KeySize != luksKeyBytes:
			return unknown("the key's length", slot.KeySize)
		case slot.Area.Encryption != LUKSCipher || slot.Area.KeySize != luksKeyBytes:
			return unknown("the cipher of a key slot", fmt.Sprintf("%s with %d bytes", slot.Area.Encryption, slot.Area.KeySize))
		case kdf.Type != "argon2id":
			return unknown("the key derivation of a key slot", kdf.Type)
		case kdf.MemoryKiB < 1 || kdf.MemoryKiB > maxPBKDFMemoryKiB || kdf.Passes < 1 || kdf.Passes > maxPBKDFWorkKiB/kdf.MemoryKiB || kdf.Threads < 1 || kdf.Threads > maxPBKDFThreads:
			return unknown("the cost of a key slot", fmt.Sprintf("%d KiB, %d passes, %d threads", kdf.MemoryKiB, kdf.Passes, kdf.Threads))
		}
	}
	for _, digest := range m.Digests {
		if digest.Type != "pbkdf2" || digest.Iterations > maxDigestIterations {
			return unknown("the digest of the key", fmt.Sprintf("%s with %d iterations", digest.Type, digest.Iterations))
		}
	}
	return nil
}

// PrepareLUKS makes sure that a device begins with a LUKS header that has a key slot, and reads it: it formats the
// device with newKey and a token if the fence is open, which follows the same rules as that of a filesystem. Type is
// LUKS. It fails as Prepare does, with ErrUnknownLUKS, or with newKey's error. The caller closes the header.
func (h *Host) PrepareLUKS(ctx context.Context, r Request, newKey func(ctx context.Context) (key []byte, token string, err error)) (_ LUKSHeader, err error) {
	ctx, span := tracing.Start(ctx, "prepare encryption", tracing.StepKey.String("preparing "+r.Device))
	defer func() { tracing.End(span, err) }()
	found, err := h.probe(ctx, r.Device)
	if err != nil {
		return LUKSHeader{}, err
	}
	var is LUKSHeader
	defer func() { _ = is.Close() }()
	edges := false
	switch found.Type {
	case "":
		if edges, err = h.edgesAreZero(ctx, r.Device, r.SizeBytes); err != nil {
			return LUKSHeader{}, fmt.Errorf("read %s: %w", r.Device, err)
		}
	case LUKS:
		is, err = h.ReadLUKS(ctx, r.Device)
		// A header that is not valid, and one without a slot, was being made; decide tells what that means. One
		// without a token was, too, unless the volume was used with it: then it has a key of another kind.
		found.Unfinished = errors.Is(err, errInvalidLUKS) ||
			err == nil && (is.Slots == 0 || r.WithToken && is.Token == "" && r.Fence.Header == HeaderFormatting)
		if err != nil && !found.Unfinished {
			return LUKSHeader{}, err
		}
	}
	format, err := decide(r, found, edges)
	if err != nil {
		return LUKSHeader{}, err
	}
	if !format {
		whole := is
		is = LUKSHeader{}
		return whole, nil
	}
	key, token, err := newKey(ctx)
	if err != nil {
		return LUKSHeader{}, err
	}
	defer clear(key)
	if err := r.Begin(ctx); err != nil {
		return LUKSHeader{}, err
	}
	if err := h.formatLUKS(ctx, r.Device, key, token); err != nil {
		return LUKSHeader{}, err
	}
	return h.ReadLUKS(ctx, r.Device)
}

// ReadLUKS reads the header that a device begins with. It fails with ErrUnknownLUKS when it is not as formatLUKS makes
// one, with errInvalidLUKS when cryptsetup says that it is none, and otherwise when that is not known. The caller
// closes the header.
func (h *Host) ReadLUKS(ctx context.Context, device string) (LUKSHeader, error) {
	is, err := h.copyLUKS(ctx, device)
	if err != nil {
		return LUKSHeader{}, err
	}
	out, err := h.cryptsetup(h.brief(ctx), nil, "luksDump", "--dump-json-metadata", is.path())
	var m luksMetadata
	if exit, ok := errors.AsType[exec.ExitError](err); ok && exit.Exited() && exit.ExitStatus() == luksInvalid {
		err = fmt.Errorf("%w: %w", errInvalidLUKS, err)
	} else if err == nil {
		err = json.Unmarshal(out, &m)
	}
	if err == nil {
		is.Slots, is.Token = len(m.Keyslots), string(m.Tokens[luksToken])
		err = m.check(device)
	}
	if err != nil {
		_ = is.Close()
		return LUKSHeader{}, fmt.Errorf("the LUKS header of %s: %w", device, err)
	}
	return is, nil
}

// check fails with ErrUnknownLUKS unless the header of a device is as formatLUKS makes one.
func (m luksMetadata) check(device string) error {
	unknown := func(what string, value any) error {
		return fmt.Errorf("%w: %s of %s is %v; open it by hand, and copy the data to another volume", ErrUnknownLUKS, what, device, value)
	}
	s, one := m.Segments["0"]
	switch {
	case len(m.Config.Requirements.Mandatory) > 0:
		return unknown("a required feature", m.Config.Requirements.Mandatory)
	case !one || len(m.Segments) != 1 || s.Type != "crypt" || s.Size != "dynamic" || s.IVTweak != "0":
		return unknown("the list of segments", m.Segments)
	case s.Encryption != LUKSCipher || s.SectorSize != LUKSSectorBytes:
		return unknown("the cipher", fmt.Sprintf("%s in sectors of %d", s.Encryption, s.SectorSize))
	case s.Offset != strconv.Itoa(v1alpha1.LUKSHeaderBytes):
		return unknown("the start of the data", s.Offset)
	}
	return m.checkSlots(unknown)
}

// luksToken is the number of the token that is kept with a header.
const luksToken = "0"

// pbkdf are the options for what a key slot costs to open.
func (h *Host) pbkdf() []string {
	memory := h.PBKDFMemoryKiB
	if memory == 0 {
		memory = pbkdfMemoryKiB
	}
	return []string{"--pbkdf", "argon2id", "--pbkdf-memory", strconv.Itoa(memory), "--pbkdf-force-iterations", strconv.Itoa(pbkdfPasses), "--pbkdf-parallel", "1"}
}

func (h *Host) formatLUKS(ctx context.Context, device string, key []byte, token string) error {
	_, err := h.cryptsetup(h.lasting(ctx), key, append(append([]string{
		"luksFormat", "--type", "luks2", "--cipher", LUKSCipher, "--key-size", strconv.Itoa(8 * luksKeyBytes), "--sector-size", strconv.Itoa(LUKSSectorBytes),
		"--offset", strconv.Itoa(v1alpha1.LUKSHeaderBytes / 512), "--luks2-metadata-size", strconv.Itoa(metadataBytes),
		"--luks2-keyslots-size", strconv.Itoa(v1alpha1.LUKSHeaderBytes - 2*metadataBytes), "--key-file", "-",
	}, h.pbkdf()...), device)...)
	if err == nil && token != "" {
		_, err = h.cryptsetup(h.lasting(ctx), []byte(token), "token", "import", "--token-id", luksToken, "--json-file", "-", device)
	}
	return err
}

// LUKSKey gives the key of a volume, which a key slot of its header holds. It fails with ErrWrongKey when the key opens
// none. It runs to its end: where the kernel has no skcipher sockets, cryptsetup makes a device for a moment, and
// killed it would leave that.
func (h *Host) LUKSKey(ctx context.Context, is LUKSHeader, key []byte) ([]byte, error) {
	out, err := h.cryptsetup(h.lasting(ctx), key, "luksDump", "--dump-volume-key", "--key-file", "-", is.path())
	defer clear(out)
	if err != nil {
		return nil, err
	}
	const label = "MK dump:"
	_, digits, found := bytes.Cut(out, []byte(label))
	digits = slices.DeleteFunc(digits, func(b byte) bool { return b == ' ' || b == '\t' || b == '\n' })
	volumeKey := make([]byte, hex.DecodedLen(len(digits)))
	n, err := hex.Decode(volumeKey, digits)
	if !found || err != nil || n != luksKeyBytes {
		clear(volumeKey)
		return nil, fmt.Errorf("cryptsetup luksDump --dump-volume-key %s answered nothing with a key of %d bytes behind %q", is.path(), luksKeyBytes, label)
	}
	return volumeKey, nil
}

// AddLUKSKey adds a key slot for next, which is opened with key.
func (h *Host) AddLUKSKey(ctx context.Context, device string, key, next []byte) error {
	both := slices.Concat(key, next)
	defer clear(both)
	_, err := h.cryptsetup(h.lasting(ctx), both, append(append([]string{
		"luksAddKey", "--key-file", "-", "--keyfile-size", strconv.Itoa(len(key)), "--new-keyfile", "-", "--new-keyfile-size", strconv.Itoa(len(next)),
	}, h.pbkdf()...), device)...)
	return err
}

// RemoveLUKSKey removes the key slot that a key opens. Call it only after another key was seen to open one: cryptsetup
// would remove the last. It fails with ErrWrongKey when there is none, which is where it was removed before.
func (h *Host) RemoveLUKSKey(ctx context.Context, device string, key []byte) error {
	_, err := h.cryptsetup(h.lasting(ctx), key, "luksRemoveKey", "--key-file", "-", device)
	return err
}

// ErrNoCryptsetup says that cryptsetup is not in the image.
var ErrNoCryptsetup = fmt.Errorf("program cryptsetup %w", doing.ErrNoProgram)

// LookForCryptsetup fails with ErrNoCryptsetup when there is none.
func (h *Host) LookForCryptsetup() error {
	if _, err := h.Exec.LookPath("cryptsetup"); err != nil {
		return fmt.Errorf("%w: %w", ErrNoCryptsetup, err)
	}
	return nil
}

// cryptsetup runs that program, with what is given to its standard input, and gives what it writes to its output. Keys
// are nowhere else: not among its arguments, nor in an error.
func (h *Host) cryptsetup(r runner, stdin []byte, args ...string) ([]byte, error) {
	const name = "cryptsetup"
	// This process serves one call for a volume at a time. Locks would be files in /run.
	args = append([]string{"--batch-mode", "--disable-locks"}, args...)
	defer doing.Begin(r.ctx, "running "+name+" "+strings.Join(args, " "))()
	cmd := r.CommandContext(r.ctx, name, args...)
	// Nothing of what cryptsetup does here makes a device, but where the kernel has no skcipher sockets; then it must
	// not wait for the host's udev, whose semaphores a container does not see.
	cmd.SetEnv(append(os.Environ(), "LC_ALL=C", "DM_DISABLE_UDEV=1"))
	cmd.SetStdin(bytes.NewReader(stdin))
	var stderr strings.Builder
	cmd.SetStderr(&stderr)
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	clear(out)
	if exit, ok := errors.AsType[exec.ExitError](err); ok && exit.Exited() && exit.ExitStatus() == luksWrongKey && len(stdin) > 0 {
		return nil, ErrWrongKey
	}
	return nil, &programError{Command: name, Output: strings.TrimSpace(stderr.String()), Err: err}
}
