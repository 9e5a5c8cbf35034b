// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
)

// supportedVersions of CSI. The kubelet takes any 1.x as this.
var supportedVersions = []string{"1.0.0"}

// registrar tells the kubelet about the driver. The kubelet watches <kubelet-dir>/plugins_registry: when a socket
// appears there, and for each one that is there when it starts, it connects, asks who is there, and says whether it
// took the plugin. Safe for concurrent use.
type registrar struct {
	registerapi.UnimplementedRegistrationServer

	// socket is the path, as the kubelet sees it, where CSI's node service is served.
	socket string

	mu    sync.Mutex
	state error
}

// errNotAsked is the state before the kubelet came.
var errNotAsked = errors.New("the kubelet has not requested the driver yet")

func newRegistrar(socket string) *registrar { return &registrar{socket: socket, state: errNotAsked} }

// registrationPath of the socket in a kubelet's folder.
func registrationPath(kubeletDir string) string {
	return filepath.Join(kubeletDir, "plugins_registry", v1alpha1.DriverName+"-reg.sock")
}

// GetInfo says what is registered.
func (s *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: v1alpha1.DriverName, Endpoint: s.socket, SupportedVersions: supportedVersions,
	}, nil
}

// NotifyRegistrationStatus takes the kubelet's decision. After a refusal the kubelet tries again by itself.
func (s *registrar) NotifyRegistrationStatus(ctx context.Context, r *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	log := logr.FromContextOrDiscard(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.GetPluginRegistered() {
		s.state = nil
		log.Info("Registered with the kubelet")
	} else {
		s.state = fmt.Errorf("the kubelet rejected the driver: %s", r.GetError())
		log.Error(s.state, "Not registered")
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// registered is nil once the kubelet has taken the driver; else it says why not.
func (s *registrar) registered() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// run serves at a path until the context ends. A socket that somebody removes is made again, so that the kubelet
// registers the driver again.
func (s *registrar) run(ctx context.Context, path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(dir); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	for ctx.Err() == nil {
		if err := s.serveOnce(ctx, path, watcher); err != nil {
			return err
		}
	}
	return nil
}

// serveOnce serves until the socket is removed or the context ends.
func (s *registrar) serveOnce(ctx context.Context, path string, watcher *fsnotify.Watcher) error {
	listener, err := server.Listen(ctx, "unix://"+path)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- server.Serve(serving, listener, func(r grpc.ServiceRegistrar) { registerapi.RegisterRegistrationServer(r, s) })
	}()
	for {
		select {
		case err := <-done:
			return err
		case err := <-watcher.Errors:
			stop()
			return errors.Join(fmt.Errorf("watch the registration socket: %w", err), <-done)
		case <-watcher.Events:
			// Events of the socket's own making come late, so they are only a reason to look.
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
				logr.FromContextOrDiscard(ctx).Info("The registration socket was removed; creating it again", "path", path)
				stop()
				return <-done
			}
		}
	}
}
