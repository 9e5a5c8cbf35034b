// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
)

// measureTimeout is how long a filesystem may take to say how full it is: it knows that by heart. The kubelet asks for
// one volume after the other.
const measureTimeout = 5 * time.Second

var errNoAnswer = errors.New("the filesystem does not answer")

// NodeGetVolumeStats gives the use of a filesystem, or the size of a block volume, and the volume's condition. It
// neither waits for other calls for the volume nor holds them up, and is answered in time even when the filesystem does
// not answer: then without the use.
func (s *Service) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	answer, err := s.stats(ctx, r)
	return answer, status(err)
}

func (s *Service) stats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	err := required(field{"volume_id", r.GetVolumeId()}, field{"volume_path", r.GetVolumePath()})
	if err != nil {
		return nil, err
	}
	m, d, err := s.shown(ctx, r.GetVolumeId(), r.GetVolumePath())
	if err != nil && !errors.Is(err, fabrics.ErrNotFound) {
		return nil, err
	}
	seen, err := s.look(ctx, r.GetVolumeId(), m)
	if err != nil {
		return nil, err
	}
	answer := &csi.NodeGetVolumeStatsResponse{}
	switch u, asked := seen.measured[m.Path]; {
	case m.Node != "" && !d.Lost():
		answer.Usage = []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: d.SizeBytes}}
	case asked && u.err == nil:
		answer.Usage = []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: u.TotalBytes, Used: u.UsedBytes, Available: u.AvailableBytes},
			{Unit: csi.VolumeUsage_INODES, Total: u.TotalInodes, Used: u.UsedInodes, Available: u.AvailableInodes},
		}
	}
	seen.problems().AddCondition(answer)
	return answer, nil
}

// measures ask filesystems how full they are. One that does not answer cannot be broken off: it keeps the goroutine
// that asks, and whoever asks it again waits for that same answer, so that there is never more than one for each place.
type measures struct {
	mu      sync.Mutex
	pending map[string]*measure
}

type measure struct {
	done   chan struct{}
	result measured
}

type measured struct {
	filesystem.Usage
	err error
}

// of a path. It fails with errNoAnswer when there is no answer in time.
func (s *measures) of(ctx context.Context, path string, ask func(string) (filesystem.Usage, error)) measured {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	ctx, cancel = withMargin(ctx)
	defer cancel()
	m := s.begin(path, ask)
	select {
	case <-m.done:
		return m.result
	case <-ctx.Done():
		return measured{err: fmt.Errorf("%w: statfs %s", errNoAnswer, path)}
	}
}

func (s *measures) begin(path string, ask func(string) (filesystem.Usage, error)) *measure {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.pending[path]; m != nil {
		return m
	}
	if s.pending == nil {
		s.pending = map[string]*measure{}
	}
	m := &measure{done: make(chan struct{})}
	s.pending[path] = m
	go func() {
		m.result.Usage, m.result.err = ask(path)
		s.mu.Lock()
		delete(s.pending, path)
		s.mu.Unlock()
		close(m.done)
	}()
	return m
}
