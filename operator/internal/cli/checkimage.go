// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/capability"
)

// spdkPage says how to make an image that has labels.
const spdkPage = "docs/tasks/bring-your-own-spdk.md"

func checkImageCommand(at *cluster) *cobra.Command {
	var insecure bool
	platform := "linux/" + runtime.GOARCH
	var format *output
	cmd := &cobra.Command{
		Use:   "check-image [IMAGE...]",
		Short: "Check which features of SPDK a target image has, of those that weft needs",
		Long: `Check which features of SPDK an image of target pods has, of those that weft needs, from the labels that
make image-target NVMF_TGT=... puts on it. IMAGE is an archive of docker save, a directory with an OCI layout, or the name of
an image in a registry, for which the credentials of docker login are used. Nothing of the image is run.

Without IMAGE, check the SPDK targets that run in the cluster, from what their agents report. What an agent does not report is
unknown: check the image for it.

Exit codes: 0 all required features are there; 1 error; 2 a required feature is missing; 3 none is missing, but at least one
is unknown.`,
		Example: `  kubectl weft check-image registry.example/weft-target:26.05
  kubectl weft check-image dist/weft-target.tar
  kubectl weft check-image`,
		RunE: func(cmd *cobra.Command, args []string) error {
			checked, err := checkImages(cmd.Context(), at, args, platform, insecure)
			if err != nil {
				return err
			}
			done, err := format.encode(cmd.OutOrStdout(), map[string]any{"images": checked})
			if err == nil && !done {
				err = printImages(cmd.OutOrStdout(), checked)
			}
			if code := codeOf(checked); err == nil && code != 0 {
				return &ExitError{code}
			}
			return err
		},
	}
	format = outputFlag(cmd)
	cmd.Flags().StringVar(&platform, "platform", platform, "platform of an image that has several")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "reach the registry over plain HTTP")
	return cmd
}

// checkedImage is what is known of the nvmf_tgt in one image, or in one node's target pod.
type checkedImage struct {
	// Image that was looked at; empty of a running target.
	Image string `json:"image,omitempty"`
	// Node whose target was looked at.
	Node string `json:"node,omitempty"`
	// Labelled: the image says what it has.
	Labelled     bool                 `json:"labelled"`
	Version      string               `json:"version,omitempty"`
	Transports   []string             `json:"transports,omitempty"`
	Sockets      []string             `json:"sockets,omitempty"`
	IOUring      *bool                `json:"ioUring,omitempty"`
	BdevModules  []string             `json:"bdevModules,omitempty"`
	Architecture string               `json:"architecture,omitempty"`
	Features     []capability.Finding `json:"features"`
}

func checked(can *capability.Capabilities) checkedImage {
	c := checkedImage{Version: can.Version, Transports: can.Transports, Features: can.Check()}
	if !can.Partial {
		c.Sockets, c.BdevModules = can.Sockets, can.BdevModules()
		if can.Methods != nil && can.Sockets != nil {
			c.IOUring = new(can.IOUring())
		}
	}
	return c
}

func checkImages(ctx context.Context, at *cluster, images []string, platform string, insecure bool) ([]checkedImage, error) {
	if len(images) == 0 {
		api, err := at.client()
		if err != nil {
			return nil, err
		}
		return checkTargets(ctx, api)
	}
	var all []checkedImage
	for _, ref := range images {
		config, err := imageConfig(ctx, ref, platform, insecure)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", ref, err)
		}
		can := capability.OfLabels(config.Config.Labels)
		c := checked(can)
		c.Image, c.Architecture, c.Labelled = ref, config.Architecture, len(can.Labels()) > 0
		all = append(all, c)
	}
	return all, nil
}

// imageConfig of an archive, a layout or an image in a registry.
func imageConfig(ctx context.Context, ref, platform string, insecure bool) (*v1.ConfigFile, error) {
	wanted, err := v1.ParsePlatform(platform)
	if err != nil {
		return nil, err
	}
	var image v1.Image
	switch info, statErr := os.Stat(ref); {
	case statErr == nil && info.IsDir():
		image, err = imageOfLayout(ref, *wanted)
	case statErr == nil:
		if image, err = tarball.ImageFromPath(ref, nil); err != nil {
			err = fmt.Errorf("it is not an archive as docker save writes it: %w", err)
		}
	case !errors.Is(statErr, fs.ErrNotExist):
		return nil, statErr
	default:
		image, err = imageOfRegistry(ctx, ref, *wanted, insecure)
	}
	if err != nil {
		return nil, err
	}
	return image.ConfigFile()
}

// imageOfLayout is the only image of an OCI layout, or that of the platform.
func imageOfLayout(dir string, platform v1.Platform) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	images, err := imagesOf(index)
	if err != nil {
		return nil, err
	}
	if len(images) == 1 {
		return images[0], nil
	}
	for _, image := range images {
		config, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		if config.OS == platform.OS && config.Architecture == platform.Architecture {
			return image, nil
		}
	}
	return nil, fmt.Errorf("none of the layout's %d images is for %s; choose another with --platform", len(images), platform.String())
}

// imagesOf an index, and of the indexes in it.
func imagesOf(index v1.ImageIndex) ([]v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var images []v1.Image
	for _, d := range manifest.Manifests {
		switch {
		case d.MediaType.IsIndex():
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			more, err := imagesOf(inner)
			if err != nil {
				return nil, err
			}
			images = append(images, more...)
		case d.MediaType.IsImage() && (d.Platform == nil || d.Platform.OS != "unknown"): // that is an attestation
			image, err := index.Image(d.Digest)
			if err != nil {
				return nil, err
			}
			images = append(images, image)
		}
	}
	return images, nil
}

func imageOfRegistry(ctx context.Context, ref string, platform v1.Platform, insecure bool) (v1.Image, error) {
	var options []name.Option
	if insecure {
		options = append(options, name.Insecure)
	}
	named, err := name.ParseReference(ref, options...)
	if err != nil {
		return nil, fmt.Errorf("it is neither a file, nor a directory, nor the name of an image: %w", err)
	}
	return remote.Image(named, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithPlatform(platform))
}

// checkTargets that run on nodes, from what their agents report.
func checkTargets(ctx context.Context, api client.Reader) ([]checkedImage, error) {
	var nodes v1alpha1.NvmfNodeList
	if err := api.List(ctx, &nodes); err != nil {
		return nil, unread(fmt.Errorf("list NvmfNodes: %w", err))
	}
	var all []checkedImage
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if e := n.Status.Engine; e == nil || e.Type != v1alpha1.EngineSPDK || e.Version == "" {
			continue
		}
		c := checked(reported(n))
		c.Node, c.Labelled = n.Name, true
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("no SPDK target runs in this cluster; name an image")
	}
	return all, nil
}

// reported is what an agent knows of its target: the release, and the transports that it serves over. Where it has
// carried out all of the plan, it has made the calls, those for the sockets among them.
func reported(n *v1alpha1.NvmfNode) *capability.Capabilities {
	can := &capability.Capabilities{Version: n.Status.Engine.Version, Transports: []string{}, Partial: true}
	for _, t := range n.Status.Engine.Transports {
		can.Transports = append(can.Transports, string(t))
	}
	if meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.ConditionReady) {
		can.Methods, can.Sockets = capability.Methods(), []string{capability.SockPosix}
	}
	return can
}

// codeOf is the exit code.
func codeOf(images []checkedImage) int {
	code := 0
	for _, i := range images {
		for _, f := range i.Features {
			switch {
			case f.Required && f.Has == capability.No:
				return CodeUnwell
			case f.Required && f.Has == capability.Unknown:
				code = CodeUnknown
			}
		}
	}
	return code
}

func printImages(out io.Writer, images []checkedImage) error {
	t := newTable(out)
	for n, i := range images {
		if n > 0 {
			t.line("")
		}
		i.print(t)
	}
	return t.err
}

func (i checkedImage) print(t *table) {
	about := []string{}
	if i.Version != "" {
		about = append(about, "SPDK "+i.Version)
	}
	if i.Architecture != "" {
		about = append(about, i.Architecture)
	}
	if i.Node != "" {
		t.line("Target on node %s: %s", i.Node, strings.Join(about, ", "))
	} else {
		t.line("Image %s: %s", i.Image, strings.Join(about, ", "))
	}
	for _, list := range []struct {
		name  string
		words []string
	}{{"transports", i.Transports}, {"socket implementations", i.Sockets}, {"bdev modules", i.BdevModules}} {
		if list.words != nil {
			t.line("%s: %s", list.name, orNone(list.words))
		}
	}
	if i.IOUring != nil {
		t.line("io_uring: %s (weft does not use it)", strings.ToLower(yes(*i.IOUring)))
	}
	if !i.Labelled {
		t.line("The image has no labels of weft, so nothing is known of its SPDK: see %s.", spdkPage)
		return
	}
	t.line("")
	rows := [][]string{{"FEATURE", "NEEDED", "HAS", "DETAIL"}}
	for _, f := range i.Features {
		detail := f.Detail
		if f.Has == capability.No {
			detail = strings.TrimPrefix(detail+"; without it, "+f.Without, "; ")
		}
		rows = append(rows, []string{f.Name, map[bool]string{true: "required", false: "optional"}[f.Required], strings.ToLower(string(f.Has)), orDash(detail)})
	}
	t.columns(rows)
}
