// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/weft-storage/weft/test/apiserver"
)

const testNamespace = apiserver.Namespace

// server is the API server of all tests that need one; it starts with the first.
type server struct {
	*apiserver.Server
	// agentConfig belongs to a user with the agent's generated role and nothing else.
	agentConfig *rest.Config
}

var (
	theServer *server
	startOnce sync.Once
	errStart  error
)

func TestMain(m *testing.M) {
	if of := os.Getenv(readerVariable); of != "" {
		if err := readUntilTold(context.Background(), of); err != nil {
			fmt.Fprintln(os.Stderr, "reading:", err)
			os.Exit(1)
		}
		return
	}
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr), zap.UseDevMode(true)))
	code := m.Run()
	if theServer != nil {
		if err := theServer.Environment.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the API server:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// apiServer is a real API server with the CRDs and the agent's role.
func apiServer(t *testing.T) *server {
	t.Helper()
	startOnce.Do(func() { theServer, errStart = startServer() })
	if errStart != nil {
		t.Fatal(errStart)
	}
	return theServer
}

func startServer() (*server, error) {
	started, err := apiserver.Start(context.Background())
	if err != nil {
		if started != nil {
			err = errors.Join(err, started.Environment.Stop())
		}
		return nil, err
	}
	s := &server{Server: started}
	s.agentConfig, err = started.User(context.Background(), "weft-agent")
	return s, err
}
