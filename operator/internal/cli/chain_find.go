// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// Prefixes that say of what kind an argument is.
const (
	claimPrefix      = "pvc/"
	persistentPrefix = "pv/"
	replicaPrefix    = "nr/"
	nqnPrefix        = "nqn."
)

// named is what an argument of `kubectl weft volume` names. The rest of the chain follows from the one that is set.
type named struct {
	claim          client.ObjectKey
	persistent, nv string
	// note on the argument, such as that it is an NQN of the past.
	note string
}

// find what an argument names: a claim, a PersistentVolume, an NvmfVolume, an NvmfReplica, an NQN, a UUID, or the path
// of a device in which there is a UUID.
func (f *fleet) find(ctx context.Context, api client.Reader, namespace, arg string) (named, error) {
	if name, ok := strings.CutPrefix(arg, claimPrefix); ok {
		return named{claim: client.ObjectKey{Namespace: namespace, Name: name}}, nil
	}
	if name, ok := strings.CutPrefix(arg, persistentPrefix); ok {
		return named{persistent: name}, nil
	}
	if name, ok := strings.CutPrefix(arg, volumePrefix); ok {
		return named{nv: name}, nil
	}
	if name, ok := strings.CutPrefix(arg, replicaPrefix); ok {
		return f.byReplica(name)
	}
	switch of, name, _ := strings.Cut(arg, "/"); {
	case strings.HasPrefix(arg, nqnPrefix):
		return f.byNQN(arg)
	case strings.HasPrefix(arg, "/"):
		return f.byDevice(arg)
	case name != "":
		return named{claim: client.ObjectKey{Namespace: of, Name: name}}, nil
	}
	return f.byName(ctx, api, namespace, arg)
}

// byName finds a claim, else a PersistentVolume, an NvmfVolume or an NvmfReplica of that name, else a UUID.
func (f *fleet) byName(ctx context.Context, api client.Reader, namespace, name string) (named, error) {
	key := client.ObjectKey{Namespace: namespace, Name: name}
	err := api.Get(ctx, key, &corev1.PersistentVolumeClaim{})
	if err == nil {
		return named{claim: key}, nil
	}
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return named{}, fmt.Errorf("read PersistentVolumeClaim %s/%s: %w", namespace, name, err)
	}
	for _, pv := range f.persistent {
		if pv.Name == name {
			return named{persistent: name}, nil
		}
	}
	if f.volume(name) != nil {
		return named{nv: name}, nil
	}
	if f.replica(name) != nil {
		return f.byReplica(name)
	}
	if len(uuidsIn(name)) > 0 {
		return f.byUUID(name)
	}
	return named{}, fmt.Errorf("%s is neither a PersistentVolumeClaim in namespace %s nor a PersistentVolume, NvmfVolume or NvmfReplica of weft; "+
		"set the namespace of a claim with -n, or write NAMESPACE/NAME", name, namespace)
}

// byReplica finds the volume of a replica, also of one whose object is gone.
func (f *fleet) byReplica(name string) (named, error) {
	if r := f.replica(name); r != nil {
		return named{nv: r.Spec.Volume.Name}, nil
	}
	for i := range f.volumes {
		if memberOf(&f.volumes[i], name) != nil {
			return named{nv: f.volumes[i].Name}, nil
		}
	}
	for i := range f.nodes {
		for _, o := range f.nodes[i].Status.Orphans {
			if o.Kind == v1alpha1.OrphanReplica && o.Name == name {
				return named{}, fmt.Errorf("NvmfReplica %s was deleted, and so was its volume; node %s still stores the data in pool %s; see %s", name, f.nodes[i].Name, o.Device, pageRecover)
			}
		}
	}
	return named{}, fmt.Errorf("NvmfReplica %s not found, and no NvmfVolume lists it; its volume may have been deleted", name)
}

// byNQN finds the volume of a subsystem, or of the host that an attachment made.
func (f *fleet) byNQN(nqn string) (named, error) {
	replica, ok := v1alpha1.ReplicaOfSubsystem(nqn)
	if !ok {
		of, err := f.byUUID(nqn)
		if err != nil {
			return of, fmt.Errorf("no attachment and no subsystem has the NQN %s; an attachment's NQN is used once, so this may be an earlier one", nqn)
		}
		return of, nil
	}
	of, err := f.byReplica(replica)
	if r := f.replica(replica); err == nil && r != nil && r.CurrentSubsystem() != nqn {
		of.note = fmt.Sprintf("The NQN that you asked for is not the current one of NvmfReplica %s: it is of another attachment.", replica)
	}
	return of, err
}

// aUUID as the kernel writes it, with or without dashes.
var aUUID = regexp.MustCompile(`(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}`)

// uuidsIn a text, in lower case and without dashes.
func uuidsIn(s string) []string {
	var found []string
	for _, u := range aUUID.FindAllString(s, -1) {
		found = append(found, strings.ToLower(strings.ReplaceAll(u, "-", "")))
	}
	return found
}

// byUUID finds the one volume that has one of the UUIDs in a text: its own, of a session, attachment or replica, or as
// the NGUID of a namespace.
func (f *fleet) byUUID(s string) (named, error) {
	wanted, found := uuidsIn(s), map[string]bool{}
	has := func(volume string, texts ...string) {
		for _, of := range texts {
			for _, u := range uuidsIn(of) {
				if slices.Contains(wanted, u) {
					found[volume] = true
				}
			}
		}
	}
	for i := range f.volumes {
		v := &f.volumes[i]
		has(v.Name, v.Spec.UUID, v.Spec.Session)
		for _, m := range v.Spec.Members {
			has(v.Name, m.UUID)
		}
		for _, h := range v.Spec.Attachments {
			has(v.Name, h.NQN, h.Attachment)
		}
	}
	for i := range f.replicas {
		r := &f.replicas[i]
		has(r.Spec.Volume.Name, r.Spec.UUID, r.Status.NGUID)
		for _, h := range r.Spec.Hosts {
			has(r.Spec.Volume.Name, h.NQN, h.Attachment)
		}
		for _, h := range r.Status.Hosts {
			has(r.Spec.Volume.Name, h.NQN)
		}
	}
	switch names := slices.Sorted(maps.Keys(found)); len(names) {
	case 0:
		return named{}, fmt.Errorf("no volume, replica or attachment has the UUID in %s", s)
	case 1:
		return named{nv: names[0]}, nil
	default:
		return named{}, fmt.Errorf("%s is of several volumes: %s; specify one of them as %sNAME", s, text.Few(names, maxNamed, ", "), volumePrefix)
	}
}

// byDevice finds the volume of a device by the UUID in its path. What the kernel calls it otherwise, no object records.
func (f *fleet) byDevice(device string) (named, error) {
	if len(uuidsIn(device)) > 0 {
		return f.byUUID(device)
	}
	file, tells := path.Base(device), "device/subsysnqn"
	if strings.HasPrefix(file, "dm-") {
		tells = "dm/uuid"
	}
	drives := ""
	if on := f.drivesCalled(file); len(on) > 0 {
		drives = fmt.Sprintf(". As a drive that stores volumes, %s is known on %s: kubectl weft drives NODE", file, text.Few(on, maxNamed, ", "))
	}
	return named{}, fmt.Errorf("no object records which volume a node calls %s. Run this on the node, and specify what it prints: cat /sys/block/%s/%s%s", device, file, tells, drives)
}

// drivesCalled so by the kernel: the nodes that have one.
func (f *fleet) drivesCalled(name string) []string {
	var on []string
	for i := range f.nodes {
		inventory := f.nodes[i].Status.Inventory
		if inventory != nil && slices.ContainsFunc(inventory.Drives, func(d v1alpha1.Drive) bool { return d.Name == name }) {
			on = append(on, f.nodes[i].Name)
		}
	}
	slices.Sort(on)
	return on
}
