// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/lab"
	"github.com/weft-storage/weft/test/e2e/suite"
)

// benchMemoryMiB is the memory of the lab's nodes: a real SPDK target and its pools fit beside a kubelet.
const benchMemoryMiB = 3072

type benchOptions struct {
	benchSetup

	size, mode, hugepages string
	kubeconfig, out       string
	// target is the nvmf_tgt of the lab's SPDK targets.
	target string
}

func newBenchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure volumes with fio beside a local drive: in the lab, or with --kubeconfig in a cluster that has weft",
		Long: `Measure block volumes with fio, from a pod to the drive, beside a local drive: the kernel's target, and SPDK's with weft's plan
and with SPDK's own default buffers. Rounds alternate between the volume and the local drive, with caches dropped before each.

Without --kubeconfig, it starts the lab. With it, name two nodes of a cluster that has weft, an image with fio, and drives that are
blank. What is on the drives is lost.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logf.SetLogger(logr.Discard())
			return o.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of a cluster that has weft; empty for the lab")
	flags.StringVar(&o.StorageNode, "storage-node", "", "node that serves")
	flags.StringVar(&o.ClientNode, "client-node", "", "node of the pod")
	flags.StringVar(&o.NvmetDrive, "nvmet-drive", "", "blank drive of the storage node for the kernel's target: its name in /dev/disk/by-id; empty leaves the engine out")
	flags.StringVar(&o.SPDKDrive, "spdk-drive", "", "another one, for SPDK's target")
	flags.StringVar(&o.LocalNode, "local-node", "", "node with the local drive (default: the client node)")
	flags.StringVar(&o.LocalDrive, "local-drive", "", "blank drive to compare with, as a path in /dev/disk/by-id; what is on it is lost")
	flags.StringVar(&o.Image, "image", "", "image with fio, a shell, coreutils and util-linux")
	flags.IntVar(&o.Rounds, "rounds", 3, "rounds of measurements")
	flags.IntVar(&o.Seconds, "seconds", 0, "seconds of each measurement (default 30, in the lab 6)")
	flags.StringVar(&o.size, "size", "", "size of the volume (default 16Gi, in the lab 64Mi)")
	flags.Int32Var(&o.Cores, "cores", 0, "cores of an SPDK target (default 2, in the lab 1)")
	flags.StringVar(&o.mode, "mode", "", "cores.mode of an SPDK target (default Dynamic, in the lab Interrupt)")
	flags.StringVar(&o.hugepages, "hugepages", "", "memory.hugepages of an SPDK target (default 2Mi, in the lab Disabled)")
	flags.StringVar(&o.target, "spdk-target", os.Getenv("WEFT_SPDK_TARGET"), "real nvmf_tgt for the lab; without one, SPDK is left out there")
	flags.StringVar(&o.out, "out", "", "file for all measurements, as JSON; dist/bench-data.json in the repository if empty")
	return cmd
}

func (o benchOptions) run(ctx context.Context) error {
	repo, err := build.Repo()
	if err != nil {
		return err
	}
	cluster, done, err := o.cluster(ctx, repo)
	if err != nil {
		return err
	}
	defer done()
	if o.Size, err = resource.ParseQuantity(o.size); err != nil {
		return fmt.Errorf("--size %q: %w", o.size, err)
	}
	o.Mode, o.Hugepages = v1alpha1.CoreMode(o.mode), v1alpha1.Hugepages(o.hugepages)
	report, err := measure(ctx, cluster, o.Defaults(), os.Stderr)
	// What was measured before a failure took long.
	return errors.Join(o.keep(repo, report), err)
}

// keep a report in its file, and print it.
func (o benchOptions) keep(repo string, report Report) error {
	if len(report.Variants) == 0 {
		return nil
	}
	out := o.out
	if out == "" {
		out = filepath.Join(repo, "dist", "bench-data.json")
	}
	data, err := json.MarshalIndent(report, "", " ")
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(out), 0o755), os.WriteFile(out, append(data, '\n'), 0o644)); err != nil {
		return err
	}
	return report.Write(os.Stdout)
}

// cluster to measure on, and what ends the use of it.
func (o *benchOptions) cluster(ctx context.Context, repo string) (*suite.Cluster, func(), error) {
	if o.kubeconfig == "" {
		return o.lab(ctx)
	}
	for flag, value := range map[string]string{
		"storage-node": o.StorageNode, "client-node": o.ClientNode, "local-drive": o.LocalDrive, "image": o.Image,
	} {
		if value == "" {
			return nil, nil, fmt.Errorf("--%s is required with --kubeconfig", flag)
		}
	}
	o.or("16Gi", "", "")
	cluster, err := suite.Open(o.kubeconfig, repo)
	return cluster, func() {}, err
}

// or fills in what was not given.
func (o *benchOptions) or(size, mode, hugepages string) {
	for given, otherwise := range map[*string]string{&o.size: size, &o.mode: mode, &o.hugepages: hugepages} {
		if *given == "" {
			*given = otherwise
		}
	}
}

// lab with weft. Its second node's drive is the local one.
func (o *benchOptions) lab(ctx context.Context) (*suite.Cluster, func(), error) {
	run, err := suite.StartWith(ctx, os.Stderr, lab.Options{MemoryMiB: benchMemoryMiB})
	if err != nil {
		return nil, nil, err
	}
	nodes := run.Lab.Nodes()
	if len(nodes) < 2 {
		return nil, run.Lab.Close, fmt.Errorf("this needs two nodes and the lab has %d; run make lab-down first", len(nodes))
	}
	o.StorageNode, o.ClientNode, o.LocalNode = nodes[0], nodes[1], nodes[1]
	o.NvmetDrive = lab.DriveID(nodes[0], 0)
	o.LocalDrive = "/dev/disk/by-id/" + lab.DriveID(nodes[1], 0)
	o.Image, o.PullNever = build.FioImage, true
	o.or("64Mi", string(v1alpha1.CoresInterrupt), string(v1alpha1.HugepagesDisabled))
	if o.Seconds == 0 {
		o.Seconds = 6
	}
	if o.Cores == 0 {
		o.Cores = 1
	}
	steps := []suite.Step{
		{Name: "build weft's image and load it into the nodes", Do: run.LoadWeft},
		{Name: "build an image with fio and load it into the nodes", Do: run.LoadFio},
		{Name: "helm install weft", Do: func(ctx context.Context) error { return run.Install(ctx) }},
	}
	if o.target != "" {
		o.SPDKDrive = lab.DriveID(nodes[0], 1)
		steps = append(steps, suite.Step{Name: "make the image of SPDK's target and load it into the nodes", Do: func(ctx context.Context) error {
			return run.LoadTarget(ctx, o.target)
		}})
	} else {
		fmt.Fprintln(os.Stderr, "SPDK is left out: name a real nvmf_tgt with --spdk-target")
	}
	for _, s := range steps {
		if err := step(ctx, s); err != nil {
			return nil, run.Lab.Close, run.Explain(ctx, err)
		}
	}
	return run.Cluster, run.Lab.Close, nil
}
