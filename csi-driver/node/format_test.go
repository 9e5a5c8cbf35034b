// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/header"
)

// header of the volume, as it lies with the target.
func (s *suite) header() header.Header {
	s.Helper()
	data, err := os.ReadFile(s.kernel.Header(nguid))
	must(s, err)
	h, err := header.Parse(data[:header.Bytes])
	must(s, err)
	return h
}

// wantHeader of the volume itself.
func (s *suite) wantHeader(state header.State, kind string) {
	s.Helper()
	if h := s.header(); h.Volume != volumeUUID || h.State != state || h.Type != kind {
		s.Errorf("the header is %+v, want %s %s", h, state, kind)
	}
}

// writeHeader as if the volume had this one, after what it has.
func (s *suite) writeHeader(r header.Record) {
	s.Helper()
	offset, slot, err := s.header().Next(r)
	must(s, err)
	s.writeStart(offset, slot)
}

// writeStart of the volume.
func (s *suite) writeStart(offset int64, data []byte) {
	s.Helper()
	f, err := os.OpenFile(s.kernel.Header(nguid), os.O_WRONLY, 0)
	must(s, err)
	_, err = f.WriteAt(data, offset)
	must(s, errors.Join(err, f.Close()))
}

// fill the volume's data, as what nobody recognises.
func (s *suite) fill() {
	s.Helper()
	must(s, os.WriteFile(s.kernel.Backing(nguid), []byte(strings.Repeat("x", size)), 0o600))
}

// wipe the volume's data, as damage does that no probe tells from a blank volume.
func (s *suite) wipe() {
	s.Helper()
	must(s, os.Truncate(s.kernel.Backing(nguid), 0))
	must(s, os.Truncate(s.kernel.Backing(nguid), size))
}

// unchanged fails when a call changes any byte of the volume.
func (s *suite) unchanged(call func()) {
	s.Helper()
	files := []string{s.kernel.Header(nguid), s.kernel.Backing(nguid)}
	var before [][]byte
	for _, file := range files {
		data, err := os.ReadFile(file)
		must(s, err)
		before = append(before, data)
	}
	call()
	for i, file := range files {
		after, err := os.ReadFile(file)
		must(s, err)
		if !bytes.Equal(before[i], after) {
			s.Errorf("the volume was written to: %s", file)
		}
	}
}

// wantRefused wants the volume not to be staged, not a byte of it changed, and nothing of it left on the node.
func (s *suite) wantRefused(c *csi.VolumeCapability, words ...string) {
	s.Helper()
	s.unchanged(func() { want(s, s.stage(c), codes.FailedPrecondition, words...) })
	s.wantGone()
}

const allowFormat = "weft.storage/allow-format of NvmfVolume pvc-1"

// stageAndLose the data of a volume; the node plugin is restarted meanwhile.
func (s *suite) stageAndLose() {
	s.Helper()
	must(s, s.stage(mountCapability("ext4")))
	s.wantMounts("staging ext4 rw")
	s.wantHeader(header.Formatted, "ext4")
	must(s, s.unstage())
	s.wipe()
	must(s, s.service.Clean())
	must(s, s.service.MendPaths(s.Context()))
}

// What the target said of a volume when it was attached is not true of one that was used, and a permission that was
// made use of is over, though an attachment outlives pods and reboots.
func TestFormattedOnce(t *testing.T) {
	const lost = "was formatted before, but contains no filesystem"
	for name, prepare := range map[string]func(*suite){
		"blank": func(*suite) {},
		"format allowed": func(s *suite) {
			s.fill()
			s.context.Blank, s.context.AllowFormat = false, true
		},
		"held a filesystem, and format allowed": func(s *suite) {
			must(s, s.stage(mountCapability("ext4")))
			must(s, s.unstage())
			s.attach()
			s.context.AllowFormat = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			prepare(s)
			s.stageAndLose()
			s.wantRefused(mountCapability("ext4"), lost, allowFormat)
			s.wantRefused(mountCapability("ext4"), lost, allowFormat) // as often as the kubelet asks

			s.attach()
			s.context.Blank, s.context.AllowFormat = true, false
			s.wantRefused(mountCapability("ext4"), lost, allowFormat)

			s.attach()
			s.context.Blank, s.context.AllowFormat = false, true
			s.stageAndLose()
			if used := s.header().FormatUsedBy; used != s.context.Attachment {
				t.Errorf("%q has used up the permission", used)
			}
			s.wantRefused(mountCapability("ext4"), lost, allowFormat)
		})
	}
}

// A volume that was deleted and made again under its name is another one.
func TestVolumeWithTheNameOfAnother(t *testing.T) {
	s := setUp(t)
	s.stageAndLose()
	s.context.UUID, s.context.NGUID = sourceUUID, strings.Repeat("f", 32)
	must(t, s.kernel.Serve(nodetest.Subsystem{
		NQN: s.context.NQN, Portals: []string{firstPortal}, Hosts: []string{s.context.HostNQN()},
		Namespaces: []nodetest.Namespace{{NGUID: s.context.NGUID, SizeBytes: v1alpha1.WithOverhead(size)}},
	}))
	must(t, s.stage(mountCapability("ext4")))
	s.wantMounts("staging ext4 rw")
}

// Without a header, nothing was ever done with a volume. Where more than that is known of it, its header was lost.
func TestWithoutAHeader(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(*suite)
		capability *csi.VolumeCapability
		words      []string
	}{
		"written before it was attached":   {func(s *suite) { s.context.Blank = false }, mountCapability("ext4"), []string{"was written to", allowFormat}},
		"written since":                    {func(s *suite) { s.context.Written = true }, mountCapability("ext4"), []string{"was written to", allowFormat}},
		"data at its ends":                 {(*suite).fill, mountCapability("ext4"), []string{"contains data", allowFormat}},
		"a filesystem":                     {func(s *suite) { s.loseHeader("ext4") }, mountCapability("ext4"), []string{"holds ext4", "header was lost"}},
		"a filesystem, and format allowed": {func(s *suite) { s.loseHeader("ext4"); s.context.AllowFormat = true }, mountCapability("ext4"), []string{"holds ext4", "header was lost"}},
		"a block device that was written":  {func(s *suite) { s.context.Blank, s.context.Written = false, true }, blockCapability(), []string{"was written to", allowFormat}},
		"a filesystem to be read":          {func(*suite) {}, onlyRead(mountCapability("ext4")), []string{"mount it once for writing"}},
		"a block device to be read":        {func(*suite) {}, onlyRead(blockCapability()), []string{"use it once for writing"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			c.change(s)
			s.wantRefused(c.capability, c.words...)
		})
	}
}

// Of hosts that share a volume, only the first was told that it is blank; any of them may be the first to use it.
func TestBlockVolumeIsFirstUsedByAnyHost(t *testing.T) {
	s := setUp(t)
	s.context.Blank = false
	must(t, s.stage(blockCapability()))
	s.wantHeader(header.Formatted, header.Block)
}

// loseHeader of a volume with a filesystem.
func (s *suite) loseHeader(fsType string) {
	s.Helper()
	must(s, s.stage(mountCapability(fsType)))
	must(s, s.unstage())
	s.writeStart(0, make([]byte, header.Bytes))
}

func onlyRead(c *csi.VolumeCapability) *csi.VolumeCapability {
	c.AccessMode = readers()[0].AccessMode
	return c
}

// What a volume begins with that is no header of weft's is left alone, whatever anybody allows.
func TestHeaderThatCannotBeUsed(t *testing.T) {
	formatted := header.Record{Volume: volumeUUID, State: header.Formatted, Type: "ext4"}
	for name, c := range map[string]struct {
		change func(*suite)
		words  string
	}{
		"a filesystem at the start": {func(s *suite) { s.writeStart(1080, []byte("\x53\xef")) }, "starts with an ext2, ext3 or ext4 filesystem"},
		"a partition table":         {func(s *suite) { s.writeStart(512, []byte("EFI PART")) }, "starts with a partition table (gpt)"},
		"a stranger's bytes":        {func(s *suite) { s.writeStart(0, []byte("hello")) }, "begins with 68656c6c6f"},
		"the first one is torn":     {func(s *suite) { s.writeHeader(formatted); s.writeStart(header.SlotBytes+512, []byte("x")) }, "has checksum"},
		"both slots are damaged": {func(s *suite) {
			s.writeHeader(formatted)
			s.writeHeader(formatted)
			s.writeStart(512, []byte("x"))
			s.writeStart(header.SlotBytes+512, []byte("x"))
		}, "has checksum"},
		"a later version": {func(s *suite) { s.writeHeader(formatted); s.writeStart(header.SlotBytes+8, []byte{3}) }, "has version 3"},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			c.change(s)
			s.context.AllowFormat = true
			for _, capability := range []*csi.VolumeCapability{mountCapability("ext4"), blockCapability()} {
				s.wantRefused(capability, "header cannot be used", c.words)
			}
		})
	}
}

// A write that is torn leaves the record before it.
func TestHeaderWithATornSlot(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	last := s.header()
	if last.Generation != 2 {
		t.Fatalf("the header is %+v", last)
	}
	s.writeStart(1024, []byte("torn")) // slot 0
	s.wantHeader(header.Formatting, "ext4")
	must(t, s.stage(mountCapability("ext4")))
	s.wantMounts("staging ext4 rw")
	s.wantHeader(header.Formatted, "ext4")
}

// writes lets the nth write of a header fail, or happen and then fail.
type writes struct {
	node.Initiator
	fail  int
	after bool
}

var errCut = errors.New("cut off here")

func (w *writes) WriteStart(ctx context.Context, ns fabrics.Namespace, offset int64, block []byte) error {
	if w.fail--; w.fail != 0 {
		return w.Initiator.WriteStart(ctx, ns, offset, block)
	}
	if w.after {
		return errors.Join(w.Initiator.WriteStart(ctx, ns, offset, block), errCut)
	}
	return errCut
}

// A stage that is cut off anywhere starts again, and nobody has to allow it.
func TestFormattingThatIsCutOff(t *testing.T) {
	for name, c := range map[string]struct {
		cut   func(*suite)
		state header.State // afterwards
	}{
		"before the first header":           {func(s *suite) { s.service.Initiator = &writes{s.service.Initiator, 1, false} }, ""},
		"between the header and mkfs":       {func(s *suite) { s.service.Initiator = &writes{s.service.Initiator, 1, true} }, header.Formatting},
		"in mkfs":                           {(*suite).halfMade, header.Formatting},
		"between mkfs and the next header":  {func(s *suite) { s.service.Initiator = &writes{s.service.Initiator, 2, false} }, header.Formatting},
		"between the last header and mount": {func(s *suite) { s.service.Initiator = &writes{s.service.Initiator, 2, true} }, header.Formatted},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			initiator := s.service.Initiator
			c.cut(s)
			if err := s.stage(mountCapability("ext4")); err == nil {
				t.Fatal("it was not cut off")
			}
			s.wantGone()
			if got := s.header().State; got != c.state {
				t.Errorf("the header says %q", got)
			}
			s.service.Initiator, s.programs.instead = initiator, nil
			// Something was written meanwhile; so says the target, too.
			s.context.Written = c.state != ""
			must(t, s.stage(mountCapability("ext4")))
			s.wantMounts("staging ext4 rw")
			s.wantHeader(header.Formatted, "ext4")
		})
	}
}

// halfMade lets mkfs, which fails, have written already.
func (s *suite) halfMade() {
	s.programs.instead = func(name string, args []string) (string, []string) {
		if name == "mkfs.ext4" {
			s.fill()
			return "false", nil
		}
		return name, args
	}
}

// What was to be one filesystem may be made another, as long as it was never mounted; or used as it is.
func TestFormattingThatIsTakenUpOtherwise(t *testing.T) {
	for name, c := range map[string]struct {
		capability *csi.VolumeCapability
		kind       string
	}{
		"as another filesystem": {mountCapability("ext4"), "ext4"},
		"as a block device":     {blockCapability(), header.Block},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.fill()
			s.writeHeader(header.Record{Volume: volumeUUID, State: header.Formatting, Type: "xfs"})
			s.context.Blank = false
			must(t, s.stage(c.capability))
			s.wantHeader(header.Formatted, c.kind)
		})
	}
}

// headerSeen tells what the header says when a device is mounted or bound.
type headerSeen struct {
	node.Filesystems
	suite *suite
}

func (h headerSeen) Mount(ctx context.Context, device, target, fsType string, options []string) error {
	h.suite.wantHeader(header.Formatted, fsType)
	return h.Filesystems.Mount(ctx, device, target, fsType, options)
}

func (h headerSeen) BindDevice(ctx context.Context, source, target string, readOnly bool) error {
	h.suite.wantHeader(header.Formatted, header.Block)
	return h.Filesystems.BindDevice(ctx, source, target, readOnly)
}

func (h headerSeen) Prepare(ctx context.Context, r filesystem.Request) error {
	begin := r.Begin
	r.Begin = func(ctx context.Context) error {
		err := begin(ctx)
		h.suite.wantHeader(header.Formatting, r.Type)
		return err
	}
	return h.Filesystems.Prepare(ctx, r)
}

// The header says what is done before it is done, and nothing is written where it says so already.
func TestHeaderComesFirst(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.service.Filesystems = headerSeen{s.service.Filesystems, s}
			must(t, s.stage(c))
			generation := s.header().Generation
			must(t, s.stage(c))
			must(t, s.unstage())
			s.attach()
			s.context.Blank = false
			must(t, s.stage(c))
			must(t, s.unstage())
			if now := s.header().Generation; now != generation {
				t.Errorf("generation %d became %d", generation, now)
			}
		})
	}
}

// Who only reads a volume changes nothing of it.
func TestReadersWriteNothing(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(c))
			must(t, s.unstage())
			s.attach()
			s.context.AllowFormat = true
			s.unchanged(func() {
				must(t, s.stage(onlyRead(c)))
				must(t, s.unstage())
			})
		})
	}
}

func TestReadersRefuseWhatIsNotFormatted(t *testing.T) {
	s := setUp(t)
	s.writeHeader(header.Record{Volume: volumeUUID, State: header.Formatting, Type: "ext4"})
	s.wantRefused(onlyRead(mountCapability("ext4")), "not formatted yet", "mount it once for writing")
	s.wantRefused(onlyRead(blockCapability()), "use it once for writing")
}

// The volume that another is made from, and its replica. To mix them up is to refuse the clone.
const (
	sourceUUID  = "ffffffff-0e0f-4001-8203-040506070809"
	sourceNGUID = "eeeeeeee0e0f40018203040506070809"
)

func sourceVolume() *nodetest.Attached {
	source := nodetest.New("source", sourceNGUID)
	source.UUID = sourceUUID
	return &source
}

// clone makes the volume one with the header and the data of another, of which this is known.
func (s *suite) clone(state header.State, known nodetest.Objects) {
	s.Helper()
	must(s, s.stage(mountCapability("ext4")))
	must(s, s.unstage())
	s.writeStart(0, make([]byte, header.Bytes))
	s.writeHeader(header.Record{Volume: sourceUUID, State: state, Type: "ext4", FormatUsedBy: "an attachment of the source"})
	for name, o := range known {
		s.objects[name] = o
	}
	s.attach()
	s.context.Blank = false
}

// A clone has its source's header. Its first stage makes it its own.
func TestCloneHasItsSourcesHeader(t *testing.T) {
	volume, snapshot := func(name string) *v1alpha1.VolumeSource { return &v1alpha1.VolumeSource{Volume: name} },
		func(name string) *v1alpha1.VolumeSource { return &v1alpha1.VolumeSource{Snapshot: name} }
	source, other := sourceVolume(), &nodetest.Attached{UUID: strings.Replace(sourceUUID, "f", "e", 1), Replica: "other-r1", NGUID: strings.ReplaceAll(sourceUUID, "-", "")}
	clone := nodetest.New("clone", strings.Repeat("d", 32))
	clone.Source = snapshot("snap")
	for name, c := range map[string]struct {
		from    *v1alpha1.VolumeSource
		known   nodetest.Objects
		refused string
	}{
		"of a volume":                          {volume("source"), nodetest.Objects{"source": source}, ""},
		"of a snapshot":                        {snapshot("snap"), nodetest.Objects{"snap": {SnapshotOf: "source"}, "source": source}, ""},
		"of a clone that was never staged":     {volume("clone"), nodetest.Objects{"clone": &clone, "snap": {SnapshotOf: "source"}, "source": source}, ""},
		"of what was deleted":                  {volume("source"), nil, ""},
		"of a snapshot that was deleted":       {snapshot("snap"), nil, ""},
		"of a snapshot whose volume is gone":   {snapshot("snap"), nodetest.Objects{"snap": {SnapshotOf: "source"}}, ""},
		"of another volume":                    {volume("other"), nodetest.Objects{"other": other, "source": source}, "was not created from it"},
		"of a snapshot of another volume":      {snapshot("snap"), nodetest.Objects{"snap": {SnapshotOf: "other"}, "other": other}, "was not created from it"},
		"of none: it is another volume's data": {nil, nodetest.Objects{"source": source}, "was not created from it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.clone(header.Formatted, c.known)
			s.context.Source = c.from
			if c.refused != "" {
				s.context.AllowFormat = true
				for _, capability := range []*csi.VolumeCapability{mountCapability("ext4"), blockCapability()} {
					s.wantRefused(capability, "header belongs to another volume", sourceUUID, c.refused)
				}
				return
			}
			s.unchanged(func() {
				must(t, s.stage(onlyRead(mountCapability("ext4"))))
				must(t, s.unstage())
			})
			must(t, s.stage(mountCapability("ext4")))
			s.wantHeader(header.Formatted, "ext4")
			if used := s.header().FormatUsedBy; used != "" {
				t.Errorf("it took over that %q used up the permission", used)
			}
		})
	}
}

// A source that cannot be read may be another: nothing is decided on that.
func TestCloneOfWhatCannotBeRead(t *testing.T) {
	s := setUp(t)
	s.clone(header.Formatted, nil)
	s.context.Source = &v1alpha1.VolumeSource{Volume: "source"}
	s.service.Volumes = onlyVolume{s.service.Volumes, vol}
	want(t, s.stage(mountCapability("ext4")), codes.Unavailable, "connection refused")
	s.wantMounts("")
	if h := s.header(); h.Volume != sourceUUID {
		t.Errorf("the header is %+v", h)
	}
}

// The source was being formatted when it was copied: so is the clone.
func TestCloneOfWhatWasNotFormatted(t *testing.T) {
	s := setUp(t)
	s.clone(header.Formatting, nodetest.Objects{"source": sourceVolume()})
	s.context.Source = &v1alpha1.VolumeSource{Volume: "source"}
	s.fill()
	must(t, s.stage(mountCapability("ext4")))
	s.wantHeader(header.Formatted, "ext4")
}
