// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

const (
	// collectTimeout bounds the collection after a failure, so that a broken
	// lab does not hide its own error.
	collectTimeout = 90 * time.Second
	missingSuffix  = ".missing"
	weftKinds      = "nvmftargets,nvmfnodes,nvmfvolumes,nvmfreplicas,nvmfmirrors,nvmfsnapshots"
)

// explain adds to the error where the logs are, after collecting them.
func (l *Lab) explain(ctx context.Context, cause error) error {
	dir := l.path("artifacts", "up-failed")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectTimeout)
	defer cancel()
	if err := os.RemoveAll(dir); err != nil {
		return errors.Join(cause, err)
	}
	if err := l.CollectLogs(ctx, dir); err != nil {
		return errors.Join(cause, fmt.Errorf("collect logs in %s: %w", dir, err))
	}
	return fmt.Errorf("%w\nlogs of every component are in %s", cause, dir)
}

// CollectLogs copies into dir, which is made, all that tells what happened:
// the control plane's and machines' logs with every node's console, and per
// node its services' and pods' logs and kernel log; and the cluster's objects
// and events. What cannot be had is named in a file ending in ".missing", with
// the reason, instead of failing the rest.
func (l *Lab) CollectLogs(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// A log may be half a gigabyte of zeros in a sparse file; cp keeps it so.
	if err := build.Run(ctx, "cp", "-a", l.path("logs")+"/.", dir); err != nil {
		return err
	}
	var group errgroup.Group
	for _, node := range l.state.Nodes {
		group.Go(func() error { return l.collectNode(ctx, node, filepath.Join(dir, node)) })
	}
	if l.state.Cluster {
		group.Go(func() error { return l.collectObjects(ctx, dir) })
	}
	return group.Wait()
}

func (l *Lab) collectNode(ctx context.Context, node, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var archive bytes.Buffer
	// tar says 1 when a file grew while it was read, which logs do.
	script := "tar -C / --ignore-failed-read --warning=no-file-changed -cf - " + nodeconfig.LogDir[1:] + " var/log/pods 2>/dev/null || [ $? -eq 1 ]"
	if err := l.Exec(ctx, node, Streams{Stdout: &archive}, "sh", "-c", script); err != nil {
		return missing(dir, "node-logs", err)
	}
	if err := untar(&archive, dir); err != nil {
		return err
	}
	for file, args := range map[string][]string{
		"dmesg.log": {"dmesg", "-T"},
		"state.txt": {"sh", "-c", "ip addr; ip route; rdma link; mount; lsblk; ls -l /dev/disk/by-id; ls /sys/class/nvme-subsystem /sys/kernel/config/nvmet/subsystems; ps aux; free -m; df -h; true"},
	} {
		out, err := l.Output(ctx, node, args...)
		if err != nil {
			if err := missing(dir, file, err); err != nil {
				return err
			}
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(out), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// collectObjects writes what the API server knows. Secrets are left out.
func (l *Lab) collectObjects(ctx context.Context, dir string) error {
	kubectl := []string{filepath.Join(l.state.AssetsDir, "kubectl"), "--kubeconfig", l.Kubeconfig(), "--request-timeout=20s"}
	for file, args := range map[string][]string{
		"events.txt":   {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		"overview.txt": {"get", "nodes,pods,pvc,pv,volumeattachments,csinodes,storageclasses,deployments,daemonsets", "-A", "-o", "wide"},
		"objects.yaml": {"get", "nodes,pods,pvc,pv,volumeattachments,csinodes,storageclasses", "-A", "-o", "yaml"},
		"weft.yaml":    {"get", weftKinds, "-o", "yaml"},
		// What people paste into reports: each object with its Events.
		"describe.txt":      {"describe", "nodes"},
		"describe-more.txt": {"describe", "pods,pvc,pv,volumeattachments,events", "-A"},
		"describe-weft.txt": {"describe", weftKinds},
	} {
		out, err := build.Output(ctx, append(kubectl, args...)...)
		if err != nil {
			if err := missing(dir, file, err); err != nil {
				return err
			}
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(out), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func missing(dir, name string, why error) error {
	return os.WriteFile(filepath.Join(dir, name+missingSuffix), []byte(why.Error()+"\n"), 0o644)
}

// untar unpacks folders and files below dir; nothing in the archive can get
// out of it.
func untar(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only a handle
	archive := tar.NewReader(r)
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a node's logs: %w", err)
		}
		name := filepath.Clean(head.Name)
		switch head.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = writeEntry(root, name, archive)
		}
		if err != nil {
			return err
		}
	}
}

func writeEntry(root *os.Root, name string, r io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
