// SPDX-License-Identifier: Apache-2.0

// Package server has what both of CSI's services share: gRPC on a Unix socket, the identity service, health over HTTP,
// and how callers are told of a volume's problems.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stopTimeout is how long running calls may take to end once the server is told to stop.
const stopTimeout = 10 * time.Second

// maxSocketPath is the kernel's limit (sun_path, with its closing zero).
const maxSocketPath = 107

// SocketPath of an endpoint such as unix:///csi/csi.sock. It fails for any other kind of endpoint.
func SocketPath(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("endpoint %q: must be unix:// and an absolute path, such as unix:///csi/csi.sock", endpoint)
	}
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("endpoint %q: the path of a socket must not be longer than %d bytes, but has %d", endpoint, maxSocketPath, len(path))
	}
	return path, nil
}

// Listen opens the Unix socket of an endpoint such as unix:///csi/csi.sock, for its owner only. A
// socket that an earlier process left there is replaced; any other file is not.
func Listen(ctx context.Context, endpoint string) (net.Listener, error) {
	path, err := SocketPath(endpoint)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("endpoint %q: the file is not a socket; remove it", endpoint)
	case err == nil:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// Serve answers calls until the context ends, then lets running calls end, within a limit. Each call is logged here,
// once, without its secrets: failures, and at verbosity 4 all. Those around it see each call with the answer that the
// caller gets. Calls that are to change something are traced, if the context has a tracing.Provider.
func Serve(ctx context.Context, listener net.Listener, register func(grpc.ServiceRegistrar), around ...grpc.UnaryServerInterceptor) error {
	log := logr.FromContextOrDiscard(ctx)
	s := grpc.NewServer(append(traced(ctx), grpc.ChainUnaryInterceptor(append(around, intercept(log))...), grpc.StreamInterceptor(interceptStream(log)))...)
	register(s)
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(stopped)
	}()
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		log.Info("Canceling calls that did not finish in time", "limit", stopTimeout)
		s.Stop()
	}
	return nil
}

func intercept(log logr.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		method := methodOf(info.FullMethod)
		log := log.WithValues("method", method)
		if span := trace.SpanFromContext(ctx); span.IsRecording() {
			span.SetAttributes(attributes(req)...)
			log = log.WithValues("trace", span.SpanContext().TraceID().String())
		}
		log.V(4).Info("Call", "request", protosanitizer.StripSecrets(req))
		defer func() {
			if p := recover(); p != nil {
				resp, err = nil, panicked(log, method, p)
			}
			switch {
			case err == nil:
				log.V(4).Info("Answer", "response", protosanitizer.StripSecrets(resp))
			case status.Code(err) == codes.Unimplemented:
				log.V(4).Info("Not implemented")
			default:
				log.Error(err, "Call failed", values(req)...)
			}
		}()
		return handler(logr.NewContext(ctx, log), req)
	}
}

// panicked is what a caller is told of a panic, which the log has.
func panicked(log logr.Logger, method string, p any) error {
	log.Error(nil, "Panic", "panic", p, "stack", string(debug.Stack()))
	return status.Errorf(codes.Internal, "internal error in %s; see the log", method)
}

// interceptStream is intercept for calls whose answer is a stream.
func interceptStream(log logr.Logger) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		method := methodOf(info.FullMethod)
		log := log.WithValues("method", method)
		defer func() {
			if p := recover(); p != nil {
				err = panicked(log, method, p)
			}
			if err != nil {
				log.Error(err, "Call failed")
			}
		}()
		return handler(server, stream)
	}
}

func methodOf(fullMethod string) string { return fullMethod[strings.LastIndex(fullMethod, "/")+1:] }

// values name what a request is about, for the log.
func values(req any) []any {
	var named []any
	for _, a := range attributes(req) {
		named = append(named, strings.TrimPrefix(string(a.Key), "weft."), a.Value.AsString())
	}
	return named
}
