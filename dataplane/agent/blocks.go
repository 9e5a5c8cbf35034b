// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/serving"
)

const (
	// mostBlockLists are told at a time, to those who are among mostAdmitted at a time of whom it is asked whether they
	// may have them. More than mostCallers connections wait.
	mostBlockLists, mostAdmitted, mostCallers = 8, 32, 256
	// admitPatience is how long the API server may take to say who somebody is.
	admitPatience = 10 * time.Second
	// blocksPatience is how long a reader may take for what is buffered: it reads the blocks meanwhile.
	blocksPatience = 10 * time.Minute
	// reviewQPS bounds what anybody who reaches the server can have the API server be asked. The agent's other requests
	// do not wait for these.
	reviewQPS = 20
)

// blockServer lists the blocks of this node's snapshots for whom the API server allows it.
type blockServer struct {
	node    string
	objects client.Reader // live: what the CSI controller knows of, the cache may not have seen
	reviews kubernetes.Interface
	engines Engines
	// places of lists, and of those who wait to be admitted.
	places, waiting chan struct{}
}

// isOwn tells whether an address is a port of one address.
func isOwn(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	own, err := netip.ParseAddr(host)
	return err == nil && !own.IsUnspecified()
}

// newBlockServer listens with a new key, and returns what is published about the server. Both are nil if no server is
// wanted, or its address cannot be listened on: volumes are served without it.
func newBlockServer(m manager.Manager, o Options) (*manager.Server, *v1alpha1.SnapshotMetadataServer, error) {
	if o.SnapshotMetadataAddress == "" {
		return nil, nil, nil
	}
	fail := func(err error) (*manager.Server, *v1alpha1.SnapshotMetadataServer, error) {
		return nil, nil, fmt.Errorf("serve the blocks of snapshots: %w", err)
	}
	config := rest.CopyConfig(m.GetConfig())
	config.RateLimiter, config.QPS, config.Burst = nil, reviewQPS, 2*reviewQPS
	reviews, err := kubernetes.NewForConfigAndClient(config, m.GetHTTPClient())
	if err != nil {
		return fail(err)
	}
	certificate, err := serving.SelfSigned(o.NodeName)
	if err != nil {
		return fail(err)
	}
	listener, err := net.Listen("tcp", o.SnapshotMetadataAddress) //nolint:noctx // it is closed with the manager
	if err != nil {
		m.GetLogger().Error(err, "Cannot list the blocks of snapshots; restart the agent when the address is free")
		return nil, nil, nil
	}
	b := &blockServer{
		node: o.NodeName, objects: m.GetAPIReader(), reviews: reviews, engines: o.Engines,
		places: make(chan struct{}, mostBlockLists), waiting: make(chan struct{}, mostAdmitted),
	}
	mux := http.NewServeMux()
	mux.HandleFunc(v1alpha1.BlocksPattern, b.serve)
	patience, sum := 5*time.Second, sha256.Sum256(certificate.Leaf.RawSubjectPublicKeyInfo)
	return &manager.Server{
		Name:            "blocks",
		Server:          &http.Server{Handler: mux, ReadTimeout: patience, WriteTimeout: blocksPatience, IdleTimeout: patience, MaxHeaderBytes: 64 << 10},
		Listener:        tls.NewListener(netutil.LimitListener(listener, mostCallers), &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}),
		ShutdownTimeout: &patience,
	}, &v1alpha1.SnapshotMetadataServer{Address: listener.Addr().String(), PublicKeySHA256: hex.EncodeToString(sum[:])}, nil
}

// serve one list. Until it begins, what fails is a status; then it is the list's last line.
func (b *blockServer) serve(w http.ResponseWriter, r *http.Request) {
	snapshot, query := r.PathValue(v1alpha1.BlocksSnapshot), r.URL.Query()
	if r.ContentLength != 0 {
		refuse(w, fmt.Errorf("%w: a request has no body", engine.ErrInvalid))
		return
	}
	if err := b.admit(r.Context(), r.Header.Get("Authorization"), snapshot); err != nil {
		refuse(w, err)
		return
	}
	select {
	case b.places <- struct{}{}:
		defer func() { <-b.places }()
	default:
		refuse(w, fmt.Errorf("%w: this node lists the blocks of %d other snapshots", engine.ErrBusy, mostBlockLists))
		return
	}
	from, err := strconv.ParseInt(cmp.Or(query.Get(v1alpha1.BlocksFrom), "0"), 10, 64)
	if err != nil || from < 0 {
		refuse(w, fmt.Errorf("%w: %s is %q", engine.ErrInvalid, v1alpha1.BlocksFrom, query.Get(v1alpha1.BlocksFrom)))
		return
	}
	buffered := bufio.NewWriterSize(patient{w, http.NewResponseController(w)}, 64<<10)
	lines, begun := json.NewEncoder(buffered), false
	err = b.list(r.Context(), snapshot, query, from, func(is v1alpha1.BlockRange) error {
		begun = true
		return lines.Encode(is)
	})
	switch {
	case err == nil:
		err = lines.Encode(v1alpha1.BlockRange{End: true})
	case !begun:
		refuse(w, err)
		return
	default:
		err = errors.Join(err, lines.Encode(v1alpha1.BlockRange{Error: err.Error()}))
	}
	if err := errors.Join(err, buffered.Flush()); err != nil {
		log.FromContext(r.Context()).Error(err, "The list of a snapshot's blocks was not told to its end", "snapshot", snapshot)
	}
}

// patient writer: it fails when its reader does not read.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write implements io.Writer.
func (p patient) Write(data []byte) (int, error) {
	if err := p.control.SetWriteDeadline(time.Now().Add(blocksPatience)); err != nil {
		return 0, err
	}
	return p.ResponseWriter.Write(data)
}

// What is refused by who asks.
var (
	errNobody    = errors.New("a token for the audience " + v1alpha1.AgentAudience + " is required")
	errForbidden = errors.New("forbidden")
)

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	for is, code := range map[error]int{
		errNobody: http.StatusUnauthorized, errForbidden: http.StatusForbidden, engine.ErrInvalid: http.StatusBadRequest,
		engine.ErrNotFound: http.StatusNotFound, engine.ErrUnsupported: http.StatusConflict,
	} {
		if errors.Is(err, is) {
			status = code
		}
	}
	http.Error(w, err.Error(), status)
}

// admit whom the API server knows by a token for agents alone, and lets get the blocks of the snapshot.
func (b *blockServer) admit(ctx context.Context, authorization, snapshot string) error {
	token, ok := strings.CutPrefix(authorization, "Bearer ")
	if !ok {
		return errNobody
	}
	select {
	case b.waiting <- struct{}{}:
		defer func() { <-b.waiting }()
	default:
		return fmt.Errorf("%w: %d others wait to be admitted", engine.ErrBusy, mostAdmitted)
	}
	ctx, cancel := context.WithTimeout(ctx, admitPatience)
	defer cancel()
	who, err := b.reviews.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{v1alpha1.AgentAudience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%w: who asks is not known: %w", engine.ErrUnavailable, err)
	}
	if !who.Status.Authenticated || !slices.Contains(who.Status.Audiences, v1alpha1.AgentAudience) {
		return errNobody
	}
	user := who.Status.User
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Verb: "get",
			Resource: "nvmfsnapshots", Subresource: v1alpha1.BlocksResource, Name: snapshot,
		},
	}
	for key, value := range user.Extra {
		spec.Extra[key] = authorizationv1.ExtraValue(value)
	}
	may, err := b.reviews.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%w: what %s may is not known: %w", engine.ErrUnavailable, user.Username, err)
	}
	if !may.Status.Allowed {
		return fmt.Errorf("%w: %s may not get nvmfsnapshots/%s", errForbidden, user.Username, v1alpha1.BlocksResource)
	}
	return nil
}

// list the blocks of a snapshot from a byte of its data on, as pods see them. What the base is too small for differs.
func (b *blockServer) list(ctx context.Context, name string, query url.Values, from int64, found func(v1alpha1.BlockRange) error) error {
	snap, err := b.snapshot(ctx, name, query.Get(v1alpha1.BlocksUUID))
	if err != nil {
		return err
	}
	size := snap.SeenBytes()
	of, shared := engine.Blocks{Pool: snap.Status.Device, Snapshot: engine.ID(snap.Spec.UUID)}, size
	if baseName := query.Get(v1alpha1.BlocksBase); baseName != "" {
		base, err := b.snapshot(ctx, baseName, query.Get(v1alpha1.BlocksBaseUUID))
		if err != nil {
			return err
		}
		if base.Status.Device != snap.Status.Device {
			return fmt.Errorf("%w: snapshots %s and %s are on different drives", engine.ErrUnsupported, baseName, name)
		}
		of.Base, shared = engine.ID(base.Spec.UUID), min(size, base.SeenBytes())
	}
	lister, err := b.lister(ctx)
	if err != nil {
		return err
	}
	begins := v1alpha1.HeaderBytes + snap.Spec.Encryption.HeaderBytes()
	of.Within = engine.Range{Offset: begins + from, Bytes: max(0, shared-from)}
	err = lister.ListBlocks(ctx, of, func(r engine.Range) error {
		return found(v1alpha1.BlockRange{Offset: r.Offset - begins, Bytes: r.Bytes})
	})
	if grown := max(shared, from); err == nil && grown < size {
		err = found(v1alpha1.BlockRange{Offset: grown, Bytes: size - grown})
	}
	return err
}

// lister is the node's engine.
func (b *blockServer) lister(ctx context.Context) (engine.BlockLister, error) {
	node := &v1alpha1.NvmfNode{}
	if err := b.objects.Get(ctx, client.ObjectKey{Name: b.node}, node); err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	if node.Spec.Plan == nil {
		return nil, fmt.Errorf("%w: node %s has no plan", engine.ErrUnavailable, b.node)
	}
	e, err := b.engines(node.Spec.Plan.Engine)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	lister, ok := e.(engine.BlockLister)
	if !ok {
		return nil, fmt.Errorf("%w: engine %s does not know the written blocks", engine.ErrUnsupported, node.Spec.Plan.Engine)
	}
	return lister, nil
}

// snapshot of this node that was taken. With another UUID it is another one.
func (b *blockServer) snapshot(ctx context.Context, name, uuid string) (*v1alpha1.NvmfSnapshot, error) {
	snap := &v1alpha1.NvmfSnapshot{}
	err := b.objects.Get(ctx, client.ObjectKey{Name: name}, snap)
	switch {
	case apierrors.IsNotFound(err), err == nil && (snap.Spec.Node != b.node || uuid != "" && snap.Spec.UUID != uuid):
		return nil, fmt.Errorf("%w: snapshot %s is not on node %s", engine.ErrNotFound, name, b.node)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	case !snap.Status.Ready || snap.Status.Size == nil || snap.Status.Device == "":
		return nil, fmt.Errorf("%w: snapshot %s is not ready", engine.ErrBusy, name)
	}
	return snap, nil
}
