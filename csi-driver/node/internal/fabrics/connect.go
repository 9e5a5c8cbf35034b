// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/tracing"
)

// DefaultKeepAlive is the time within which a host and a target must hear of each other. It forgives either that is
// busy for a moment; the kernel's own is 5 s (NVME_DEFAULT_KATO). fast_io_fail_tmo stays off, as in the kernel
// (NVMF_DEF_FAIL_FAST_TMO, -1): how long I/O waits is said once, by ctrl_loss_tmo.
const DefaultKeepAlive = 10 * time.Second

// MirrorKeepAlive is for a mirrored volume, whose writes wait until the kernel notices a silent target. That takes
//
//	1 s (half of it) until the next keep-alive is sent: nvme_keep_alive_work_period, since Linux 5.13
//	2 s (all of it) until it is overdue: nvme_keep_alive_work
//	1.0 to 1.3 s until that is looked at: blk_round_jiffies adds roundup_pow_of_two(HZ) ticks; HZ is 100, 250, 1000
//
// at most, so that with the interval at which the node plugin looks for silent legs, it is less than 5 s; with 3 s it
// would be more than 6 s.
//
// No target refuses it. SPDK 26.05 raises its own timer to min_kato, 10 s by default (nvmf_ctrlr_create), and answers
// as before; the kernel's target rounds up to a second (nvmet_alloc_ctrl). A host or target that is starved of CPU for
// 2 s reconnects, which the keeper's grace covers.
const MirrorKeepAlive = 2 * time.Second

// modules of the transports.
var modules = map[v1alpha1.TransportType]string{
	v1alpha1.TransportTCP:  "nvme_tcp",
	v1alpha1.TransportRDMA: "nvme_rdma",
}

// Connect makes a controller for each portal that has none, and returns when at least one portal of the subsystem
// has one; portals that could not be connected meanwhile are logged. It is idempotent. A portal at which nothing
// answered within the last 30 seconds is tried only when no other can be connected. It fails with the error of each
// portal, joined, when no portal could be connected: a *ConnectError, or ErrUnsupported without one where the kernel
// has no module for the portal's transport. While the kernel is held up, a portal that has no controller fails at once
// with a *HeldUpError.
//
// What this machine connected for other attachments of the volume is disconnected first, and looked for again at the
// end. It fails with ErrPast when any of it is there still, or again.
//
// Without the kernel's multipath (nvme_core.multipath=N) each controller would be
// a block device of its own, so that only one portal is connected.
func (h *Host) Connect(ctx context.Context, c Connection) (err error) {
	ctx, span := tracing.Start(ctx, "connect", tracing.NQNKey.String(c.NQN))
	defer func() { tracing.End(span, err) }()
	if len(c.Portals) == 0 {
		return fmt.Errorf("%w: %s has no portal", ErrInvalid, c.NQN)
	}
	if _, ok := v1alpha1.AttachmentOfHost(c.HostNQN); !ok {
		return fmt.Errorf("%w: host NQN %q; it must be %s<UUID>", ErrInvalid, c.HostNQN, v1alpha1.HostNQNPrefix)
	}
	if err := h.module(ctx, "nvme_fabrics", h.dev("nvme-fabrics")); err != nil {
		return err
	}
	multipath, err := h.multipath()
	if err != nil {
		return err
	}
	cleared, err := h.clearPast(ctx, c)
	if err != nil {
		return err
	}
	if err := h.connectPortals(ctx, c, multipath); err != nil {
		return err
	}
	if cleared {
		// What was connected already did not take the namespace, of which the kernel had another device.
		if err := h.rescan(c.NQN); err != nil {
			return err
		}
	}
	return h.confirmAlone(c)
}

// connectPortals is Connect after what came before is gone.
func (h *Host) connectPortals(ctx context.Context, c Connection, multipath bool) error {
	if !multipath {
		// Whichever portal it leads to: the one that failed when it was made may answer by now.
		controllers, err := h.Controllers(c.NQN)
		if err != nil || connected(controllers) {
			return err
		}
	}
	var errs []error
	paths := 0
	answering, silent := h.bySilence(c.Portals)
	for i, p := range slices.Concat(answering, silent) {
		if paths > 0 && !multipath {
			break
		}
		if paths > 0 && i >= len(answering) {
			logr.FromContextOrDiscard(ctx).Info("Portals did not answer recently; trying again later", "nqn", c.NQN, "portals", silent)
			break
		}
		err := h.connectPortal(ctx, c, p)
		h.heard(p, err)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		paths++
	}
	if paths == 0 {
		return errors.Join(errs...)
	}
	for _, err := range errs {
		logr.FromContextOrDiscard(ctx).Error(err, "The volume is connected through some of its portals only")
	}
	return nil
}

// speak makes the kernel ready for a transport. A volume with portals of two needs only one of them.
func (h *Host) speak(ctx context.Context, t v1alpha1.TransportType) error {
	module, ok := modules[t]
	if !ok {
		return fmt.Errorf("%w: transport %q; it must be TCP or RDMA", ErrInvalid, t)
	}
	return h.module(ctx, module, h.sys("module", module))
}

// module loads a kernel module unless what it makes is there.
func (h *Host) module(ctx context.Context, name, makes string) error {
	if _, err := os.Stat(makes); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := h.LoadModule(ctx, name); err != nil {
		return fmt.Errorf("load kernel module %s: %w: %w", name, ErrUnsupported, err)
	}
	return nil
}

func (h *Host) dev(name string) string { return strings.TrimSuffix(h.Root, "/") + "/dev/" + name }

// multipath tells whether the kernel joins the controllers of a subsystem.
func (h *Host) multipath() (bool, error) {
	v, err := attribute(h.sys("module/nvme_core/parameters/multipath"))
	if errors.Is(err, errGone) {
		return false, nil // built without it
	}
	if err != nil {
		return false, fmt.Errorf("read nvme_core.multipath: %w", err)
	}
	return v == "Y", nil
}

func (h *Host) connectPortal(ctx context.Context, c Connection, p v1alpha1.Portal) error {
	// A subsystem that nothing is known of is not looked for first, which would mean to read every other volume's: the
	// kernel refuses a second connection to the same portal, before it sends anything.
	held := h.HeldUp()
	if held != nil || h.hasName(c.NQN) {
		if connected, err := h.connectedTo(c, p); connected || err != nil {
			return err
		}
	}
	if held != nil {
		return held
	}
	if err := h.speak(ctx, p.Transport); err != nil {
		return err
	}
	known, err := h.knownOptions(ctx)
	if err != nil {
		return err
	}
	options, err := h.options(c, p, known)
	if err != nil {
		return err
	}
	keys, err := keyOptions(c, known)
	if err != nil {
		return err
	}
	if err := h.Answers(ctx, p); err != nil {
		// One that is connected waits for its target.
		if connected, err := h.connectedTo(c, p); connected || err != nil {
			return err
		}
		return &ConnectError{NQN: c.NQN, Host: c.HostNQN, Portal: p, Err: err}
	}
	address := net.JoinHostPort(p.Address, strconv.Itoa(int(p.Port)))
	err = h.flights.do(ctx, flightKey{nqn: c.NQN, host: c.HostNQN, portal: string(p.Transport) + address}, func() error {
		return h.inTurn(ctx, "connecting to "+c.NQN+" over "+string(p.Transport)+" at "+address, func() error {
			answer, err := h.Kernel.Create(options + keys)
			if err == nil {
				h.expect(c.NQN, answer)
			}
			return err
		})
	})
	switch {
	case errors.As(err, &held):
		return held
	case err == nil:
		if keys != "" {
			if err := h.hideKeys(c.NQN); err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "The keys of a connection may be readable in sysfs", "nqn", c.NQN)
			}
		}
		logr.FromContextOrDiscard(ctx).Info("Connected", "nqn", c.NQN, "transport", p.Transport, "portal", address)
		return nil
	case errors.Is(err, syscall.EALREADY):
		// Another process was faster: the kernel looks for the same portal, subsystem and host.
		return nil
	default:
		return &ConnectError{NQN: c.NQN, Host: c.HostNQN, Portal: p, Err: h.waited(ctx, err)}
	}
}

// connectedTo tells whether the connection's host has a controller for a portal that the kernel is not taking away.
func (h *Host) connectedTo(c Connection, p v1alpha1.Portal) (bool, error) {
	controllers, err := h.Controllers(c.NQN)
	return slices.ContainsFunc(ControllersOf(c.HostNQN, controllers), func(is Controller) bool {
		return is.reaches(p) && !is.going()
	}), err
}

// hasName tells whether it was remembered where a subsystem is.
func (h *Host) hasName(nqn string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.names[nqn] != ""
}

// expect takes the kernel's answer to a creation (instance=3,cntlid=1) as a hint: a subsystem
// bears the number of the first controller that the host had for it.
func (h *Host) expect(nqn, answer string) {
	instance, _, _ := strings.Cut(strings.TrimPrefix(answer, "instance="), ",")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names[nqn] == "" {
		h.names[nqn] = "nvme-subsys" + instance
	}
}

// options writes what the kernel shall be told. Those that it does not know are left out, if it can do without.
func (h *Host) options(c Connection, p v1alpha1.Portal, known map[string]bool) (string, error) {
	hostID, _ := v1alpha1.AttachmentOfHost(c.HostNQN) // Connect looked
	list := []struct {
		key, value string
		optional   bool
	}{
		{"transport", strings.ToLower(string(p.Transport)), false},
		{"traddr", p.Address, false},
		{"trsvcid", strconv.Itoa(int(p.Port)), false},
		{"nqn", c.NQN, false},
		{"hostnqn", c.HostNQN, false},
		{"hostid", hostID, false},
		{"nr_io_queues", positive(c.IOQueues), true},
		{"queue_size", positive(c.QueueDepth), true},
		{"ctrl_loss_tmo", strconv.Itoa(int(c.CtrlLossTimeoutSeconds)), true},
		{"reconnect_delay", seconds(v1alpha1.ReconnectDelay), true},
		{"keep_alive_tmo", seconds(cmp.Or(c.KeepAlive, DefaultKeepAlive)), true},
	}
	var words []string
	for _, o := range list {
		if o.optional && (o.value == "" || known != nil && !known[o.key]) {
			continue
		}
		if o.value == "" || strings.ContainsAny(o.value, ", \t\n\x00") {
			return "", fmt.Errorf("%w: %s is %q; it must be one word without a comma", ErrInvalid, o.key, o.value)
		}
		words = append(words, o.key+"="+o.value)
	}
	return strings.Join(words, ","), nil
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// positive leaves an option out, by an empty value, when it is not set.
func positive(n int32) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(int(n))
}
