// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/tracing"
)

// Export implements engine.Engine.
func (e *Engine) Export(ctx context.Context, exports []engine.Export) []error {
	end, err := e.begin(ctx)
	defer end()
	var stored *store
	if err == nil {
		stored, err = e.scan()
	}
	var ports []*port
	if err == nil {
		ports, err = e.ports()
	}
	var served map[engine.ID]string
	if err == nil {
		served, err = e.exportedVolumes()
	}
	var past *refusals
	if err == nil {
		past, err = e.refusals(ctx)
	}
	var retired map[string]error
	if err == nil {
		retired = e.retireAll(ctx, nobodys(exports), past)
		if slices.ContainsFunc(exports, func(x engine.Export) bool { return len(x.Hosts) > 0 }) {
			e.level(ctx, past, true)
		}
		defer e.level(ctx, past, false)
	}
	return each(ctx, exports, err, func(x engine.Export) error {
		if err := retired[x.NQN]; err != nil && len(x.Hosts) == 0 {
			return err
		}
		err := e.exportOne(ctx, x, stored, ports, served, past)
		if err == nil {
			for _, ns := range x.Namespaces {
				served[ns.Volume] = x.NQN
			}
		}
		return err
	})
}

// nobodys are the exports that list no host, by NQN.
func nobodys(exports []engine.Export) []string {
	var nqns []string
	for _, x := range exports {
		if x.Validate() == nil && len(x.Hosts) == 0 {
			nqns = append(nqns, x.NQN)
		}
	}
	return nqns
}

func (e *Engine) exportOne(
	ctx context.Context, x engine.Export, stored *store, ports []*port, served map[engine.ID]string, past *refusals,
) error {
	if err := x.Validate(); err != nil {
		return err
	}
	for host, a := range x.Authentication {
		if err := e.keysElsewhere(x.NQN, host, a); err != nil {
			return err
		}
	}
	is, err := e.subsystem(x.NQN)
	if err != nil {
		return err
	}
	if is != nil && len(without(is.hosts, slices.Concat(x.Hosts, x.Retired))) > 0 {
		if err := e.unservedCopies(is); err != nil {
			return err
		}
	}
	var ids []int
	var portals []v1alpha1.Portal
	for _, p := range ports {
		if !p.finished() {
			continue
		}
		ids = append(ids, p.id)
		portals = append(portals, p.address)
	}
	past.admit(x.Hosts)
	past.dismiss(is, slices.Concat(x.Hosts, x.Retired))
	past.save(ctx)
	var want subsystem
	paths, missing := pathsOf(x, stored)
	if missing == nil {
		missing = servedElsewhere(x, served)
	}
	switch {
	case missing == nil:
		want = wanted(x, paths, ids, past.of(x.NQN))
	case is == nil || is.onlyRefuses():
		return missing
	default:
		want = is.onlyFor(x, past.of(x.NQN))
	}
	if is != nil && len(want.hosts) == 0 {
		want.ports = is.ports // see level
	}
	todo, err := steps(is, want)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(todo, step.awaitsWrites) {
		if err := e.unservedCopies(is); err != nil {
			return err
		}
	}
	if is != nil && interrupts(todo, want) {
		defer e.guard.close(ctx, portals)()
	}
	return errors.Join(missing, e.apply(ctx, want, todo))
}

// pathsOf the volumes of an export. It fails when one is missing, or may be where nothing can be read.
func pathsOf(x engine.Export, stored *store) (map[engine.ID]string, error) {
	paths := map[engine.ID]string{}
	for _, ns := range x.Namespaces {
		f, err := stored.find(stored.volumes, ns.Volume)
		if err != nil {
			return nil, fmt.Errorf("namespace %d of %s: volume %w", ns.NSID, x.NQN, err)
		}
		paths[ns.Volume] = f.path
	}
	return paths, nil
}

// apply steps to a subsystem. A portal that cannot listen does not keep it from the others.
func (h *host) apply(ctx context.Context, want subsystem, todo []step) error {
	var links []error
	for _, s := range todo {
		ctx, span := tracing.Start(ctx, "nvmet "+string(s.do), tracing.NQNKey.String(want.nqn))
		err := h.applyOne(ctx, want, s)
		if err != nil {
			err = fmt.Errorf("%s of %s: %w", s.do, want.nqn, err)
		}
		tracing.End(span, err)
		if s.do == linkPort {
			links = append(links, err)
		} else if err != nil {
			return err
		}
	}
	return errors.Join(links...)
}

func (h *host) applyOne(ctx context.Context, want subsystem, s step) error {
	dir := h.config("subsystems", want.nqn)
	space := h.space(want.nqn, s.nsid)
	switch s.do {
	case unlinkPort:
		return os.Remove(h.link(s.port, want.nqn))
	case removeSubsystem:
		return h.removeSubsystem(want.nqn)
	case makeSubsystem:
		return h.makeSubsystem(ctx, want)
	case setQueues:
		return h.writeAttr(filepath.Join(dir, "attr_qid_max"), strconv.Itoa(want.queues))
	case removeNamespace:
		return removeSpace(h, space)
	case makeNamespace:
		return h.makeNamespace(space, s.namespace)
	case admitHost:
		return h.admit(want.nqn, s.host, want.keys[s.host])
	case setKeys:
		return h.setKeys(s.host, want.keys[s.host])
	case refuseHost:
		return h.refuse(want.nqn, s.host)
	case dropHost:
		return h.drop(want.nqn, s.host)
	case linkPort:
		return h.linkPort(s.port, want.nqn)
	default:
		return fmt.Errorf("unknown step %q", s.do)
	}
}

func (h *host) link(port int, nqn string) string {
	return h.config("ports", strconv.Itoa(port), "subsystems", nqn)
}

// lastControllerID is the largest that nvmet gives (NVMET_MAX_CNTLID in drivers/nvme/target/nvmet.h).
const lastControllerID = 0xffef

// moveIDs has controllers that are made from now on numbered from another place on. nvmet gives the lowest ID that is
// free, and a host whose path is lost keeps that path's: Linux refuses a second controller of the subsystem with the
// same ID ("Duplicate cntlid"), and could never connect through a portal with another address.
func (h *host) moveIDs(nqn string) error {
	first := 1 + rand.IntN(lastControllerID/2) //nolint:gosec // it is no secret
	err := h.writeAttr(h.config("subsystems", nqn, "attr_cntlid_min"), strconv.Itoa(first))
	if isMissing(err) {
		return nil // before Linux 5.7
	}
	return err
}

// linkPort makes a port serve a subsystem; with the first one, it begins to listen.
func (h *host) linkPort(port int, nqn string) error {
	if err := h.moveIDs(nqn); err != nil {
		return err
	}
	err := os.Symlink(h.config("subsystems", nqn), h.link(port, nqn))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: something else on this node listens on the portal's address: %w", engine.ErrInUse, err)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no device of this node has the portal's address: %w", engine.ErrNotFound, err)
	}
	return err
}

// makeSubsystem with its attributes, and nobody admitted.
func (h *host) makeSubsystem(ctx context.Context, want subsystem) error {
	dir := h.config("subsystems", want.nqn)
	if err := mkdirOnceFree(ctx, dir); err != nil {
		return err
	}
	for _, attr := range []struct{ name, value string }{
		{"attr_allow_any_host", "0"},
		{"attr_serial", want.serial},
		{"attr_model", want.model},
		{"attr_qid_max", strconv.Itoa(want.queues)},
	} {
		err := h.writeAttr(filepath.Join(dir, attr.name), attr.value)
		if attr.name == "attr_qid_max" && isMissing(err) {
			continue // before Linux 6.1
		}
		if err != nil {
			return fmt.Errorf("%s: %w", attr.name, err)
		}
	}
	return nil
}

// mkdirOnceFree makes a subsystem's folder. A kernel with nvmet's debugfs refuses the name with EEXIST
// while controllers of a removed subsystem of that name are still on their way out.
func mkdirOnceFree(ctx context.Context, dir string) error {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := os.Mkdir(dir, 0o755)
		if !os.IsExist(err) {
			return err
		}
		if _, statErr := os.Stat(dir); statErr == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%w: its old controllers still exist: %w", engine.ErrBusy, err), ctx.Err())
		case <-ticker.C:
		}
	}
}

func (h *host) makeNamespace(dir string, ns namespace) error {
	if err := device.MakeSynchronous(ns.path); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	for _, attr := range []struct{ name, value string }{
		{"device_path", ns.path},
		{"device_uuid", ns.uuid},
		{"device_nguid", ns.nguid},
		{"enable", "1"},
	} {
		if err := h.writeAttr(filepath.Join(dir, attr.name), attr.value); err != nil {
			return fmt.Errorf("%s: %w", attr.name, err)
		}
	}
	return nil
}

// removeSpace disables a namespace, which waits for commands in flight, and removes it.
func removeSpace(h *host, dir string) error {
	if err := h.writeAttr(filepath.Join(dir, "enable"), "0"); err != nil {
		return err
	}
	return os.Remove(dir)
}

// removeSubsystem that no port serves any more; when it answers, no command of any host is in flight.
func (h *host) removeSubsystem(nqn string) error {
	dir := h.config("subsystems", nqn)
	spaces, err := names(filepath.Join(dir, "namespaces"))
	if err != nil {
		return err
	}
	for _, nsid := range spaces {
		if err := removeSpace(h, filepath.Join(dir, "namespaces", nsid)); err != nil {
			return fmt.Errorf("namespace %s: %w", nsid, err)
		}
	}
	hosts, err := names(filepath.Join(dir, "allowed_hosts"))
	if err != nil {
		return err
	}
	for _, host := range hosts {
		if err := os.Remove(filepath.Join(dir, "allowed_hosts", host)); err != nil {
			return fmt.Errorf("host %s: %w", host, err)
		}
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	for _, host := range hosts {
		if err := h.forgetHost(host); err != nil {
			return fmt.Errorf("host %s: %w", host, err)
		}
	}
	return nil
}

// forgetHost unless another subsystem admits it, which configfs knows.
func (h *host) forgetHost(nqn string) error {
	if !strings.HasPrefix(nqn, v1alpha1.HostNQNPrefix) {
		return nil
	}
	err := os.Remove(h.config("hosts", nqn))
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) || isMissing(err) {
		return nil
	}
	return err
}

// Unexport implements engine.Engine.
func (e *Engine) Unexport(ctx context.Context, nqns []string) []error {
	end, err := e.begin(ctx)
	defer end()
	var past *refusals
	if err == nil {
		past, err = e.refusals(ctx)
	}
	var retired map[string]error
	if err == nil {
		e.forgetRefusals(ctx, past)
		ours := slices.DeleteFunc(slices.Clone(nqns), func(nqn string) bool { return engine.ValidateSubsystemNQN(nqn) != nil })
		retired = e.retireAll(ctx, ours, past)
		defer e.level(ctx, past, false)
	}
	return each(ctx, nqns, err, func(nqn string) error {
		if err := errors.Join(engine.ValidateSubsystemNQN(nqn), retired[nqn]); err != nil {
			return err
		}
		is, err := e.subsystem(nqn)
		switch {
		case err != nil || is == nil || is.onlyRefuses():
			return err
		case len(is.hosts) > 0 || len(is.refused) == 0:
			return e.apply(ctx, *is, removeSteps(is))
		}
		for _, nsid := range sortedKeys(is.namespaces) {
			if err := removeSpace(&e.host, e.space(nqn, nsid)); err != nil {
				return fmt.Errorf("namespace %d of %s: %w", nsid, nqn, err)
			}
		}
		return nil
	})
}

// exportedVolumes gives the NQN for each volume that a subsystem, of weft or not, serves.
func (h *host) exportedVolumes() (map[engine.ID]string, error) {
	exported := map[engine.ID]string{}
	err := h.eachNamespace(func(nqn, _ string, ns namespace) error {
		exported[ns.volume()] = nqn
		return nil
	})
	return exported, err
}

// servedElsewhere fails with ErrInUse when another subsystem serves one of the export's volumes: the kernel would let
// both write to its file.
func servedElsewhere(x engine.Export, served map[engine.ID]string) error {
	for _, ns := range x.Namespaces {
		if nqn := served[ns.Volume]; nqn != "" && nqn != x.NQN {
			return fmt.Errorf("%w: volume %s is served by %s", engine.ErrInUse, ns.Volume, nqn)
		}
	}
	return nil
}

// revalidate the size of a volume's file where it is exported: hosts are told when it changed.
func (h *host) revalidate(path string) error {
	return h.eachNamespace(func(nqn, dir string, ns namespace) error {
		if ns.path != path || !ns.enabled {
			return nil
		}
		if err := h.writeAttr(filepath.Join(dir, "revalidate_size"), "1"); err != nil {
			return fmt.Errorf("report the new size to the hosts of %s: %w", nqn, err)
		}
		return nil
	})
}

func (h *host) eachNamespace(do func(nqn, dir string, ns namespace) error) error {
	nqns, err := names(h.config("subsystems"))
	if err != nil {
		return fmt.Errorf("list subsystems: %w", err)
	}
	for _, nqn := range nqns {
		spaces, err := names(h.config("subsystems", nqn, "namespaces"))
		if err != nil {
			return fmt.Errorf("namespaces of %s: %w", nqn, err)
		}
		for _, nsid := range spaces {
			dir := h.config("subsystems", nqn, "namespaces", nsid)
			ns, err := h.readNamespace(dir)
			if err != nil {
				return fmt.Errorf("namespace %s of %s: %w", nsid, nqn, err)
			}
			if err := do(nqn, dir, ns); err != nil {
				return err
			}
		}
	}
	return nil
}
