// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

const (
	sshdConfigFile     = "sshd_config"
	hostKeyFile        = "ssh_host_ed25519_key"
	authorizedKeysFile = "authorized_keys"
	// dialTimeout bounds an attempt to reach a node, handshakeTimeout the key
	// exchange after it: half a second of an emulated CPU, and many times that
	// on a host that is busy.
	dialTimeout      = 10 * time.Second
	handshakeTimeout = time.Minute
)

// keepAlive ends a command within half a minute when its node lost its power.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

// ExitError says that a command ran on a node and ended with a status other
// than zero.
type ExitError struct {
	Node   string
	Args   []string
	Status int
	// Stderr is what the command said, when the caller did not take it.
	Stderr string
}

// Error implements error.
func (e *ExitError) Error() string {
	msg := fmt.Sprintf("%s on %s: exit status %d", strings.Join(e.Args, " "), e.Node, e.Status)
	if e.Stderr != "" {
		msg += ": " + strings.TrimSpace(e.Stderr)
	}
	return msg
}

// Streams are a command's standard streams; nil ones are empty or discarded.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// writeSSHFiles puts what sshd needs into a node's configuration.
func (l *Lab) writeSSHFiles(dir string) error {
	_, hostKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make a host key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(hostKey, "")
	if err != nil {
		return fmt.Errorf("encode a host key: %w", err)
	}
	if err := writeFileAtomic(filepath.Join(dir, hostKeyFile), pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	hostPublic, err := ssh.NewPublicKey(hostKey.Public())
	if err != nil {
		return fmt.Errorf("encode a host key: %w", err)
	}
	if err := writeFileAtomic(filepath.Join(dir, hostKeyFile+".pub"), ssh.MarshalAuthorizedKey(hostPublic), 0o644); err != nil {
		return err
	}
	signer, err := l.clientKey()
	if err != nil {
		return err
	}
	if err := writeFileAtomic(filepath.Join(dir, authorizedKeysFile), ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o644); err != nil {
		return err
	}
	config := []string{
		"HostKey " + filepath.Join(nodeconfig.Dir, hostKeyFile),
		"AuthorizedKeysFile " + filepath.Join(nodeconfig.Dir, authorizedKeysFile),
		"PermitRootLogin prohibit-password",
		"PasswordAuthentication no",
		"KbdInteractiveAuthentication no",
		"UsePAM no", "UseDNS no", "PrintMotd no", "PrintLastLog no",
		"PidFile none",
		// Tests open one connection and many sessions on it.
		"MaxSessions 100",
	}
	return writeFileAtomic(filepath.Join(dir, sshdConfigFile), []byte(strings.Join(config, "\n")+"\n"), 0o644)
}

func (l *Lab) keyFile() string { return l.path("pki", "ssh_ed25519_key") }

// SSHEnv is what Kubernetes' own tests need in their environment to run commands on the nodes.
func (l *Lab) SSHEnv() []string {
	return []string{"KUBE_SSH_KEY_PATH=" + l.keyFile(), "KUBE_SSH_USER=root"}
}

// clientKey returns the lab's own key, made at the first call.
func (l *Lab) clientKey() (ssh.Signer, error) {
	path := l.keyFile()
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make the lab's key: %w", err)
		}
		block, err := ssh.MarshalPrivateKey(key, "weft-lab")
		if err != nil {
			return nil, fmt.Errorf("encode the lab's key: %w", err)
		}
		if err := writeFileAtomic(path, pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
		return ssh.NewSignerFromKey(key)
	}
	if err != nil {
		return nil, err
	}
	return ssh.ParsePrivateKey(data)
}

// shell returns a connection to the node, made at the first call and kept.
func (l *Lab) shell(ctx context.Context, node string) (*ssh.Client, error) {
	i, err := l.nodeIndex(node)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	client := l.shells[node]
	l.mu.Unlock()
	if client != nil {
		return client, nil
	}
	client, err = l.dial(ctx, node, i)
	if err != nil {
		return nil, fmt.Errorf("reach the shell of %s: %w", node, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shells == nil {
		l.shells = map[string]*ssh.Client{}
	}
	l.shells[node] = client
	return client, nil
}

func (l *Lab) dial(ctx context.Context, node string, i int) (*ssh.Client, error) {
	signer, err := l.clientKey()
	if err != nil {
		return nil, err
	}
	hostKey, err := os.ReadFile(l.nodeDir(node, "config", hostKeyFile+".pub"))
	if err != nil {
		return nil, err
	}
	known, _, _, _, err := ssh.ParseAuthorizedKey(hostKey)
	if err != nil {
		return nil, fmt.Errorf("parse the node's host key: %w", err)
	}
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addr := net.JoinHostPort(l.state.addresses().nodeManagement(i).Addr().String(), "22")
	var conn net.Conn
	// The management network is reached only from inside the namespace.
	err = l.inNamespace(func() (err error) {
		conn, err = (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(dialCtx, "tcp", addr)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c, chans, reqs, err := ssh.NewClientConn(conn, addr, &ssh.ClientConfig{
		User:            "root",
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.FixedHostKey(known),
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return ssh.NewClient(c, chans, reqs), nil
}

func (l *Lab) forgetShell(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if client := l.shells[node]; client != nil {
		_ = client.Close()
		delete(l.shells, node)
	}
}

// session opens a session, with a new connection if the kept one is dead: the
// node may have been powered off since.
func (l *Lab) session(ctx context.Context, node string) (*ssh.Session, error) {
	client, err := l.shell(ctx, node)
	if err != nil {
		return nil, err
	}
	opened := make(chan struct{})
	var session *ssh.Session
	go func() {
		session, err = client.NewSession()
		close(opened)
	}()
	timer := time.NewTimer(handshakeTimeout)
	defer timer.Stop()
	select {
	case <-opened:
		if err == nil {
			return session, nil
		}
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.forgetShell(node)
	if client, err = l.shell(ctx, node); err != nil {
		return nil, err
	}
	return client.NewSession()
}

// Exec runs a program on the node as root, over the management network, so also
// when the node's own network is cut. The arguments reach the program as they
// are. A program that ends with another status than 0 gives *ExitError.
func (l *Lab) Exec(ctx context.Context, node string, streams Streams, args ...string) error {
	session, err := l.session(ctx, node)
	if err != nil {
		return err
	}
	defer session.Close() //nolint:errcheck // closed by the other side when the program ends
	var said bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = streams.Stdin, streams.Stdout, streams.Stderr
	if streams.Stderr == nil {
		session.Stderr = &said
	}
	done := make(chan error, 1)
	go func() { done <- session.Run(quoteArgs(args)) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		_ = session.Signal(ssh.SIGKILL)
		_ = session.Close()
		return fmt.Errorf("%s on %s: %w", strings.Join(args, " "), node, context.Cause(ctx))
	}
	var exit *ssh.ExitError
	if errors.As(err, &exit) {
		return &ExitError{Node: node, Args: args, Status: exit.ExitStatus(), Stderr: said.String()}
	}
	if err != nil {
		return fmt.Errorf("%s on %s: the connection ended: %w%s", strings.Join(args, " "), node, err, l.lastWords(node))
	}
	return nil
}

// lastWords tells what the node's kernel said on its console when it crashed,
// and where the rest of it is.
func (l *Lab) lastWords(node string) string {
	const maxLines = 40
	where := "\nthe node's console: " + l.ConsoleLog(node)
	console, err := os.ReadFile(l.ConsoleLog(node))
	if err != nil {
		return where
	}
	lines := strings.Split(string(console), "\n")
	for i, line := range slices.Backward(lines) {
		if strings.Contains(line, "Oops: ") || strings.Contains(line, "BUG: ") {
			return "\n" + strings.Join(lines[i:min(i+maxLines, len(lines))], "\n") + where
		}
	}
	return where
}

// Output runs a program on the node and returns its standard output.
func (l *Lab) Output(ctx context.Context, node string, args ...string) (string, error) {
	var out bytes.Buffer
	err := l.Exec(ctx, node, Streams{Stdout: &out}, args...)
	return out.String(), err
}

// quoteArgs makes a line from which the node's shell gets exactly args.
func quoteArgs(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
