// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

const (
	apiPort     = 6443
	clusterName = "weft-lab"
	// kubeletDir is where the kubelet keeps pods and plugins, as everywhere.
	kubeletDir = "/var/lib/kubelet"
)

func (l *Lab) apiServer() netip.AddrPort {
	return netip.AddrPortFrom(l.state.addresses().controlPlane().Addr(), apiPort)
}

// prepareCluster makes keys, certificates and configuration of the control
// plane and of the Kubernetes part of every node.
func (l *Lab) prepareCluster() error {
	now := time.Now()
	ca, caKey, err := newAuthority("weft-lab", now)
	if err != nil {
		return err
	}
	proxyCA, _, err := newAuthority("weft-lab-front-proxy", now)
	if err != nil {
		return err
	}
	if err := l.writeControlPlaneKeys(ca, caKey, proxyCA, now); err != nil {
		return err
	}
	for i := range l.state.Nodes {
		if err := l.writeNodeCluster(ca, i, now); err != nil {
			return err
		}
	}
	admin, err := ca.issue(identity{name: "weft-lab-admin", groups: []string{"system:masters"}}, now)
	if err != nil {
		return err
	}
	return l.writeKubeconfig(l.Kubeconfig(), ca, admin)
}

func (l *Lab) writeControlPlaneKeys(ca *authority, caKey []byte, proxyCA *authority, now time.Time) error {
	dir := l.path("pki")
	service := netip.MustParseAddr(apiServiceIP)
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, leaf := range []struct {
		file string
		by   *authority
		id   identity
	}{
		{"apiserver", ca, identity{
			name: "kube-apiserver", server: true,
			hosts: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
			addrs: []netip.Addr{l.apiServer().Addr(), service, loopback},
		}},
		{"apiserver-kubelet", ca, identity{name: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}}},
		{"front-proxy", proxyCA, identity{name: "front-proxy-client"}},
	} {
		pair, err := leaf.by.issue(leaf.id, now)
		if err != nil {
			return err
		}
		if err := pair.write(dir, leaf.file); err != nil {
			return err
		}
	}
	key, serviceAccountKey, err := newKey()
	if err != nil {
		return err
	}
	serviceAccountPub, err := encodePublicKey(key.Public())
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"ca.crt": ca.pem, "ca.key": caKey, "front-proxy-ca.crt": proxyCA.pem,
		"service-account.key": serviceAccountKey, "service-account.pub": serviceAccountPub,
	} {
		if err := writeFileAtomic(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		pair, err := ca.issue(identity{name: "system:" + name}, now)
		if err != nil {
			return err
		}
		if err := l.writeKubeconfig(l.path("config", name+".kubeconfig"), ca, pair); err != nil {
			return err
		}
	}
	return nil
}

// writeNodeCluster puts what kubelet, kube-proxy and containerd need into the
// folder that the node mounts.
func (l *Lab) writeNodeCluster(ca *authority, i int, now time.Time) error {
	name := l.state.Nodes[i]
	dir := l.nodeDir(name, "config")
	plan := l.state.addresses()
	serving, err := ca.issue(identity{
		name: "system:node:" + name, groups: []string{"system:nodes"}, server: true,
		hosts: []string{name}, addrs: []netip.Addr{plan.node(i).Addr()},
	}, now)
	if err != nil {
		return err
	}
	if err := serving.write(dir, "kubelet"); err != nil {
		return err
	}
	for file, id := range map[string]identity{
		"kubelet.kubeconfig":    {name: "system:node:" + name, groups: []string{"system:nodes"}},
		"kube-proxy.kubeconfig": {name: "system:kube-proxy"},
	} {
		pair, err := ca.issue(id, now)
		if err != nil {
			return err
		}
		if err := l.writeKubeconfig(filepath.Join(dir, file), ca, pair); err != nil {
			return err
		}
	}
	files := map[string]string{
		"ca.crt":               string(ca.pem),
		"kubelet.yaml":         kubeletConfig(),
		"kube-proxy.yaml":      kubeProxyConfig(plan.podRange()),
		"containerd.toml":      containerdConfig(),
		"cni/10-weft.conflist": cniConfig(plan.pods(i)),
	}
	for file, content := range files {
		if err := writeFileAtomic(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writeKubeconfig writes a file with which the owner of pair reaches the API
// server. Nothing in it refers to other files, so nodes may use it too.
func (l *Lab) writeKubeconfig(path string, ca *authority, pair keyPair) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[clusterName] = &clientcmdapi.Cluster{
		Server:                   fmt.Sprintf("https://%s", l.apiServer()),
		CertificateAuthorityData: ca.pem,
	}
	config.AuthInfos[clusterName] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.cert, ClientKeyData: pair.key}
	config.Contexts[clusterName] = &clientcmdapi.Context{Cluster: clusterName, AuthInfo: clusterName}
	config.CurrentContext = clusterName
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return writeFileAtomic(path, data, os.FileMode(0o600))
}

// clusterServices are what a node of a cluster runs beyond its shell.
func clusterServices(node string, addr netip.Addr) []nodeconfig.Service {
	in := func(file string) string { return filepath.Join(nodeconfig.Dir, file) }
	const socket = "/run/containerd/containerd.sock"
	return []nodeconfig.Service{
		{Name: "containerd", Args: []string{"/usr/bin/containerd", "--config", in("containerd.toml")}},
		{
			Name:    "kubelet",
			WaitFor: socket,
			Args: []string{
				"/usr/local/bin/kubelet", "--config=" + in("kubelet.yaml"), "--kubeconfig=" + in("kubelet.kubeconfig"),
				"--hostname-override=" + node, "--node-ip=" + addr.String(), "--root-dir=" + kubeletDir,
				// To read every cgroup each ten seconds, the default, takes a fifth of the emulated CPU time of an idle
				// kubelet.
				"--housekeeping-interval=1m",
			},
		},
		{Name: "kube-proxy", Args: []string{"/usr/local/bin/kube-proxy", "--config=" + in("kube-proxy.yaml"), "--hostname-override=" + node}},
	}
}

// containerdConfig is for containerd 1.7. crun makes a container in a quarter of the emulated processor's time
// that runc takes (0.6 s and 2.3 s), and a pod has two of them.
func containerdConfig() string {
	return `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10.1"
  # The lab has no registry; an image that is missing should say so at once.
  image_pull_progress_timeout = "10s"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "crun"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
  SystemdCgroup = false
  BinaryName = "/usr/bin/crun"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "` + nodeconfig.Dir + `/cni"
`
}

// cniConfig joins pods to a bridge of their node. Other nodes' pods are reached
// by routes, so nothing is hidden behind the node's address.
func cniConfig(pods netip.Prefix) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "weft-lab",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "mtu": %d,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni/networks"
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, mtu, pods)
}

// kubeletConfig relaxes what protects real nodes from running full; a lab's
// disks are sparse files. What a driver finds wrong with a volume becomes an
// Event of its pod (VolumeConditionAbnormal) within a minute; statistics asked
// for more often cost an idle kubelet a tenth of a CPU.
func kubeletConfig() string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: ` + nodeconfig.Dir + `/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: ` + nodeconfig.Dir + `/kubelet.crt
tlsPrivateKeyFile: ` + nodeconfig.Dir + `/kubelet.key
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: /etc/resolv.conf
failSwapOn: false
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 110
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
featureGates: {CSIVolumeHealth: true}
volumeStatsAggPeriod: 30s
runtimeRequestTimeout: 5m
logging: {verbosity: 2}
`
}

func kubeProxyConfig(pods netip.Prefix) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s/kube-proxy.kubeconfig}
clusterCIDR: %q
detectLocalMode: ClusterCIDR
conntrack: {maxPerCore: 0}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
`, nodeconfig.Dir, pods)
}
