// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// asker asks the agent of a node for blocks, as the CSI controller does.
type asker struct {
	*lab
	server *v1alpha1.SnapshotMetadataServer
	web    *http.Client
	token  string
}

// asking an agent that runs with an engine.
func (l *lab) asking(engines Engines) *asker {
	l.t.Helper()
	l.run(engines, func(o *Options) { o.SnapshotMetadataAddress = "[127.0.0.1]:0" })
	a := &asker{lab: l}
	l.Eventually(func() *v1alpha1.SnapshotMetadataServer {
		a.server = l.nvmfNode().Status.SnapshotMetadata
		return a.server
	}, patience, interval).ShouldNot(BeNil())
	a.web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true,
		VerifyConnection: func(c tls.ConnectionState) error {
			sum := sha256.Sum256(c.PeerCertificates[0].RawSubjectPublicKeyInfo)
			l.Expect(hex.EncodeToString(sum[:])).To(Equal(a.server.PublicKeySHA256))
			return nil
		},
	}}}
	account := l.name(0)
	a.token = l.tokenOf(account, v1alpha1.AgentAudience)
	l.allow(account, rbacv1.PolicyRule{APIGroups: []string{"weft.storage"}, Resources: []string{"nvmfsnapshots/blocks"}, Verbs: []string{"get"}})
	return a
}

// ask for something; the answer's status and text.
func (a *asker) ask(method, address, token string) (int, string) {
	a.t.Helper()
	request, err := http.NewRequestWithContext(a.t.Context(), method, address, nil)
	a.Expect(err).NotTo(HaveOccurred())
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := a.web.Do(request)
	a.Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(answer.Body)
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(answer.Body.Close()).To(Succeed())
	return answer.StatusCode, string(text)
}

// blocks of a snapshot.
func (a *asker) blocks(n int, query ...string) (int, string) {
	a.t.Helper()
	values, err := url.ParseQuery(strings.Join(query, "&"))
	a.Expect(err).NotTo(HaveOccurred())
	return a.ask(http.MethodGet, a.server.BlocksURL(a.name(n), values), a.token)
}

// listed blocks of a snapshot.
func (a *asker) listed(n int, query ...string) []v1alpha1.BlockRange {
	a.t.Helper()
	status, text := a.blocks(n, query...)
	a.Expect(status).To(Equal(http.StatusOK), text)
	var all []v1alpha1.BlockRange
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		var is v1alpha1.BlockRange
		a.Expect(json.Unmarshal(lines.Bytes(), &is)).To(Succeed())
		all = append(all, is)
	}
	return all
}

// taken waits for a snapshot of a volume with a trailer.
func (a *asker) taken(n, volume int, change ...func(*v1alpha1.NvmfSnapshot)) {
	a.t.Helper()
	trailer := func(s *v1alpha1.NvmfSnapshot) { s.Spec.Trailer = true }
	a.createSnapshot(n, a.name(volume), append([]func(*v1alpha1.NvmfSnapshot){trailer}, change...)...)
	a.Eventually(func() bool { return a.snapshot(n).Status.Ready }, patience, interval).Should(BeTrue())
}

func ranges(all ...v1alpha1.BlockRange) []v1alpha1.BlockRange {
	return append(all, v1alpha1.BlockRange{End: true})
}

// TestBlocks are counted as pods see them: without the header, and without that of LUKS.
func TestBlocks(t *testing.T) {
	l := newLab(t)
	a := l.asking(func(v1alpha1.Engine) (engine.Engine, error) { return l.target, nil })
	l.create(1, ofSize("1Gi"), withHosts(hostA))
	l.Eventually(func() map[string]string { return l.says(1) }, patience, interval).Should(HaveKeyWithValue("Ready", "True/AsExpected"))
	host, err := l.target.Connect(t.Context(), tcp, l.volume(1).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())
	write := func(at int64) {
		t.Helper()
		_, err := host.WriteAt(id(1), []byte("data"), v1alpha1.HeaderBytes+at)
		l.Expect(err).NotTo(HaveOccurred())
	}
	write(-1 << 20) // in the header
	write(0)
	write(8 << 20)
	a.taken(2, 1)
	const block = enginetest.BlockBytes
	l.Expect(a.listed(2)).To(Equal(ranges(v1alpha1.BlockRange{Bytes: block}, v1alpha1.BlockRange{Offset: 8 << 20, Bytes: block})))
	l.Expect(a.listed(2, "from=5000")).To(Equal(ranges(v1alpha1.BlockRange{Offset: 8 << 20, Bytes: block})))
	l.Expect(a.listed(2, "from=1073741824")).To(Equal(ranges()))

	write(5 << 20)
	write(8 << 20)
	l.change(1, ofSize("2Gi"))
	l.Eventually(func() int64 { return l.volume(1).Status.Size.Value() }, patience, interval).Should(Equal(int64(2 * gib)))
	a.taken(3, 1)
	grown := v1alpha1.BlockRange{Offset: gib, Bytes: gib}
	l.Expect(a.listed(3, "base="+l.name(2))).To(Equal(ranges(v1alpha1.BlockRange{Offset: 5 << 20, Bytes: block}, v1alpha1.BlockRange{Offset: 8 << 20, Bytes: block}, grown)))
	l.Expect(a.listed(3, "base="+l.name(2), "from=1610612736")).To(Equal(ranges(v1alpha1.BlockRange{Offset: 3 * gib / 2, Bytes: gib / 2})))
	l.Expect(a.listed(2, "base="+l.name(3))).To(Equal(ranges(v1alpha1.BlockRange{Offset: 5 << 20, Bytes: block}, v1alpha1.BlockRange{Offset: 8 << 20, Bytes: block})))

	// As the node plugin lays an encrypted volume out.
	a.taken(4, 1, func(s *v1alpha1.NvmfSnapshot) { s.Spec.Encryption = v1alpha1.EncryptionLUKS2 })
	l.Expect(a.listed(4)).To(Equal(ranges(v1alpha1.BlockRange{Offset: 1 << 20, Bytes: block}, v1alpha1.BlockRange{Offset: 4 << 20, Bytes: block})))

	// A volume without a trailer reaches to the end of what is served.
	write(2*gib + v1alpha1.TrailerBytes - block)
	last := v1alpha1.BlockRange{Offset: 2*gib + v1alpha1.TrailerBytes - block, Bytes: block}
	a.taken(7, 1)
	l.Expect(a.listed(7)).NotTo(ContainElement(last))
	a.taken(8, 1, func(s *v1alpha1.NvmfSnapshot) { s.Spec.Trailer = false })
	l.Expect(a.listed(8)).To(ContainElement(last))

	// What cannot be answered.
	l.create(5, ofSize("1Gi"))
	l.Expect(a.listed(3, "uuid="+uuid(3), "base="+l.name(2), "baseUUID="+uuid(2))).NotTo(BeEmpty())
	l.Expect(first(a.blocks(3, "uuid="+uuid(2)))).To(Equal(http.StatusNotFound), "another one of that name")
	l.Expect(first(a.blocks(3, "base="+l.name(2), "baseUUID="+uuid(3)))).To(Equal(http.StatusNotFound))
	l.Expect(first(a.blocks(9))).To(Equal(http.StatusNotFound))
	l.Expect(first(a.blocks(3, "base="+l.name(9)))).To(Equal(http.StatusNotFound))
	l.Expect(first(a.blocks(3, "from=-1"))).To(Equal(http.StatusBadRequest))
	elsewhere := testSnapshot(6, l.name(1))
	elsewhere.Name, elsewhere.Spec.Node, elsewhere.Generation = l.name(6), "elsewhere", 0
	l.Expect(l.admin.Create(t.Context(), elsewhere)).To(Succeed())
	l.Expect(first(a.blocks(6))).To(Equal(http.StatusNotFound), "another node's")
	l.target.FailItem(enginetest.ListBlocks, uuid(3), engine.ErrUnavailable)
	status, text := a.blocks(3)
	l.Expect(status).To(Equal(http.StatusServiceUnavailable), text)
}

func first(status int, _ string) int { return status }

// cutOff fails after the first range.
type cutOff struct{ *enginetest.Engine }

// ListBlocks implements engine.BlockLister.
func (c cutOff) ListBlocks(_ context.Context, _ engine.Blocks, found func(engine.Range) error) error {
	if err := found(engine.Range{Offset: v1alpha1.HeaderBytes, Bytes: 4096}); err != nil {
		return err
	}
	return engine.ErrUnavailable
}

// TestBlocksThatAreNotTold: an engine that fails after it began says so, and one that cannot tell is no failure.
func TestBlocksThatAreNotTold(t *testing.T) {
	l := newLab(t)
	var mu sync.Mutex
	var is engine.Engine = cutOff{l.target}
	a := l.asking(func(v1alpha1.Engine) (engine.Engine, error) {
		mu.Lock()
		defer mu.Unlock()
		return is, nil
	})
	l.create(1, ofSize("1Gi"))
	a.taken(2, 1)
	l.Expect(a.listed(2)).To(HaveExactElements(v1alpha1.BlockRange{Bytes: 4096}, HaveField("Error", ContainSubstring("does not answer"))))
	mu.Lock()
	is = struct{ engine.Engine }{l.target}
	mu.Unlock()
	status, text := a.blocks(2)
	l.Expect(status).To(Equal(http.StatusConflict))
	l.Expect(text).To(ContainSubstring("does not know the written blocks"))
}

// TestBlocksAreForTheController: whoever reaches the node can ask.
func TestBlocksAreForTheController(t *testing.T) {
	l := newLab(t)
	a := l.asking(func(v1alpha1.Engine) (engine.Engine, error) { return l.target, nil })
	l.create(1, ofSize("1Gi"))
	a.taken(2, 1)
	l.Expect(a.listed(2)).To(Equal(ranges()))
	address := a.server.BlocksURL(l.name(2), nil)
	for token, expected := range map[string]int{
		"":                            http.StatusUnauthorized,
		"none":                        http.StatusUnauthorized,
		l.tokenOf(l.name(0)):          http.StatusUnauthorized, // the same account, for the API server
		l.tokenOf(l.name(0), "other"): http.StatusUnauthorized,
		l.tokenOf(l.name(1), v1alpha1.AgentAudience): http.StatusForbidden, // another account
	} {
		status, text := a.ask(http.MethodGet, address, token)
		l.Expect(status).To(Equal(expected), text)
		l.Expect(text).NotTo(ContainSubstring("offset"))
	}
	withBody, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, strings.NewReader("body"))
	l.Expect(err).NotTo(HaveOccurred())
	answer, err := a.web.Do(withBody)
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(answer.Body.Close()).To(Succeed())
	l.Expect(answer.StatusCode).To(Equal(http.StatusBadRequest), "before it is asked who that is")
	l.Expect(first(a.ask(http.MethodPost, address, a.token))).To(Equal(http.StatusMethodNotAllowed))
	l.Expect(first(a.ask(http.MethodGet, "https://"+a.server.Address+"/metrics", a.token))).To(Equal(http.StatusNotFound))
}

// TestAgentWithoutItsBlockServer: an address that is in use keeps it from nothing else.
func TestAgentWithoutItsBlockServer(t *testing.T) {
	l := newLab(t)
	var listen net.ListenConfig
	taken, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	l.Expect(err).NotTo(HaveOccurred())
	defer func() { l.Expect(taken.Close()).To(Succeed()) }()
	r := l.run(func(v1alpha1.Engine) (engine.Engine, error) { return l.target, nil }, func(o *Options) { o.SnapshotMetadataAddress = taken.Addr().String() })
	l.Eventually(r.nodeSays, patience, interval).Should(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(l.nvmfNode().Status.SnapshotMetadata).To(BeNil())
}

// TestNoBlocksUnlessAskedFor: nothing listens, and nothing is published.
func TestNoBlocksUnlessAskedFor(t *testing.T) {
	l := newLab(t)
	r := l.run(func(v1alpha1.Engine) (engine.Engine, error) { return l.target, nil }, func(*Options) {})
	l.Eventually(r.nodeSays, patience, interval).Should(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(l.nvmfNode().Status.SnapshotMetadata).To(BeNil())
}
