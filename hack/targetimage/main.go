// SPDX-License-Identifier: Apache-2.0

// Command targetimage makes the image of target pods from an nvmf_tgt that this machine has, without a container
// engine. See docs/tasks/bring-your-own-spdk.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/hack/imagefile"
	"github.com/weft-storage/weft/internal/capability"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT) //nolint:forbidigo // this is main
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "targetimage:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func command() *cobra.Command {
	var o imagefile.TargetOptions
	var ref, output string
	var push bool
	cmd := &cobra.Command{
		Use:   "targetimage NVMF_TGT",
		Short: "Make the image of target pods from an nvmf_tgt of this machine",
		Long: `Make the image of target pods from an nvmf_tgt of this machine, with its shared libraries, the plug-ins for RDMA
devices, and util-linux's blkid, all from this machine.

The nvmf_tgt is started once, with the libraries of the image, to ask what it can do. The answer becomes the image's labels.
It uses no PCI device and no hugepages.`,
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			o.Program = args[0]
			o.Note = func(format string, args ...any) { _, _ = fmt.Fprintf(cmd.ErrOrStderr(), "note: "+format+"\n", args...) }
			image, can, err := imagefile.Target(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
				return err
			}
			if err := image.Write(output, ref); err != nil {
				return err
			}
			if err := tell(out, image, can); err != nil {
				return err
			}
			if push {
				return upload(cmd.Context(), out, image, ref)
			}
			_, err = fmt.Fprintf(out, "\nwrote %s in %s; load it with docker load -i or ctr -n k8s.io images import\n", ref, output)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Launcher, "launch", "", "path of weft-launch for the same architecture")
	flags.StringVar(&o.Version, "version", "", "version of weft-launch, for the image's labels")
	flags.StringVar(&o.Revision, "revision", "", "commit of weft-launch, for the image's labels")
	flags.StringVar(&ref, "image", "", "name of the image, with a tag")
	flags.StringVar(&output, "output", "dist/weft-target.tar", "archive to write, as docker save does")
	flags.BoolVar(&push, "push", false, "also push the image to its registry, with the credentials of docker login")
	for _, name := range []string{"launch", "image"} {
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}

// tell what the image can do, sorted, without the methods.
func tell(out io.Writer, image imagefile.Image, can *capability.Capabilities) error {
	labels := can.Labels()
	delete(labels, capability.LabelMethods)
	var lines []string
	for label, value := range labels {
		lines = append(lines, fmt.Sprintf("%s=%s\n", label, value))
	}
	slices.Sort(lines)
	for _, line := range lines {
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
	}
	for _, f := range can.Check() {
		if f.Has == capability.Yes {
			continue
		}
		need := "lacks"
		if f.Required {
			need = "LACKS, and weft needs it"
		}
		if _, err := fmt.Fprintf(out, "%s: %s (without it, %s)\n", need, f.Name, f.Without); err != nil {
			return err
		}
	}
	built, err := image.Build()
	if err != nil {
		return err
	}
	digest, err := built.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "digest %s\n", digest)
	return err
}

// upload an image to its registry.
func upload(ctx context.Context, out io.Writer, image imagefile.Image, ref string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	built, err := image.Build()
	if err != nil {
		return err
	}
	digest, err := built.Digest()
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	// Nodes keep what they pulled: a tag that moves is two images under one name.
	have, err := remote.Head(tag, options...)
	var answer *transport.Error
	switch {
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
	case err != nil:
		return fmt.Errorf("look for %s: %w", ref, err)
	case have.Digest != digest:
		return fmt.Errorf("%s is in the registry with digest %s, and this image has %s; choose another tag", ref, have.Digest, digest)
	}
	if err := remote.Write(tag, built, options...); err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	_, err = fmt.Fprintf(out, "pushed %s\n", ref)
	return err
}
