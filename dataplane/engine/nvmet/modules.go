// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// parameter of a module, in sysfs.
type parameter struct {
	module, name string
	// want in the words of sysfs; where the kernel has no such parameter, usual is what it does.
	want, usual string
}

func (p parameter) String() string { return "module " + p.module + "'s " + p.name }

// tcpParameters can change at any time: the idle polling period holds at once, the priority for connections to come.
func tcpParameters(want v1alpha1.NvmetTCP) []parameter {
	return []parameter{
		{"nvmet_tcp", "idle_poll_period_usecs", strconv.FormatInt(want.IdlePollPeriodMicroseconds, 10), "0"},
		{"nvmet_tcp", "so_priority", strconv.Itoa(int(want.SocketPriority)), "0"},
	}
}

// rdmaParameters are taken when the module is loaded: use_srq cannot be written, and srq_size holds
// from when a device has its first connection. Without SRQs their size does not matter.
func rdmaParameters(want v1alpha1.NvmetRDMA) []parameter {
	if want.SRQDepth == nil {
		return []parameter{{"nvmet_rdma", "use_srq", "N", "N"}}
	}
	return []parameter{
		{"nvmet_rdma", "use_srq", "Y", "N"},
		{"nvmet_rdma", "srq_size", strconv.Itoa(int(*want.SRQDepth)), ""},
	}
}

// setModules to what is planned, as far as can be done without disturbing anybody, and lists what differs then. A
// module that cannot be loaded is no matter here: its portals say so when they are opened.
func (h *host) setModules(ctx context.Context, plan v1alpha1.NvmetPlan) ([]string, error) {
	var differences []string
	if plan.TCP != nil && h.loaded(ctx, v1alpha1.TransportTCP) {
		for _, p := range tcpParameters(*plan.TCP) {
			differs, err := h.setParameter(p)
			if err != nil {
				return nil, err
			}
			differences = append(differences, differs...)
		}
	}
	if plan.RDMA == nil {
		return differences, nil
	}
	differs, err := h.setRDMA(ctx, rdmaParameters(*plan.RDMA))
	return append(differences, differs...), err
}

// loaded says whether a transport's module is there, now at the latest.
func (h *host) loaded(ctx context.Context, transport v1alpha1.TransportType, parameters ...string) bool {
	if h.moduleLoaded(transport) {
		return true
	}
	_, err := h.run(ctx, "modprobe", append([]string{transportModules[transport]}, parameters...)...)
	return err == nil && h.moduleLoaded(transport)
}

func (h *host) setParameter(p parameter) (differences []string, err error) {
	is, differs, err := h.readParameter(p)
	if err != nil || differs == "" {
		return nil, err
	}
	if is == "" {
		return []string{differs}, nil
	}
	if err := h.writeAttr(h.parameterPath(p), p.want); err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return nil, nil
}

func (h *host) parameterPath(p parameter) string {
	return h.path("sys/module", p.module, "parameters", p.name)
}

// readParameter says in words what differs, if anything does. One that the kernel has not reads as "".
func (h *host) readParameter(p parameter) (is, differs string, err error) {
	is, err = h.readAttr(h.parameterPath(p))
	switch {
	case isMissing(err) && p.want == p.usual:
		return "", "", nil
	case isMissing(err):
		return "", fmt.Sprintf("%s should be %s, but this kernel has no such parameter", p, p.want), nil
	case err != nil:
		return "", "", fmt.Errorf("%s: %w", p, err)
	case is != p.want:
		return is, fmt.Sprintf("%s is %s, but should be %s", p, is, p.want), nil
	}
	return is, "", nil
}

// setRDMA loads the module anew when its parameters differ and no port uses it.
func (h *host) setRDMA(ctx context.Context, parameters []parameter) ([]string, error) {
	var arguments []string
	for _, p := range parameters {
		arguments = append(arguments, p.name+"="+p.want)
	}
	if !h.loaded(ctx, v1alpha1.TransportRDMA, arguments...) {
		return nil, nil
	}
	differences, err := h.differing(parameters)
	if err != nil || len(differences) == 0 {
		return nil, err
	}
	port, err := h.rdmaPort()
	if err != nil {
		return nil, err
	}
	if port != "" {
		return append(differences, fmt.Sprintf("they take effect when the module is loaded, but port %s uses it: reboot the node", port)), nil
	}
	module := transportModules[v1alpha1.TransportRDMA]
	if _, err := h.run(ctx, "rmmod", module); err != nil {
		return append(differences, fmt.Sprintf("they take effect when the module is loaded, but it cannot be unloaded (%v): reboot the node", err)), nil
	}
	if _, err := h.run(ctx, "modprobe", append([]string{module}, arguments...)...); err != nil {
		return nil, fmt.Errorf("%w: load %s again: %w", engine.ErrUnavailable, module, err)
	}
	return h.differing(parameters)
}

func (h *host) differing(parameters []parameter) ([]string, error) {
	var all []string
	for _, p := range parameters {
		_, differs, err := h.readParameter(p)
		if err != nil {
			return nil, err
		}
		if differs != "" {
			all = append(all, differs)
		}
	}
	return all, nil
}

// rdmaPort names a port of the kernel's target over RDMA, weft's or another's; "" when there is none.
func (h *host) rdmaPort() (string, error) {
	all, err := names(h.config("ports"))
	if err != nil {
		return "", fmt.Errorf("list ports: %w", err)
	}
	for _, name := range all {
		kind, err := h.readAttr(filepath.Join(h.config("ports"), name, "addr_trtype"))
		if os.IsNotExist(err) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return "", fmt.Errorf("port %s: %w", name, err)
		}
		if strings.TrimSpace(kind) == "rdma" {
			return name, nil
		}
	}
	return "", nil
}

var _ engine.Reporter = (*Engine)(nil)

// Settings implements engine.Reporter: what the modules were told, of those that are loaded.
func (e *Engine) Settings(ctx context.Context, plan v1alpha1.Plan) ([]v1alpha1.EngineSetting, error) {
	end, err := e.begin(ctx)
	defer end()
	if err != nil || plan.Nvmet == nil {
		return nil, err
	}
	return e.settings(*plan.Nvmet)
}

func (h *host) settings(plan v1alpha1.NvmetPlan) ([]v1alpha1.EngineSetting, error) {
	var all []v1alpha1.EngineSetting
	add := func(setting, is, planned string) {
		if is == planned {
			planned = ""
		}
		all = append(all, v1alpha1.EngineSetting{Setting: setting, Value: is, Planned: planned})
	}
	if plan.RDMA != nil {
		planned := "none"
		if plan.RDMA.SRQDepth != nil {
			planned = strconv.Itoa(int(*plan.RDMA.SRQDepth))
		}
		is, err := h.sharedQueueDepth()
		if err != nil {
			return nil, err
		}
		if is != "" {
			add("nvmet.rdma.srqDepth", is, planned)
		}
	}
	if plan.TCP != nil {
		for i, p := range tcpParameters(*plan.TCP) {
			is, err := h.readAttr(h.parameterPath(p))
			if isMissing(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p, err)
			}
			add([]string{"nvmet.tcp.idlePollPeriodMicroseconds", "nvmet.tcp.socketPriority"}[i], is, p.want)
		}
	}
	return all, nil
}

// sharedQueueDepth in the words of a plan; "" while the module is not loaded.
func (h *host) sharedQueueDepth() (string, error) {
	var values [2]string
	for i, name := range []string{"use_srq", "srq_size"} {
		value, err := h.readAttr(h.parameterPath(parameter{module: transportModules[v1alpha1.TransportRDMA], name: name}))
		if isMissing(err) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		values[i] = value
	}
	if values[0] == "N" {
		return "none", nil
	}
	return values[1], nil
}
