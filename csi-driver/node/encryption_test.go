// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/codes"
	utilexec "k8s.io/utils/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/header"
)

// Keys of the tests. No error may hold one.
const (
	firstKey  = "the first planted key"
	secondKey = "the second planted key"
)

// luks2 as headers have it.
const luks2 = string(v1alpha1.EncryptionLUKS2)

// setUpEncrypted is setUp with an encrypted volume, and the Secret with its first key. The LUKS headers are made by
// this machine's cryptsetup; only dm-crypt is the constructed kernel's.
func setUpEncrypted(t testing.TB) *suite {
	t.Helper()
	s := setUp(t)
	s.context.Encryption = v1alpha1.EncryptionLUKS2
	s.secrets = map[string]string{"passphrase": firstKey}
	return s
}

// opens tells whether cryptsetup, run by hand, opens the volume's LUKS header with a key.
func (s *suite) opens(key string) bool {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), "cryptsetup", "open", "--test-passphrase", "--batch-mode", "--key-file", "-", s.kernel.Backing(nguid))
	cmd.Stdin = strings.NewReader(key)
	return cmd.Run() == nil
}

// slots of the volume's LUKS header.
func (s *suite) slots() int {
	s.Helper()
	out, err := exec.CommandContext(s.Context(), "cryptsetup", "luksDump", s.kernel.Backing(nguid)).Output()
	must(s, err)
	return strings.Count(string(out), ": luks2")
}

// encryptedDevice is the one that pods see; there is no other.
func (s *suite) encryptedDevice() mapper.Device {
	s.Helper()
	all, err := s.service.Mapper.Of(s.context.UUID)
	must(s, err)
	if len(all) != 1 || all[0].Kind != mapper.Crypt {
		s.Fatalf("the volume has devices %+v", all)
	}
	return all[0]
}

// withoutKeys fails when an error, or a file outside the volume, has one of the tests' keys.
func (s *suite) withoutKeys(err error) {
	s.Helper()
	for _, key := range []string{firstKey, secondKey} {
		if err != nil && strings.Contains(err.Error(), key) {
			s.Errorf("the error has a key: %v", err)
		}
	}
	records, globErr := filepath.Glob(filepath.Join(s.dir, "staged", "*"))
	must(s, globErr)
	for _, file := range records {
		data, err := os.ReadFile(file)
		must(s, err)
		if bytes.Contains(data, []byte("planted key")) {
			s.Errorf("%s has a key", file)
		}
	}
}

func TestEncryptedVolume(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			must(t, s.stage(c))
			s.wantHeader(header.Formatted, map[bool]string{true: header.Block, false: "ext4"}[c.GetBlock() != nil])
			d := s.encryptedDevice()
			if d.SizeBytes != size-v1alpha1.LUKSHeaderBytes {
				t.Errorf("pods see %d bytes", d.SizeBytes)
			}
			if !s.opens(firstKey) || s.opens(secondKey) {
				t.Error("the LUKS header opens with another key than that of the Secret")
			}
			must(t, s.publish(c, "pod", false))
			must(t, s.stage(c)) // as often as the kubelet asks
			must(t, s.service.MendPaths(t.Context()))
			s.withoutKeys(nil)
			if len(s.programs.with("luksFormat")) == 0 {
				t.Error("it is not known which arguments cryptsetup had")
			}

			s.serve(2 * size)
			s.secrets = nil // the kernel has the key
			grown, err := s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: vol, VolumePath: s.path("pod"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2*size - v1alpha1.LUKSHeaderBytes},
			})
			must(t, err)
			if d = s.encryptedDevice(); grown.GetCapacityBytes() != 2*size-v1alpha1.LUKSHeaderBytes || d.SizeBytes != grown.GetCapacityBytes() {
				t.Errorf("it was grown to %d, and pods see %d bytes", grown.GetCapacityBytes(), d.SizeBytes)
			}
			must(t, s.unpublish("pod"))
			must(t, s.unstage())
			s.wantGone()

			s.attach()
			s.serve(2 * size)
			s.context.SizeBytes, s.context.Blank = 2*size, false
			s.secrets = map[string]string{"passphrase": firstKey}
			must(t, s.stage(c))
			if d := s.encryptedDevice(); d.SizeBytes != 2*size-v1alpha1.LUKSHeaderBytes {
				t.Errorf("pods see %d bytes", d.SizeBytes)
			}
			must(t, s.unstage())
			s.wantGone()
		})
	}
}

// cutPrograms lets the nth run of a program with an argument fail, or happen and then fail.
func (s *suite) cutPrograms(argument string, after bool) {
	s.programs.instead = func(name string, args []string) (string, []string) {
		switch {
		case !slices.Contains(append(args, name), argument):
			return name, args
		case after:
			return "sh", append([]string{"-c", `"$@"; exit 1`, "sh", name}, args...)
		default:
			return "false", nil
		}
	}
}

// What is cut off while an encrypted volume is made goes on with the next stage. Nothing of it was used before.
func TestEncryptionThatIsCutOff(t *testing.T) {
	for name, cut := range map[string]func(*suite){
		"before the first header":               func(s *suite) { s.service.Initiator = &writes{s.service.Initiator, 1, false} },
		"between the header and luksFormat":     func(s *suite) { s.service.Initiator = &writes{s.service.Initiator, 1, true} },
		"before luksFormat":                     func(s *suite) { s.cutPrograms("luksFormat", false) },
		"after luksFormat":                      func(s *suite) { s.cutPrograms("luksFormat", true) },
		"in luksFormat":                         (*suite).halfMadeLUKS,
		"in luksFormat, before its only slot":   (*suite).luksWithoutASlot,
		"between luksFormat and the device":     func(s *suite) { s.cutPrograms("--dump-volume-key", true) },
		"before mkfs":                           func(s *suite) { s.cutPrograms("mkfs.ext4", false) },
		"after mkfs":                            func(s *suite) { s.cutPrograms("mkfs.ext4", true) },
		"between mkfs and the last header":      func(s *suite) { s.service.Initiator = &writes{s.service.Initiator, 2, false} },
		"between the last header and the mount": func(s *suite) { s.service.Initiator = &writes{s.service.Initiator, 2, true} },
	} {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			initiator := s.service.Initiator
			cut(s)
			err := s.stage(mountCapability("ext4"))
			if err == nil {
				t.Fatal("it was not cut off")
			}
			s.withoutKeys(err)
			s.wantGone()
			s.service.Initiator, s.programs.instead = initiator, nil
			s.context.Written = s.header().State != ""
			must(t, s.stage(mountCapability("ext4")))
			s.wantMounts("staging ext4 rw")
			s.wantHeader(header.Formatted, "ext4")
			s.encryptedDevice()
			if n := s.slots(); n != 1 || !s.opens(firstKey) {
				t.Errorf("%d key slots", n)
			}
		})
	}
}

// halfMadeLUKS lets luksFormat, which fails, have written the beginning of a header.
func (s *suite) halfMadeLUKS() {
	s.programs.instead = func(name string, args []string) (string, []string) {
		if slices.Contains(args, "luksFormat") {
			must(s, os.WriteFile(s.kernel.Backing(nguid), append([]byte("LUKS\xba\xbe\x00\x02"), make([]byte, size-8)...), 0o600))
			return "false", nil
		}
		return name, args
	}
}

// luksWithoutASlot lets luksFormat be cut off before it adds the key slot.
func (s *suite) luksWithoutASlot() {
	s.programs.instead = func(name string, args []string) (string, []string) {
		if slices.Contains(args, "luksFormat") {
			device := args[len(args)-1]
			script := `cryptsetup "$@" && cryptsetup luksErase --batch-mode ` + device + `; exit 1`
			return "sh", append([]string{"-c", script, "sh"}, args...)
		}
		return name, args
	}
}

// A key that opens nothing is told of, and nothing is written, whatever the volume's state.
func TestEncryptedVolumeWithAnotherKey(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*suite)
		secrets map[string]string
		words   []string
	}{
		"changed":                         {func(*suite) {}, map[string]string{"passphrase": secondKey}, []string{"does not open the volume's LUKS header", "previousPassphrase"}},
		"changed, and another former one": {func(*suite) {}, map[string]string{"passphrase": secondKey, "previousPassphrase": "neither of them"}, []string{"neither does the former key"}},
		"changed, before it was ever used": {func(s *suite) {
			s.writeHeader(header.Record{Volume: volumeUUID, State: header.Formatting, Type: "ext4", Encryption: luks2})
		}, map[string]string{"passphrase": secondKey}, []string{"does not open", "delete the claim"}},
		"changed, and formatting allowed":   {func(s *suite) { s.context.AllowFormat = true }, map[string]string{"passphrase": secondKey}, []string{"does not open"}},
		"of a copy":                         {func(s *suite) { s.context.Source = &v1alpha1.VolumeSource{Volume: "other"} }, map[string]string{"passphrase": secondKey}, []string{"has the key of that one"}},
		"with a newline that was not there": {func(*suite) {}, map[string]string{"passphrase": firstKey + "\n"}, []string{"does not open"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			must(t, s.stage(mountCapability("ext4")))
			must(t, s.unstage())
			s.attach()
			s.context.Blank = false
			c.prepare(s)
			s.secrets = c.secrets
			for _, capability := range capabilities() {
				s.unchanged(func() {
					err := s.stage(capability)
					want(t, err, codes.FailedPrecondition, c.words...)
					s.withoutKeys(err)
				})
				s.wantGone()
			}
		})
	}
}

// Without a Secret that fits, nothing is done.
func TestEncryptedVolumeWithoutAKey(t *testing.T) {
	for name, c := range map[string]struct {
		secrets map[string]string
		words   string
	}{
		"no Secret":             {nil, "node-stage-secret-name"},
		"another Secret":        {map[string]string{"password": "x"}, "no passphrase, but password"},
		"an empty one":          {map[string]string{"passphrase": ""}, "no passphrase"},
		"a short one":           {map[string]string{"passphrase": "1234567"}, "has 7 bytes; use 8 to 512"},
		"a long one":            {map[string]string{"passphrase": strings.Repeat("x", 513)}, "has 513 bytes"},
		"a short former one":    {map[string]string{"passphrase": firstKey, "previousPassphrase": "x"}, "previousPassphrase of the Secret has 1 bytes"},
		"Vault without a token": {map[string]string{"vaultAddress": "https://vault.example"}, "but no vault"},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			s.secrets = c.secrets
			s.unchanged(func() { want(t, s.stage(mountCapability("ext4")), codes.InvalidArgument, c.words) })
			s.wantGone()
		})
	}
}

// A key that was changed gets a slot before the former one loses its own, wherever that is cut off.
func TestKeyThatIsChanged(t *testing.T) {
	for name, c := range map[string]struct {
		argument string
		after    bool
	}{
		"not cut off": {"", false}, "before the slot is added": {"luksAddKey", false}, "after the slot is added": {"luksAddKey", true},
		"before the former one is removed": {"luksRemoveKey", false}, "after the former one is removed": {"luksRemoveKey", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			must(t, s.stage(mountCapability("ext4")))
			must(t, s.unstage())
			s.secrets = map[string]string{"passphrase": secondKey, "previousPassphrase": firstKey}
			if c.argument != "" {
				s.cutPrograms(c.argument, c.after)
				err := s.stage(mountCapability("ext4"))
				want(t, err, codes.Internal, "cryptsetup")
				s.withoutKeys(err)
				if !s.opens(firstKey) && !s.opens(secondKey) {
					t.Fatal("no key opens the volume")
				}
				s.programs.instead = nil
			}
			changedAlready := s.opens(secondKey)
			var told strings.Builder
			ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) { told.WriteString(args + "\n") }, funcr.Options{}))
			_, err := s.service.NodeStageVolume(ctx, s.stageRequest(onlyRead(mountCapability("ext4")))) // changes nothing
			must(t, err)
			if strings.Contains(told.String(), "keep the former key until it was staged for writing") == changedAlready {
				t.Errorf("the former key was needed: %t; logged: %s", !changedAlready, told.String())
			}
			must(t, s.unstage())
			must(t, s.stage(mountCapability("ext4")))
			s.encryptedDevice()
			if n := s.slots(); n != 1 || !s.opens(secondKey) || s.opens(firstKey) {
				t.Errorf("%d key slots; the former key opens one: %t", n, s.opens(firstKey))
			}
			must(t, s.unstage())
			must(t, s.stage(mountCapability("ext4"))) // the Secret still has both
			must(t, s.unstage())
			s.secrets = map[string]string{"passphrase": secondKey}
			must(t, s.stage(mountCapability("ext4")))
		})
	}
}

// A target that answers with a header of its own while a slot is added does not make the volume's key its own: the data
// are not written with it.
func TestKeyThatIsChangedInAForgedHeader(t *testing.T) {
	s := setUpEncrypted(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	forged := s.path("forged")
	must(t, os.WriteFile(forged, nil, 0o600))
	must(t, os.Truncate(forged, size))
	cmd := exec.CommandContext(t.Context(), "cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4",
		"--offset", "8192", "--sector-size", "4096", "--key-size", "512", "--key-file", "-", forged)
	cmd.Stdin = strings.NewReader(firstKey)
	must(t, cmd.Run())
	s.programs.instead = func(name string, args []string) (string, []string) {
		if slices.Contains(args, "luksAddKey") {
			script := `dd status=none conv=notrunc bs=1M count=4 if=` + forged + ` of=` + s.kernel.Backing(nguid) + ` && exec cryptsetup "$@"`
			return "sh", append([]string{"-c", script, "sh"}, args...)
		}
		return name, args
	}
	s.secrets = map[string]string{"passphrase": secondKey, "previousPassphrase": firstKey}
	err := s.stage(mountCapability("ext4"))
	want(t, err, codes.FailedPrecondition, "has the key of another volume")
	s.withoutKeys(err)
	s.wantGone()
}

// The same key twice is one key, and its slot stays.
func TestKeyThatIsItsOwnFormerOne(t *testing.T) {
	s := setUpEncrypted(t)
	s.secrets["previousPassphrase"] = firstKey
	for range 2 {
		must(t, s.stage(mountCapability("ext4")))
		must(t, s.unstage())
	}
	if n := s.slots(); n != 1 {
		t.Errorf("%d key slots", n)
	}
}

// What is not encrypted, or otherwise than weft does, is not taken for an encrypted volume, nor formatted.
func TestVolumeThatIsNotEncryptedAsItsObjectSays(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*suite)
		words   []string
	}{
		"a filesystem": {func(s *suite) { s.stagePlain(mountCapability("ext4")) }, []string{"the data is not encrypted", "with LUKS2"}},
		"a raw block volume": {func(s *suite) {
			s.stagePlain(blockCapability())
			s.fill()
			s.context.AllowFormat = true
		}, []string{"the data is not encrypted", "with LUKS2"}},
		"a filesystem that something else made": {func(s *suite) {
			s.stagePlain(mountCapability("ext4"))
			s.writeHeader(header.Record{Volume: volumeUUID, State: header.Formatted, Type: "ext4", Encryption: luks2})
		}, []string{"holds ext4, which is not encrypted"}},
		"something else's raw data": {func(s *suite) {
			s.writeHeader(header.Record{Volume: volumeUUID, State: header.Formatted, Type: header.Block, Encryption: luks2})
			s.fill()
		}, []string{"contains no LUKS header", allowFormat}},
		"its LUKS header was lost": {func(s *suite) {
			must(s, s.stage(mountCapability("ext4")))
			must(s, s.unstage())
			s.wipe()
		}, []string{"contains no LUKS header", allowFormat}},
		"its LUKS header is damaged": {func(s *suite) {
			must(s, s.stage(mountCapability("ext4")))
			must(s, s.unstage())
			s.damage()
		}, []string{"contains an incomplete LUKS header", allowFormat}},
		"its header was lost": {func(s *suite) {
			s.loseHeader("ext4")
		}, []string{"holds crypto_LUKS, but its volume has no header"}},
		"another layout": {func(s *suite) {
			s.writeHeader(header.Record{Volume: volumeUUID, State: header.Formatted, Type: "ext4", Encryption: luks2})
			cmd := exec.CommandContext(s.Context(), "cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--offset", "8192", "--sector-size", "512", "--key-file", "-", s.kernel.Backing(nguid))
			cmd.Stdin = strings.NewReader(firstKey)
			must(s, cmd.Run())
		}, []string{"not one that weft makes", "512"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			c.prepare(s)
			s.context.Encryption, s.context.Blank = v1alpha1.EncryptionLUKS2, false
			s.wantRefused(mountCapability("ext4"), c.words...)
			s.wantRefused(blockCapability(), c.words...)
		})
	}
}

// stagePlain stages the volume as one that is not encrypted, and unstages it.
func (s *suite) stagePlain(c *csi.VolumeCapability) {
	s.Helper()
	encryption, secrets := s.context.Encryption, s.secrets
	s.context.Encryption, s.secrets = "", nil
	must(s, s.stage(c))
	must(s, s.unstage())
	s.context.Encryption, s.secrets = encryption, secrets
}

// damage both copies of the metadata, but for the magic numbers.
func (s *suite) damage() {
	s.Helper()
	f, err := os.OpenFile(s.kernel.Backing(nguid), os.O_WRONLY, 0)
	must(s, err)
	defer f.Close() //nolint:errcheck // it is read afterwards
	for _, at := range []int64{4096, 20480} {
		_, err := f.WriteAt(make([]byte, 4096), at)
		must(s, err)
	}
}

// The other way round, what is encrypted is not mounted, formatted or handed out as it is stored: not after it was
// used, nor when that was cut off, nor as a copy.
func TestEncryptedVolumeWhoseObjectSaysItIsNot(t *testing.T) {
	for name, prepare := range map[string]func(*suite){
		"used":     func(*suite) {},
		"given up": func(s *suite) { s.context.AllowFormat = true },
		"never used": func(s *suite) {
			s.writeHeader(header.Record{Volume: volumeUUID, State: header.Formatting, Type: header.Block, Encryption: luks2})
		},
		"a copy": (*suite).copied,
	} {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			must(t, s.stage(blockCapability()))
			must(t, s.unstage())
			s.attach()
			s.context.Encryption, s.context.Blank, s.secrets = "", false, nil
			prepare(s)
			for _, c := range capabilities() {
				s.wantRefused(c, "the data is encrypted with LUKS2", "spec.encryption")
			}
		})
	}
}

// A volume that was never used has no header. That somebody encrypts it, its PersistentVolume says as well.
func TestPlainVolumeWithASecret(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			s.context.Encryption = ""
			s.unchanged(func() {
				want(t, s.stage(c), codes.AlreadyExists, "names a Secret")
				want(t, s.publish(c, "pod", false), codes.AlreadyExists, "names a Secret")
			})
			s.wantGone()
		})
	}
}

// Each replica's header says that the data are encrypted, and a mirror is not made of them for an object that does not.
func TestMirroredVolumeIsEncryptedAsItsObjectSays(t *testing.T) {
	for kind, c := range capabilities() {
		t.Run(kind, func(t *testing.T) {
			s := setUpMirror(t)
			s.setEncryption(v1alpha1.EncryptionLUKS2)
			s.secrets = map[string]string{"passphrase": firstKey}
			must(t, s.stage(c))
			s.encryptedDevice()
			for name := range s.legs {
				if h := s.headerOf(name); h.State != header.Formatted || h.Encryption != luks2 {
					t.Errorf("%s begins with %+v", name, h)
				}
			}
			must(t, s.unstage())
			s.setEncryption("")
			s.secrets = nil
			want(t, s.stage(c), codes.FailedPrecondition, "the data is encrypted with LUKS2")
			s.wantMounts("")
			must(t, s.unstage())
			s.wantEqualLegs()
		})
	}
}

// setEncryption of the volume's object.
func (s *mirrorSuite) setEncryption(e v1alpha1.VolumeEncryption) {
	s.Helper()
	var v v1alpha1.NvmfVolume
	must(s, s.api.Get(s.Context(), client.ObjectKey{Name: vol}, &v))
	v.Spec.Encryption = e
	must(s, s.api.Update(s.Context(), &v))
}

// An administrator may give up what an encrypted volume held whose LUKS header is lost.
func TestEncryptedVolumeThatIsGivenUp(t *testing.T) {
	s := setUpEncrypted(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	s.wipe()
	s.attach()
	s.context.Blank, s.context.AllowFormat = false, true
	must(t, s.stage(mountCapability("ext4")))
	s.wantHeader(header.Formatted, "ext4")
	must(t, s.unstage())
	s.wipe()
	s.wantRefused(mountCapability("ext4"), "contains no LUKS header") // the permission is used up
}

// A copy has its source's LUKS header, and so its key.
func TestCopyOfAnEncryptedVolume(t *testing.T) {
	s := setUpEncrypted(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	s.copied()

	s.secrets = map[string]string{"passphrase": secondKey}
	s.wantRefused(mountCapability("ext4"), "does not open the volume's LUKS header", "has the key of that one")
	s.secrets = map[string]string{"passphrase": secondKey, "previousPassphrase": firstKey}
	must(t, s.stage(mountCapability("ext4")))
	if h := s.header(); h.Volume != sourceUUID || h.State != header.Formatted || h.Encryption != luks2 {
		t.Errorf("the header is %+v", h)
	}
	s.encryptedDevice()
}

// copied makes the volume a copy of what it was.
func (s *suite) copied() {
	s.Helper()
	source := s.context
	source.Replica = "source-r1"
	s.objects["source"] = &source
	s.context.UUID, s.context.Source, s.context.Blank = sourceUUID, &v1alpha1.VolumeSource{Volume: "source"}, false
	s.context.Attach("b1b1b1b1-2222-4333-8444-555555555555")
	s.serve(size)
}

// Several nodes that write could each make a LUKS header.
func TestEncryptedVolumeThatSeveralNodesWrite(t *testing.T) {
	s := setUpEncrypted(t)
	c := blockCapability()
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	s.unchanged(func() { want(t, s.stage(c), codes.InvalidArgument, "cannot be written by several nodes") })
	s.wantGone()
}

// A device that is used stays, and the volume is unstaged once it is not.
func TestEncryptedDeviceThatIsHeld(t *testing.T) {
	s := setUpEncrypted(t)
	must(t, s.stage(blockCapability()))
	opened, err := s.kernel.Open(s.encryptedDevice().Path)
	must(t, err)
	if err := s.unstage(); err == nil {
		t.Error("it was unstaged while its device was open")
	}
	if len(s.kernel.Controllers()) != 1 {
		t.Error("its connection is gone")
	}
	must(t, opened.Close())
	must(t, s.unstage())
	s.wantGone()
}

// A process that is killed while cryptsetup works leaves a device, which the next stage, or the unstage, takes away.
func TestDeviceOfALUKSHeaderIsTakenAway(t *testing.T) {
	for name, next := range map[string]func(*suite){
		"by a stage":    func(s *suite) { must(s, s.stage(mountCapability("ext4"))); s.encryptedDevice(); must(s, s.unstage()) },
		"by an unstage": func(s *suite) { must(s, s.unstage()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := setUpEncrypted(t)
			must(t, s.stage(mountCapability("ext4")))
			must(t, s.mounter.Unmount(s.path("staging")))
			must(t, s.service.Mapper.Remove(t.Context(), s.encryptedDevice()))
			s.leaveLUKSDevice()
			next(s)
			s.wantGone()
		})
	}
}

// leaveLUKSDevice of the volume, which is connected.
func (s *suite) leaveLUKSDevice() { s.build(mapper.LUKS) }

// build a device that shows the data as they are stored.
func (s *suite) build(kind mapper.Kind) mapper.Device {
	s.Helper()
	ns, err := s.service.Initiator.FindNamespace(fabrics.ID{NQN: s.context.NQN, NGUID: nguid})
	must(s, err)
	d, err := s.service.Mapper.Build(s.Context(), mapper.Spec{
		Owner: mapper.Owner{Volume: volumeUUID, Kind: kind}, Attachment: s.context.Attachment,
		Lower: mapper.Lower{Name: ns.Name, Number: ns.Device}, OffsetBytes: v1alpha1.HeaderBytes, SizeBytes: size,
	})
	must(s, err)
	return d
}

// A device of the same attachment that does not encrypt, as an earlier node plugin made it, is not published.
func TestDeviceOfAnotherKindIsNotPublished(t *testing.T) {
	s := setUpEncrypted(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.mounter.Unmount(s.path("staging")))
	must(t, s.service.Mapper.Remove(t.Context(), s.encryptedDevice()))
	must(t, s.mounter.Mount(s.build(mapper.Plain).Path, s.path("staging"), "ext4", nil))
	s.context.Blank = false
	must(t, s.publish(mountCapability("ext4"), "pod", false))
	s.encryptedDevice()
	s.wantShown(2)
}

// A key is in no text that is made of its device.
func TestCipherShowsNoKey(t *testing.T) {
	c := mapper.Cipher{Name: filesystem.LUKSCipher, Key: []byte(firstKey)}
	text, err := json.Marshal(c)
	must(t, err)
	for _, text := range []string{string(text), fmt.Sprintf("%v %+v %#v", c, c, c), fmt.Sprintf("%v %+v %#v", &c, &c, &c)} {
		for _, key := range []string{firstKey, base64.StdEncoding.EncodeToString(c.Key), fmt.Sprintf("%d", c.Key), fmt.Sprintf("%#v", c.Key)} {
			if strings.Contains(text, key) {
				t.Errorf("%s has the key", text)
			}
		}
	}
}

// A pod comes back before the volume was unstaged: the kubelet does not stage again, and publishing has the Secret too,
// if its class names one for that.
func TestEncryptedVolumeIsStagedWhenItIsPublished(t *testing.T) {
	s := setUpEncrypted(t)
	must(t, s.stage(mountCapability("ext4")))
	former := s.encryptedDevice()
	s.attach()
	s.context.Blank = false
	must(t, s.publish(mountCapability("ext4"), "pod", false))
	if now := s.encryptedDevice(); now.Attachment == former.Attachment {
		t.Error("it was published with the device of the former attachment")
	}
}

// A kernel without dm-crypt makes no device, and leaves the volume as it was.
func TestEncryptedVolumeWithoutDMCrypt(t *testing.T) {
	s := setUpEncrypted(t)
	s.kernel.SetCrypt(false)
	err := s.stage(mountCapability("ext4"))
	if err == nil || !strings.Contains(err.Error(), "dm_crypt") {
		t.Errorf("got %v", err)
	}
	s.wantGone()
	s.kernel.SetCrypt(true)
	must(t, s.stage(mountCapability("ext4")))
}

// What a node lacks to use encrypted volumes is its Node's condition, and once it is there, that is.
func TestNodeReportsWhetherItCanEncrypt(t *testing.T) {
	k, err := nodetest.NewKernel(t.TempDir())
	must(t, err)
	k.SetCrypt(false)
	cryptsetup, modprobe := "no-such-cryptsetup", "false"
	exec := &lookedUp{programs: programs{Programs: nodetest.Programs{Interface: utilexec.New(), Kernel: k}}, cryptsetup: &cryptsetup}
	exec.instead = func(name string, args []string) (string, []string) {
		if modprobe == "true" {
			k.SetCrypt(true)
		}
		return modprobe, nil
	}
	c, clock := newNode(t)
	fs := &filesystem.Host{Exec: exec}
	reporter := &node.NeedsReporter{
		Needs:     []node.Loader{node.EncryptionNeeds{Filesystems: fs, Mapper: &mapper.Host{Root: k.Root, Control: k.DeviceMapper(), LoadModule: fs.LoadModule}}},
		Available: node.EncryptionAvailable, Clock: clock,
		Writer: &node.ConditionWriter{Client: c, Node: "node1", UID: "1", Clock: clock, Type: v1alpha1.ConditionEncryptionUnavailable, FieldManager: node.EncryptionFieldManager},
	}
	for _, step := range []struct {
		change    func()
		available bool
		words     string
	}{
		{func() {}, false, "ProgramMissing"},
		{func() { cryptsetup = "sh" }, false, "load kernel module dm_crypt"},
		{func() { modprobe = "true" }, true, node.EncryptionAvailable},
	} {
		step.change()
		available, err := reporter.Look(t.Context())
		must(t, err)
		if got := conditionOf(t, c, v1alpha1.ConditionEncryptionUnavailable); available != step.available || !strings.Contains(got, step.words) {
			t.Errorf("available %t, condition %q; want %t, %q", available, got, step.available, step.words)
		}
	}
}

// lookedUp are programs of which cryptsetup is looked for under another name.
type lookedUp struct {
	programs
	cryptsetup *string
}

// LookPath implements exec.Interface.
func (l *lookedUp) LookPath(name string) (string, error) {
	if name == "cryptsetup" {
		name = *l.cryptsetup
	}
	return l.programs.LookPath(name)
}
