// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// mostBlocks of one message: gRPC's clients take 4 MiB, and a range has at most 22 bytes.
	mostBlocks = 10_000
	// connectTimeout is how long an agent may take until it can be asked, and answerTimeout until it has found
	// something, which may be the last of millions of extents.
	connectTimeout, answerTimeout = 10 * time.Second, 10 * time.Minute
)

// SnapshotMetadata is CSI's service of that name: it has the agents of storage nodes list the blocks of their
// snapshots.
type SnapshotMetadata struct {
	csi.UnimplementedSnapshotMetadataServer

	// Service whose snapshots these are.
	Service *Service
	// TokenFile has a token of this service's account for the audience of agents. It is read again for each call.
	TokenFile string
}

// GetMetadataAllocated implements csi.SnapshotMetadataServer: what was written to a volume until its snapshot.
func (m *SnapshotMetadata) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	return toStatus(m.list(stream.Context(), blocksRequest{req.GetSnapshotId(), "", req.GetStartingOffset(), req.GetMaxResults()}, func(size int64, blocks []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: size, BlockMetadata: blocks})
	}))
}

// GetMetadataDelta implements csi.SnapshotMetadataServer: what was written between two snapshots of a volume.
func (m *SnapshotMetadata) GetMetadataDelta(req *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	if req.GetBaseSnapshotId() == "" {
		return toStatus(failf(invalid, "base_snapshot_id is required"))
	}
	return toStatus(m.list(stream.Context(), blocksRequest{req.GetTargetSnapshotId(), req.GetBaseSnapshotId(), req.GetStartingOffset(), req.GetMaxResults()}, func(size int64, blocks []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: size, BlockMetadata: blocks})
	}))
}

// blocksRequest is what both calls ask for.
type blocksRequest struct {
	snapshot, base string
	from           int64
	most           int32
}

func (m *SnapshotMetadata) list(ctx context.Context, req blocksRequest, send func(size int64, blocks []*csi.BlockMetadata) error) error {
	if req.most < 0 {
		return failf(invalid, "max_results is negative")
	}
	snap, err := m.snapshot(ctx, req.snapshot)
	if err != nil {
		return err
	}
	size := snap.SeenBytes()
	if req.from < 0 || req.from > size {
		return failf(outOfRange, "starting_offset is %d; must be from 0 to %d", req.from, size)
	}
	var base *v1alpha1.NvmfSnapshot
	if req.base != "" {
		if base, err = m.snapshot(ctx, req.base); err != nil {
			return err
		}
		if base.Spec.Volume != snap.Spec.Volume {
			return failf(invalid, "snapshots %s and %s are of different volumes", base.Name, snap.Name)
		}
		if base.Spec.Encryption != snap.Spec.Encryption || base.Spec.Trailer != snap.Spec.Trailer {
			return untold("the data of snapshot %s begin or end elsewhere than those of snapshot %s, because their volume was created again", base.Name, snap.Name)
		}
		if base.Spec.Node != snap.Spec.Node || base.Status.Device != snap.Status.Device {
			return untold("snapshot %s is on another drive than snapshot %s, because the volume was moved or its replicas changed", base.Name, snap.Name)
		}
	}
	answer, err := m.ask(ctx, snap, base, req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Close() }() // it was only read
	return relay(answer, size, req, send)
}

// untold is what cannot be answered, now or later.
func untold(format string, args ...any) error {
	return failf(inUse, format+"; back the snapshot up whole", args...)
}

// snapshot that is ready.
func (m *SnapshotMetadata) snapshot(ctx context.Context, id string) (*v1alpha1.NvmfSnapshot, error) {
	if id == "" {
		return nil, failf(invalid, "the ID of the snapshot is required")
	}
	if !validID(id) {
		return nil, failf(notFound, "snapshot %s not found", id)
	}
	snap, err := m.Service.snapshots.read(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case snap == nil || snap.DeletionTimestamp != nil:
		return nil, failf(notFound, "snapshot %s not found", id)
	case !csiSnapshot(snap).ReadyToUse || snap.Status.Size == nil:
		return nil, failf(waiting, "snapshot %s is not ready", id)
	}
	return snap, nil
}

// ask the agent that has a snapshot, and its base if there is one.
func (m *SnapshotMetadata) ask(ctx context.Context, snap, base *v1alpha1.NvmfSnapshot, req blocksRequest) (io.ReadCloser, error) {
	node := &v1alpha1.NvmfNode{}
	err := m.Service.live.Get(ctx, client.ObjectKey{Name: snap.Spec.Node}, node)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read NvmfNode %s: %w", snap.Spec.Node, err)
	}
	server := node.Status.SnapshotMetadata
	if server == nil {
		return nil, failf(waiting, "the agent of node %s does not list the blocks of snapshots; does it run with --snapshot-metadata-bind-address?", snap.Spec.Node)
	}
	token, err := os.ReadFile(m.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("token for agents: %w", err)
	}
	query := url.Values{v1alpha1.BlocksFrom: {strconv.FormatInt(req.from, 10)}, v1alpha1.BlocksUUID: {snap.Spec.UUID}}
	if base != nil {
		query.Set(v1alpha1.BlocksBase, base.Name)
		query.Set(v1alpha1.BlocksBaseUUID, base.Spec.UUID)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.BlocksURL(snap.Name, query), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	answer, err := pinned(server.PublicKeySHA256).RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("ask the agent of node %s: %w", snap.Spec.Node, err)
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	says, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	_ = answer.Body.Close()
	text := fmt.Sprintf("the agent of node %s answers %d: %s", snap.Spec.Node, answer.StatusCode, strings.TrimSpace(string(says)))
	switch answer.StatusCode {
	case http.StatusConflict:
		return nil, untold("%s", text)
	case http.StatusNotFound:
		return nil, failf(notFound, "%s", text)
	}
	return nil, failf(waiting, "%s", text)
}

// pinned to a server that has this key, which nobody but the agent can publish. Another one gets no request, and so no
// token. It follows no redirect, and uses no proxy.
func pinned(publicKeySHA256 string) http.RoundTripper {
	return &http.Transport{
		DialContext:       (&net.Dialer{Timeout: connectTimeout}).DialContext,
		DisableKeepAlives: true, DisableCompression: true, TLSHandshakeTimeout: connectTimeout, ResponseHeaderTimeout: answerTimeout,
		TLSClientConfig: &tls.Config{
			MinVersion:         tls.VersionTLS13,
			InsecureSkipVerify: true, //nolint:gosec // the key is compared instead
			VerifyConnection: func(c tls.ConnectionState) error {
				if sum := sha256.Sum256(c.PeerCertificates[0].RawSubjectPublicKeyInfo); hex.EncodeToString(sum[:]) != publicKeySHA256 {
					return errors.New("the server has another key than the agent has published; an agent that was just started publishes its own within seconds")
				}
				return nil
			},
		},
	}
}

// relay an agent's answer, message by message, so that little of it is in memory at any time.
func relay(answer io.Reader, size int64, req blocksRequest, send func(size int64, blocks []*csi.BlockMetadata) error) error {
	most := mostBlocks
	if req.most > 0 {
		most = min(most, int(req.most))
	}
	blocks, sent, at := make([]*csi.BlockMetadata, 0, most), false, req.from
	for lines := bufio.NewScanner(answer); ; {
		if !lines.Scan() {
			return fmt.Errorf("the agent's answer is cut off: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
		}
		var is v1alpha1.BlockRange
		if err := json.Unmarshal(lines.Bytes(), &is); err != nil {
			return fmt.Errorf("the agent's answer: %w", err)
		}
		switch {
		case is.Error != "":
			return failf(waiting, "the agent failed: %s", is.Error)
		case is.End:
			if len(blocks) == 0 && sent {
				return nil
			}
			return send(size, blocks) // also without blocks, for the size
		case is.Offset < at || is.Bytes <= 0 || is.Bytes > size-is.Offset:
			return failf(waiting, "the agent's answer is wrong: %d bytes from %d on, after %d, of %d", is.Bytes, is.Offset, at, size)
		}
		at = is.Offset + is.Bytes
		blocks = append(blocks, &csi.BlockMetadata{ByteOffset: is.Offset, SizeBytes: is.Bytes})
		if len(blocks) == most {
			if err := send(size, blocks); err != nil {
				return err
			}
			blocks, sent = make([]*csi.BlockMetadata, 0, most), true
		}
	}
}
