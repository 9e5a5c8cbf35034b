// SPDX-License-Identifier: Apache-2.0

// Package cli is kubectl weft. What it says of a target and a node, it asks the functions that the operator itself
// asks.
package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// defaultNamespace of weft's own pods, as in the instructions for installing.
const defaultNamespace = "weft-system"

// Exit codes.
const (
	// CodeError: the question could not be answered.
	CodeError = 1
	// CodeCannotHold: a node cannot hold a target.
	CodeCannotHold = 2
	// CodeUnwell: something is not well.
	CodeUnwell = 2
	// CodeUnknown: no node was found that cannot, but it cannot be said of all: no node matches, or one has not
	// reported.
	CodeUnknown = 3
)

// An ExitError ends the program with a code after everything was printed.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// cluster finds the API server.
type cluster struct{ kubeconfig, context string }

// Command is the whole program.
func Command(version string) *cobra.Command {
	var at cluster
	cmd := commands(&at, version)
	completer{client: at.client, namespace: at.namespaceOf, contexts: at.contexts}.addCompletions(cmd)
	return cmd
}

// commands of the program, which find their cluster by its flags.
func commands(at *cluster, version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "kubectl-weft",
		Short:         "Manage weft storage: plan targets, inspect and report their state, move and recover volumes, and rotate their keys",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl weft"},
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&at.kubeconfig, "kubeconfig", "", "path to the kubeconfig file (default $KUBECONFIG or ~/.kube/config)")
	flags.StringVar(&at.context, "context", "", "kubeconfig context to use (default: the current context)")
	colourFlag(cmd)
	now := clock.RealClock{}
	cmd.AddCommand(planCommand(at), statusCommand(at, now), checkCommand(at, version), deleteCommand(at), dropCommand(at),
		cordonCommand(at), uncordonCommand(at), checkImageCommand(at),
		moveCommand(at), rotateCommand(at), drainCommand(at), retireCommand(at), rebalanceCommand(at), recoverCommand(at))
	cmd.AddCommand(volumeCommand(at, now), volumesCommand(at, now), poolsCommand(at, now), drivesCommand(at, now), snapshotsCommand(at, now),
		topCommand(at, at.top), reportCommand(at, version, now))
	return cmd
}

// takes exactly n arguments, and says otherwise how to write the command.
func takes(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s; usage: %s", text.Plural(len(args), "argument"), cmd.UseLine())
		}
		return nil
	}
}

// unread says what to do about a cluster that could not be read.
func unread(err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("weft is not installed in this cluster: install it first (docs/install.md), or use kubectl weft plan --inventory FILE, which needs no cluster: %w", err)
	}
	return err
}

// config is the kubeconfig with the context that was chosen.
func (c *cluster) config() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context})
}

// contexts of the kubeconfig, by name.
func (c *cluster) contexts() ([]string, error) {
	raw, err := c.config().RawConfig()
	return slices.Collect(maps.Keys(raw.Contexts)), err
}

// client of the API server. It knows what weft has, Nodes, PersistentVolumes and their claims, without asking the
// server first what kinds there are.
func (c *cluster) client() (client.Client, error) {
	config, err := c.config().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is configured: set KUBECONFIG or --kubeconfig, or use kubectl weft plan --inventory FILE, which needs no cluster")
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	scheme, err := knownKinds()
	if err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), meta.RESTScopeNamespace)
	mapper.Add(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PersistentVolume"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), meta.RESTScopeNamespace)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	mapper.Add(storagev1.SchemeGroupVersion.WithKind("CSIDriver"), meta.RESTScopeRoot)
	mapper.Add(storagev1.SchemeGroupVersion.WithKind("StorageClass"), meta.RESTScopeRoot)
	addKindsOfUsers(mapper)
	for _, kind := range []string{"NvmfTarget", "NvmfNode", "NvmfVolume", "NvmfReplica", "NvmfSnapshot", "NvmfMirror"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
}

// knownKinds are those that the commands read.
func knownKinds() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(appsv1.AddToScheme(scheme), authorizationv1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), corev1.AddToScheme(scheme), storagev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
}
