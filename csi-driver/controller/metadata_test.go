// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// stream of a call, which keeps what is sent.
type stream[R any] struct {
	grpc.ServerStream
	ctx  context.Context
	sent []*R
}

func (s *stream[R]) Context() context.Context { return s.ctx }

func (s *stream[R]) Send(r *R) error {
	s.sent = append(s.sent, r)
	return nil
}

// lister is an agent's server, which answers as it is told.
type lister struct {
	t      *testing.T
	web    *httptest.Server
	mu     sync.Mutex
	asked  []string
	answer http.HandlerFunc
}

const listerToken = "token-for-agents"

// newLister for a node that is made with it.
func newLister(t *testing.T, node string) *lister {
	t.Helper()
	l := &lister{t: t}
	l.web = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked = append(l.asked, r.URL.String())
		if r.Header.Get("Authorization") != "Bearer "+listerToken {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		l.answer(w, r)
	}))
	l.web.Config.ErrorLog = log.New(io.Discard, "", 0)
	l.web.StartTLS()
	t.Cleanup(l.web.Close)
	create(t, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: node}})
	l.publish(node, l.web.Certificate().RawSubjectPublicKeyInfo)
	return l
}

// publish the server with a key.
func (l *lister) publish(node string, key []byte) {
	l.t.Helper()
	sum := sha256.Sum256(key)
	setNodeStatus(l.t, node, func(s *v1alpha1.NvmfNodeStatus) {
		s.SnapshotMetadata = &v1alpha1.SnapshotMetadataServer{Address: l.web.Listener.Addr().String(), PublicKeySHA256: hex.EncodeToString(sum[:])}
	})
}

// tell ranges, and that these are all.
func (l *lister) tell(all ...v1alpha1.BlockRange) {
	l.say(append(slices.Clone(all), v1alpha1.BlockRange{End: true})...)
}

// say lines, and nothing else.
func (l *lister) say(lines ...v1alpha1.BlockRange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = func(w http.ResponseWriter, _ *http.Request) {
		for encoder := json.NewEncoder(w); len(lines) > 0; lines = lines[1:] {
			if err := encoder.Encode(lines[0]); err != nil {
				l.t.Error(err)
			}
		}
	}
}

const snapUUID = "00000000-0000-4000-8000-000000000001"

// takenOf is a snapshot of 1 GiB as its agent reports it.
func takenOf(t *testing.T, name, volume, node, device string, change ...func(*v1alpha1.NvmfSnapshot)) string {
	t.Helper()
	snap := &v1alpha1.NvmfSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: own(t, name)},
		Spec:       v1alpha1.NvmfSnapshotSpec{UUID: snapUUID, Volume: volume, Replica: volume + "-0", Node: node, Taken: true, Trailer: true},
	}
	status := v1alpha1.NvmfSnapshotStatus{Ready: true, Device: device, Size: resource.NewQuantity(gi, resource.BinarySI), CreatedAt: &metav1.Time{Time: metav1.Now().Time}}
	for _, c := range change {
		c(snap)
	}
	create(t, snap)
	snap.Status = status
	if err := api.Status().Update(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	return snap.Name
}

// metadataOf a service, with a token.
func metadataOf(t *testing.T) *SnapshotMetadata {
	t.Helper()
	s, _ := newService(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(listerToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &SnapshotMetadata{Service: s, TokenFile: file}
}

func (m *SnapshotMetadata) allocated(t *testing.T, req *csi.GetMetadataAllocatedRequest) ([]*csi.GetMetadataAllocatedResponse, error) {
	s := &stream[csi.GetMetadataAllocatedResponse]{ctx: within(t, enough)}
	err := m.GetMetadataAllocated(req, s)
	return s.sent, err
}

func (m *SnapshotMetadata) delta(t *testing.T, req *csi.GetMetadataDeltaRequest) ([]*csi.GetMetadataDeltaResponse, error) {
	s := &stream[csi.GetMetadataDeltaResponse]{ctx: within(t, enough)}
	err := m.GetMetadataDelta(req, s)
	return s.sent, err
}

func TestSnapshotMetadata(t *testing.T) {
	g := NewWithT(t)
	m, node := metadataOf(t), own(t, "node")
	l := newLister(t, node)
	base, snap := takenOf(t, "base", "v", node, "d"), takenOf(t, "snap", "v", node, "d")
	l.tell(v1alpha1.BlockRange{Bytes: 4096}, v1alpha1.BlockRange{Offset: 8192, Bytes: 4096}, v1alpha1.BlockRange{Offset: gi - 4096, Bytes: 4096})
	sent, err := m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: snap, MaxResults: 2})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sent).To(HaveLen(2))
	for _, message := range sent {
		g.Expect(message.BlockMetadataType).To(Equal(csi.BlockMetadataType_VARIABLE_LENGTH))
		g.Expect(message.VolumeCapacityBytes).To(Equal(gi))
	}
	g.Expect(sent[0].BlockMetadata).To(HaveExactElements(And(HaveField("ByteOffset", BeZero()), HaveField("SizeBytes", BeEquivalentTo(4096))), HaveField("ByteOffset", BeEquivalentTo(8192))))
	g.Expect(sent[1].BlockMetadata).To(HaveExactElements(HaveField("ByteOffset", gi-4096)))

	l.tell()
	changed, err := m.delta(t, &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: snap, StartingOffset: 4096})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed).To(HaveExactElements(And(HaveField("VolumeCapacityBytes", gi), HaveField("BlockMetadata", BeEmpty()))))
	g.Expect(l.asked).To(Equal([]string{"/snapshots/" + snap + "/blocks?from=0&uuid=" + snapUUID, "/snapshots/" + snap + "/blocks?base=" + base + "&baseUUID=" + snapUUID + "&from=4096&uuid=" + snapUUID}))

	// However many there are, a message has no more than gRPC takes.
	many := make([]v1alpha1.BlockRange, 2*mostBlocks)
	for i := range many {
		many[i] = v1alpha1.BlockRange{Offset: int64(i) * 8192, Bytes: 4096}
	}
	l.tell(many...)
	sent, err = m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: snap, MaxResults: 1 << 30})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sent).To(HaveEach(HaveField("BlockMetadata", HaveLen(mostBlocks))))
	g.Expect(sent).To(HaveLen(2))

	// The size is the one that pods see.
	l.tell()
	encrypted := takenOf(t, "encrypted", "v", node, "d", func(s *v1alpha1.NvmfSnapshot) { s.Spec.Encryption = v1alpha1.EncryptionLUKS2 })
	sent, err = m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: encrypted})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sent).To(HaveExactElements(HaveField("VolumeCapacityBytes", gi-v1alpha1.LUKSHeaderBytes)))
	l.tell()
	sent, err = m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: takenOf(t, "untrailed", "v", node, "d", withoutTrailer)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sent).To(HaveExactElements(HaveField("VolumeCapacityBytes", gi+v1alpha1.TrailerBytes)))
}

// withoutTrailer is a snapshot of an older volume, whose data reach to the end.
func withoutTrailer(s *v1alpha1.NvmfSnapshot) { s.Spec.Trailer = false }

func TestSnapshotMetadataThatCannotBeAnswered(t *testing.T) {
	m, node := metadataOf(t), own(t, "node")
	l := newLister(t, node)
	l.tell()
	base, snap := takenOf(t, "base", "v", node, "d"), takenOf(t, "snap", "v", node, "d")
	moved, elsewhere := takenOf(t, "moved", "v", node, "e"), takenOf(t, "elsewhere", "v", own(t, "other"), "d")
	ofAnother, untrailed := takenOf(t, "another", "w", node, "d"), takenOf(t, "untrailed", "v", node, "d", withoutTrailer)
	for _, c := range []struct {
		base, snap string
		from       int64
		most       int32
		code       codes.Code
		says       string
	}{
		{"", snap, 0, 0, codes.InvalidArgument, "base_snapshot_id is required"},
		{base, "", 0, 0, codes.InvalidArgument, "is required"},
		{base, snap, 0, -1, codes.InvalidArgument, "max_results"},
		{base, ofAnother, 0, 0, codes.InvalidArgument, "are of different volumes"},
		{base, "no/name", 0, 0, codes.NotFound, "no/name not found"},
		{base, own(t, "none"), 0, 0, codes.NotFound, "not found"},
		{own(t, "none"), snap, 0, 0, codes.NotFound, "not found"},
		{base, snap, -1, 0, codes.OutOfRange, "must be from 0"},
		{base, snap, gi + 1, 0, codes.OutOfRange, "must be from 0"},
		{moved, snap, 0, 0, codes.FailedPrecondition, "back the snapshot up whole"},
		{elsewhere, snap, 0, 0, codes.FailedPrecondition, "back the snapshot up whole"},
		{untrailed, snap, 0, 0, codes.FailedPrecondition, "back the snapshot up whole"},
	} {
		_, err := m.delta(t, &csi.GetMetadataDeltaRequest{BaseSnapshotId: c.base, TargetSnapshotId: c.snap, StartingOffset: c.from, MaxResults: c.most})
		expectError(t, err, c.code, c.says)
	}
	if len(l.asked) > 0 {
		t.Errorf("the agent was asked %v", l.asked)
	}
	_, err := m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: snap, StartingOffset: gi})
	if err != nil {
		t.Errorf("from the end on: %v", err)
	}
	_, err = m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: elsewhere})
	expectError(t, err, codes.Unavailable, "does not list the blocks")
}

func TestAgentThatDoesNotList(t *testing.T) {
	m, node := metadataOf(t), own(t, "node")
	l := newLister(t, node)
	snap := takenOf(t, "snap", "v", node, "d")
	ask := func() error {
		_, err := m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: snap, StartingOffset: 4096})
		return err
	}
	for answer, expected := range map[int]codes.Code{
		http.StatusConflict: codes.FailedPrecondition, http.StatusNotFound: codes.NotFound, http.StatusServiceUnavailable: codes.Unavailable,
		http.StatusForbidden: codes.Unavailable, http.StatusFound: codes.Unavailable,
	} {
		l.answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			http.Error(w, "the reason", answer)
		}
		expectError(t, ask(), expected, "the reason", fmt.Sprint(answer))
	}
	good := v1alpha1.BlockRange{Offset: 4096, Bytes: 4096}
	for _, wrong := range [][]v1alpha1.BlockRange{
		{good}, // cut off
		{},
		{good, {Error: "the drive is gone"}},
		{good, good, {End: true}},
		{{Offset: 0, Bytes: 4096}, {End: true}},
		{{Offset: 4096, Bytes: -1}, {End: true}},
		{{Offset: 4096, Bytes: gi}, {End: true}},
	} {
		l.say(wrong...)
		expectError(t, ask(), codes.Unavailable, "agent")
	}
}

// TestTokenIsForAgents alone: who has another key than the agent has published gets no request.
func TestTokenIsForAgents(t *testing.T) {
	m, node := metadataOf(t), own(t, "node")
	l := newLister(t, node)
	l.tell()
	snap := takenOf(t, "snap", "v", node, "d")
	l.publish(node, []byte("another key"))
	_, err := m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: snap})
	expectError(t, err, codes.Unavailable, "the server has another key")
	if len(l.asked) > 0 {
		t.Errorf("an impostor was asked %v", l.asked)
	}
	if err := os.Remove(m.TokenFile); err != nil {
		t.Fatal(err)
	}
	l.publish(node, l.web.Certificate().RawSubjectPublicKeyInfo)
	_, err = m.allocated(t, &csi.GetMetadataAllocatedRequest{SnapshotId: snap})
	expectError(t, err, codes.Unavailable, "token for agents")
}
