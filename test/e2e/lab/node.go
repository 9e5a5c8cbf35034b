// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

const (
	// drivesPerNode emulated NVMe drives, each of driveSize bytes, sparse.
	drivesPerNode = 2
	driveSize     = 4 << 30
	// nodeCPUs is what lets kubelet, containerd and pods make progress beside
	// each other; the host shares its cores among all nodes.
	nodeCPUs = 2
	// nodeCPUModel has all that can be emulated, except what is slower than doing
	// without: string instructions that are emulated byte by byte, and AVX2, in
	// which Go's SHA-256 takes a quarter longer (0.78 s instead of 0.63 s for 16 MiB).
	// Nor CMPXCHG16B, with which Linux allocates memory: QEMU 7.2 takes the flags after
	// it from an operation before, and an interrupt then finds any value in them. That
	// ends in "double fault", once in many hours.
	nodeCPUModel = "max,-erms,-fsrm,-avx,-avx2,-cx16"
	// translationCacheMiB bounds what the emulator keeps of translated code, which
	// would otherwise grow to 1 GiB per node. With 256 eight pods took a tenth more of
	// the processors' time to start than with 1024: what is full is emptied.
	translationCacheMiB = 512
	// clusterNIC and managementNIC number a node's interfaces.
	clusterNIC    = 0
	managementNIC = 1
)

func nodeName(i int) string { return "node" + strconv.Itoa(i+1) }

// qemuDaemon is the name under which a node's process is known.
func qemuDaemon(node string) string { return "vm-" + node }

func (l *Lab) nodeDir(node string, elem ...string) string {
	return l.path(append([]string{"nodes", node}, elem...)...)
}

// ConsoleLog returns the file with all that the node's kernel and init wrote to
// the serial console since the lab was made, crashes included.
func (l *Lab) ConsoleLog(node string) string { return l.path("logs", "console-"+node+".log") }

// machineID is stable for a node of a lab and differs between labs.
func (l *Lab) machineID(node string) string {
	sum := sha256.Sum256([]byte(l.id + "/" + node))
	return hex.EncodeToString(sum[:16])
}

// nodeModules lists what a node's kernel has loaded when it is ready: the two
// sides of NVMe-oF with both transports, soft RDMA, what containers and
// kube-proxy need, device mapper, and filesystems.
func nodeModules() []string {
	return []string{
		"overlay", "br_netfilter", "nf_tables", "nf_conntrack", "veth", "nvme",
		"nvme_tcp", "nvme_rdma", "nvmet", "nvmet_tcp", "nvmet_rdma", "rdma_rxe", "dm_mod", "xfs", "loop",
	}
}

// emptyHooks holds every hook of the packet path with a chain that lets all
// pass. A kernel patches its own code when the first chain comes to a hook and
// when the last one goes; QEMU before 8.1 may run such code from a stale
// translation on the other CPU, which ends in "Oops: int3". Nodes of a cluster
// have kube-proxy's chains in the same places.
const emptyHooks = `table inet weft-lab {
	chain prerouting { type filter hook prerouting priority filter; }
	chain input { type filter hook input priority filter; }
	chain forward { type filter hook forward priority filter; }
	chain output { type filter hook output priority filter; }
	chain postrouting { type filter hook postrouting priority filter; }
}
`

// nodeConfig is what node i is told about itself.
func (l *Lab) nodeConfig(i int) nodeconfig.Config {
	plan := l.state.addresses()
	name := l.state.Nodes[i]
	cfg := nodeconfig.Config{
		Hostname:  name,
		MachineID: l.machineID(name),
		Modules:   nodeModules(),
		Sysctls: []nodeconfig.Sysctl{
			{Path: "net/ipv4/ip_forward", Value: "1"},
			{Path: "net/bridge/bridge-nf-call-iptables", Value: "1"},
			{Path: "fs/inotify/max_user_instances", Value: "1024"},
		},
		Interfaces: []nodeconfig.Interface{
			{MAC: plan.mac(i, clusterNIC), Name: "eth0", Address: plan.node(i), MTU: mtu},
			{MAC: plan.mac(i, managementNIC), Name: "mgmt0", Address: plan.nodeManagement(i), MTU: mtu},
		},
		Routes:   []nodeconfig.Route{{Destination: defaultRoute, Gateway: plan.controlPlane().Addr()}},
		Nftables: emptyHooks,
		Services: []nodeconfig.Service{{
			Name: "sshd",
			Args: []string{"/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(nodeconfig.Dir, sshdConfigFile)},
		}},
	}
	if l.state.RDMA {
		cfg.RDMA = []nodeconfig.RDMALink{{Name: "rxe0", NetDev: "eth0"}}
	}
	for j, other := range l.state.Nodes {
		cfg.Hosts = append(cfg.Hosts, fmt.Sprintf("%s %s", plan.node(j).Addr(), other))
		if j != i {
			cfg.Routes = append(cfg.Routes, nodeconfig.Route{Destination: plan.pods(j), Gateway: plan.node(j).Addr()})
		}
	}
	if l.state.Cluster {
		cfg.Services = append(cfg.Services, clusterServices(name, plan.node(i).Addr())...)
	}
	return cfg
}

// prepareNode makes a node's folder: configuration, keys and disks.
func (l *Lab) prepareNode(ctx context.Context, i int) error {
	name := l.state.Nodes[i]
	config := l.nodeDir(name, "config")
	if err := writeJSON(filepath.Join(config, nodeconfig.File), l.nodeConfig(i)); err != nil {
		return err
	}
	if err := l.writeSSHFiles(config); err != nil {
		return err
	}
	overlay := l.nodeDir(name, "root.qcow2")
	if err := build.Run(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", l.state.Machine.Disk, overlay); err != nil {
		return err
	}
	for d := range drivesPerNode {
		if err := sparseFile(l.drive(name, d), driveSize); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) drive(node string, d int) string {
	return l.nodeDir(node, fmt.Sprintf("nvme%d.img", d))
}

// DriveSerial returns the serial number of the node's emulated NVMe drive d,
// counted from 0; its stable path ends in "_" and this number.
func DriveSerial(node string, d int) string { return fmt.Sprintf("weft-%s-%d", node, d) }

// DriveID is the drive's name in /dev/disk/by-id.
func DriveID(node string, d int) string { return "nvme-QEMU_NVMe_Ctrl_" + DriveSerial(node, d) }

func sparseFile(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// qemuArgs are the arguments of the node's virtual machine.
func (l *Lab) qemuArgs(i int) []string {
	name := l.state.Nodes[i]
	plan := l.state.addresses()
	kernelArgs := []string{"console=ttyS0", "net.ifnames=0", "mitigations=off", "nokaslr", "panic=5", "loglevel=7",
		// The first container would make the kernel patch its allocator while the other CPU runs it, and an emulator
		// that has not noticed yet executes the breakpoint of the patch: "Oops: int3" (seen with QEMU 7.2).
		"cgroup.memory=nokmem"}
	var iommu []string
	if l.state.IOMMU {
		kernelArgs = append(kernelArgs, "intel_iommu=on")
		// Interrupts are remapped, or VFIO takes no device. Addresses are as wide as a process's own, as on servers:
		// without hugepages, SPDK has no others to hand to a drive.
		iommu = []string{"-device", "intel-iommu,intremap=on,aw-bits=48"}
	}
	args := []string{
		"qemu-system-x86_64", "-name", "weft-" + l.id + "-" + name,
		"-nodefaults", "-no-user-config", "-display", "none",
		// Without devices that nobody uses and every boot would probe.
		"-machine", "q35,i8042=off,sata=off,smbus=off,vmport=off",
		// Nested KVM hangs a stock kernel on some hosts; emulation works everywhere.
		"-accel", fmt.Sprintf("tcg,thread=multi,tb-size=%d", translationCacheMiB),
		"-cpu", nodeCPUModel, "-smp", strconv.Itoa(nodeCPUs), "-m", strconv.Itoa(l.state.MemoryMiB),
		"-kernel", l.state.Machine.Kernel, "-initrd", l.state.Machine.Initrd,
		"-append", strings.Join(kernelArgs, " "),
		"-chardev", "file,id=console,append=on,path=" + l.ConsoleLog(name), "-serial", "chardev:console",
		"-device", "virtio-rng-pci",
		"-drive", "if=virtio,format=qcow2,cache=writeback,discard=unmap,file=" + l.nodeDir(name, "root.qcow2"),
		"-virtfs", "local,readonly=on,security_model=none,mount_tag=" + nodeconfig.ConfigTag + ",path=" + l.nodeDir(name, "config"),
		"-virtfs", "local,readonly=on,security_model=none,mount_tag=" + nodeconfig.ShareTag + ",path=" + l.ShareDir(),
	}
	args = append(args, iommu...)
	for nic, tap := range []string{clusterNIC: tapName(i), managementNIC: managementTapName(i)} {
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=net%d,ifname=%s,script=no,downscript=no", nic, tap),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,host_mtu=%d", nic, plan.mac(i, nic), mtu))
	}
	for d := range drivesPerNode {
		args = append(args,
			"-drive", fmt.Sprintf("if=none,id=nvme%d,format=raw,cache=writeback,discard=unmap,file=%s", d, l.drive(name, d)),
			"-device", fmt.Sprintf("nvme,drive=nvme%d,serial=%s", d, DriveSerial(name, d)))
	}
	for d, serial := range l.state.Carried[name] {
		args = append(args,
			"-drive", fmt.Sprintf("if=none,id=carried%d,format=raw,cache=writeback,discard=unmap,file=%s", d, l.carriedDrive(name, d)),
			"-device", fmt.Sprintf("nvme,drive=carried%d,serial=%s", d, serial))
	}
	return args
}

// PowerOn starts the node. One that runs is left alone. The disks are those of
// the last time.
func (l *Lab) PowerOn(node string) error {
	i, err := l.nodeIndex(node)
	if err != nil {
		return err
	}
	return l.start(daemon{
		name: qemuDaemon(node),
		args: l.qemuArgs(i),
		log:  l.path("logs", "qemu-"+node+".log"),
	})
}

// PowerOff takes the power from the node: nothing is flushed, nothing is told.
// What the node's drives had acknowledged as flushed is kept.
func (l *Lab) PowerOff(node string) error {
	if _, err := l.nodeIndex(node); err != nil {
		return err
	}
	l.forgetShell(node)
	return l.stopDaemon(qemuDaemon(node), processID.kill)
}

// Shutdown ends the node in order, as a machine with systemd ends: processes
// are told to end, data is written, filesystems are unmounted, and then the
// power goes off by itself. It returns when it is off. What Kubernetes would
// have done first, such as ending pods, is not done.
func (l *Lab) Shutdown(ctx context.Context, node string) error {
	session, err := l.session(ctx, node)
	if err != nil {
		return err
	}
	defer session.Close() //nolint:errcheck // it ends with the node
	// Not waited for: the shell ends with everything else.
	if err := session.Start(quoteArgs([]string{"kill", "-s", strconv.Itoa(int(nodeconfig.ShutdownSignal)), "1"})); err != nil {
		return fmt.Errorf("tell %s to shut down: %w", node, err)
	}
	defer l.forgetShell(node)
	return l.stopDaemon(qemuDaemon(node), func(p processID) error { return p.wait(ctx) })
}

// Powered reports whether the node's machine runs.
func (l *Lab) Powered(node string) (bool, error) {
	if _, err := l.nodeIndex(node); err != nil {
		return false, err
	}
	_, ok, err := l.running(qemuDaemon(node))
	return ok, err
}

// Oopses returns what the consoles of the nodes say of faults in their kernels since the lab started, with the node's
// name in front. A node restarts after one, so that its own log does not have it any more.
func (l *Lab) Oopses() ([]string, error) {
	var found []string
	for _, node := range l.state.Nodes {
		console, err := os.ReadFile(l.ConsoleLog(node))
		if err != nil {
			return nil, err
		}
		for _, line := range oops.FindAllString(string(console), -1) {
			found = append(found, node+": "+strings.TrimSpace(line))
		}
	}
	return found, nil
}

// oops is a line with which Linux begins or ends its report of a fault in the kernel.
var oops = regexp.MustCompile(`(?m)^.*(Oops: |BUG: |kernel BUG at |Kernel panic - not syncing: ).*$`)

// KernelLog returns the node's kernel log: from the node itself when it
// answers, else what reached its console.
func (l *Lab) KernelLog(ctx context.Context, node string) (string, error) {
	out, err := l.Output(ctx, node, "dmesg")
	if err == nil {
		return out, nil
	}
	data, readErr := os.ReadFile(l.ConsoleLog(node))
	if readErr != nil {
		return "", errors.Join(err, readErr)
	}
	return string(data), nil
}
