// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// FreezeAPI stops the API server's process where it is: connections stay, and nothing on them is answered. Freezing it
// again changes nothing.
func (l *Lab) FreezeAPI(ctx context.Context) error {
	return l.controlled(apiServerName, func(p processID) error { return p.freeze(ctx) })
}

// ThawAPI undoes FreezeAPI. It does not wait until the API server answers.
func (l *Lab) ThawAPI() error { return l.controlled(apiServerName, processID.thaw) }

// controlled does something with a process of the control plane that runs.
func (l *Lab) controlled(name string, do func(processID) error) error {
	p, ok, err := l.running(name)
	if err == nil && !ok {
		err = fmt.Errorf("%s does not run; see %s", name, l.path("logs", name+".log"))
	}
	if err != nil {
		return err
	}
	return do(p)
}

// BackUp copies all that etcd has stored to a new folder: the API's objects at this moment. etcd is frozen for as long
// as that takes.
func (l *Lab) BackUp(ctx context.Context, dir string) error {
	return l.controlled(etcdName, func(p processID) error {
		if err := p.freeze(ctx); err != nil {
			return errors.Join(err, p.thaw())
		}
		// What a process has written is in its files, also where it is not on the disk yet.
		err := os.CopyFS(dir, os.DirFS(l.path("etcd")))
		return errors.Join(err, p.thaw())
	})
}

// watchers are the services of a node that watch the API server.
func watchers() []string { return []string{"kube-proxy", "kubelet"} }

// RestoreBackup puts the API's objects back to what they were at BackUp, their versions too, as a restore of etcd from
// a snapshot does. The control plane ends and starts again, and so do kube-proxy and the kubelet of all nodes that are
// on: they watch from versions that will be given to other states of the objects. Whoever else watches, such as weft's
// pods, is left alone. It returns when the API server answers.
func (l *Lab) RestoreBackup(ctx context.Context, dir string) error {
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	restored := l.path("etcd.restored")
	if err := errors.Join(os.RemoveAll(restored), os.CopyFS(restored, os.DirFS(dir))); err != nil {
		return err
	}
	for _, name := range []string{schedulerName, managerName, apiServerName, etcdName} {
		if err := l.stopDaemon(name, processID.stop); err != nil {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(l.path("etcd")), os.Rename(restored, l.path("etcd"))); err != nil {
		return err
	}
	if err := l.startControlPlane(ctx); err != nil {
		return err
	}
	for _, node := range l.state.Nodes {
		on, err := l.Powered(node)
		if err != nil {
			return err
		}
		for _, service := range watchers() {
			if !on {
				continue
			}
			if _, err := l.Output(ctx, node, "systemctl", "restart", service); err != nil {
				return err
			}
		}
	}
	return nil
}
