// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// state of the fake host, in the file that stateFile names: each fake program reads it, and writes what it did.
type state struct {
	// What the host is.
	System, Kernel, DockerKernel, DockerError, Security string
	Modules                                             []string
	CPUs                                                int
	// What is made on it.
	Images   []string            // in Docker
	Nodes    map[string][]string // of the cluster, with the labels; nil: there is no cluster
	Loaded   []string            // images in the nodes
	CRDs     bool
	Released map[string]string // values of the release
	Objects  []object          // in the order of being applied
	Loops    []string          // pools in files that the host's kernel has attached
	// NeverReady are objects that stay as they are.
	NeverReady []string
	Calls      []string
}

type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Provisioner string            `json:"provisioner"`
	Parameters  map[string]string `json:"parameters"`
	Spec        struct {
		Engine           string `json:"engine"`
		StorageClassName string `json:"storageClassName"`
		Volumes          []struct {
			Claim struct {
				Name string `json:"claimName"`
			} `json:"persistentVolumeClaim"`
		} `json:"volumes"`
	} `json:"spec"`
}

const stateFile = "FAKE_STATE"

// fakes of the programs that kind.sh runs, by name. One refuses what the real one would not understand.
var fakes = map[string]func(*state, []string) (string, error){
	"uname": fakeUname, "nproc": fakeNproc, "modprobe": fakeModprobe, "docker": fakeDocker,
	"kind": fakeKind, "helm": fakeHelm, "kubectl": fakeKubectl,
}

// runFake answers for the program that this test binary was started as.
func runFake(name string, args []string) int {
	path := os.Getenv(stateFile)
	data, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 70
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 70
	}
	s.Calls = append(s.Calls, name+" "+strings.Join(args, " "))
	out, runErr := fakes[name](&s, args)
	if data, err = json.Marshal(s); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if out != "" {
		fmt.Println(out)
	}
	if err := errors.Join(runErr, err); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

func misused(args []string) error { return fmt.Errorf("the fake does not know %q", args) }

func fakeUname(s *state, args []string) (string, error) {
	switch {
	case slices.Equal(args, []string{"-s"}):
		return s.System, nil
	case slices.Equal(args, []string{"-r"}):
		return s.Kernel, nil
	}
	return "", misused(args)
}

func fakeNproc(s *state, args []string) (string, error) {
	if len(args) > 0 {
		return "", misused(args)
	}
	return fmt.Sprint(s.CPUs), nil
}

func fakeModprobe(s *state, args []string) (string, error) {
	if len(args) != 3 || args[0] != "--dry-run" || args[1] != "--quiet" {
		return "", misused(args)
	}
	if !slices.Contains(s.Modules, args[2]) {
		return "", errors.New("not found")
	}
	return "", nil
}

func fakeDocker(s *state, args []string) (string, error) {
	switch {
	case len(args) == 3 && args[0] == "info" && args[1] == "--format":
		if s.DockerError != "" {
			return "", errors.New(s.DockerError)
		}
		switch args[2] {
		case "{{.KernelVersion}}":
			return s.DockerKernel, nil
		case "{{.SecurityOptions}}":
			return s.Security, nil
		}
	case len(args) == 6 && args[0] == "exec" && args[2] == "sh" && args[3] == "-ec":
		if _, ok := s.Nodes[args[1]]; !ok {
			return "", fmt.Errorf("no such container: %s", args[1])
		}
		if slices.ContainsFunc(s.Objects, func(o object) bool { return o.Kind == "NvmfTarget" }) {
			return "", errors.New("umount: target is busy")
		}
		s.Loops = slices.DeleteFunc(s.Loops, func(file string) bool { return file == args[5] })
		return "", nil
	}
	return "", misused(args)
}

func fakeKind(s *state, args []string) (string, error) {
	switch command := strings.Join(args[:2], " "); command {
	case "get clusters":
		if s.Nodes == nil {
			return "", nil
		}
		return "other\nweft", nil
	case "create cluster":
		if s.Nodes != nil {
			return "", errors.New("node(s) already exist for a cluster with the name \"weft\"")
		}
		if len(args) != 8 || args[2] != "--name" || args[3] != "weft" || args[4] != "--config" || args[6] != "--wait" {
			return "", misused(args)
		}
		return "", s.createNodes(args[5])
	case "load docker-image":
		if s.Nodes == nil || len(args) < 5 || args[2] != "--name" || args[3] != "weft" {
			return "", misused(args)
		}
		for _, image := range args[4:] {
			if !slices.Contains(s.Images, image) {
				return "", fmt.Errorf("image: %q not present locally", image)
			}
			s.Loaded = append(s.Loaded, image)
		}
		return "", nil
	case "delete cluster":
		if len(args) != 4 || args[3] != "weft" {
			return "", misused(args)
		}
		s.Nodes, s.Loaded, s.CRDs, s.Objects, s.Released = nil, nil, false, nil, nil
		return "", nil
	}
	return "", misused(args)
}

// createNodes as kind names them.
func (s *state) createNodes(config string) error {
	data, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var cluster struct {
		Nodes []struct {
			Role   string            `json:"role"`
			Labels map[string]string `json:"labels"`
		} `json:"nodes"`
	}
	if err := yaml.Unmarshal(data, &cluster); err != nil {
		return err
	}
	s.Nodes = map[string][]string{}
	workers := 0
	for _, n := range cluster.Nodes {
		name := "weft-" + n.Role
		if n.Role == "worker" {
			if workers++; workers > 1 {
				name += fmt.Sprint(workers)
			}
		}
		s.Nodes[name] = []string{}
		for key, value := range n.Labels {
			s.Nodes[name] = append(s.Nodes[name], key+"="+value)
		}
	}
	return nil
}

func fakeHelm(s *state, args []string) (string, error) {
	if s.Nodes == nil || len(args) < 4 || !slices.Equal(args[:3], []string{"upgrade", "--install", "weft"}) || !slices.Contains(args, "--wait") {
		return "", misused(args)
	}
	if _, err := os.Stat(filepath.Join(args[3], "Chart.yaml")); err != nil {
		return "", err
	}
	if !slices.ContainsFunc(s.Objects, func(o object) bool { return o.Kind == "Namespace" && o.Metadata.Name == "weft-system" }) {
		return "", errors.New(`namespaces "weft-system" not found`)
	}
	s.Released = map[string]string{}
	for i, arg := range args {
		if arg != "--set-string" {
			continue
		}
		for _, pair := range strings.Split(args[i+1], ",") {
			key, value, _ := strings.Cut(pair, "=")
			s.Released[key] = value
		}
	}
	if !slices.Contains(s.Loaded, s.Released["image.repository"]+":"+s.Released["image.tag"]) {
		return "", errors.New("timed out waiting for the condition: ImagePullBackOff")
	}
	s.CRDs = true
	return "", nil
}

func fakeKubectl(s *state, args []string) (string, error) {
	if s.Nodes == nil || len(args) < 3 || args[0] != "--context" || args[1] != "kind-weft" {
		return "", misused(args)
	}
	args = args[2:]
	switch args[0] {
	case "apply":
		return "", s.apply(args[1:])
	case "wait":
		return "", s.waitReady(args[1:])
	case "delete":
		return "", s.remove(args[1:])
	case "logs":
		return "data of " + args[1], s.podReady(args[1])
	case "describe", "get":
		if slices.Contains(args, "crd") && !s.CRDs {
			return "", errors.New("not found")
		}
		return "", nil
	}
	return "", misused(args)
}

func (s *state) apply(args []string) error {
	if len(args) != 2 || args[0] != "-f" {
		return misused(args)
	}
	data, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	for _, document := range strings.Split(string(data), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return err
		}
		if o.Kind == "NvmfTarget" && !s.CRDs {
			return errors.New(`no matches for kind "NvmfTarget"`)
		}
		s.Objects = append(s.Objects, o)
	}
	return nil
}

func (s *state) find(kind, name string) (object, error) {
	for _, o := range s.Objects {
		if o.Kind == kind && o.Metadata.Name == name {
			return o, nil
		}
	}
	return object{}, fmt.Errorf("%s %q not found", kind, name)
}

func (s *state) waitReady(args []string) error {
	if len(args) != 3 || args[0] != "--for=condition=Ready" || !strings.HasPrefix(args[2], "--timeout=") {
		return misused(args)
	}
	kind, name, _ := strings.Cut(args[1], "/")
	switch kind {
	case "nvmftarget":
		return s.targetReady(name)
	case "pod":
		return s.podReady(name)
	}
	return misused(args)
}

// targetReady: a target serves on a node with its label and an agent, with what its engine needs.
func (s *state) targetReady(name string) error {
	target, err := s.find("NvmfTarget", name)
	if err != nil {
		return err
	}
	serves := false
	for _, labels := range s.Nodes {
		agent := slices.Contains(labels, "weft.storage/agent="+s.Released[`agent.nodeSelector.weft\.storage/agent`])
		serves = serves || agent && slices.Contains(labels, "weft.storage/target="+name)
	}
	needs := []string{"nvmet", "nvmet_tcp", "xfs", "loop"}
	if target.Spec.Engine == "SPDK" {
		needs = nil
		if image := s.Released["target.image.repository"] + ":" + s.Released["target.image.tag"]; !slices.Contains(s.Loaded, image) {
			return fmt.Errorf("timed out: target pod cannot pull %s", image)
		}
	} else {
		s.Loops = slices.Compact(append(s.Loops, "/var/lib/weft/"+name+".img"))
	}
	for _, module := range needs {
		serves = serves && slices.Contains(s.Modules, module)
	}
	if !serves || slices.Contains(s.NeverReady, name) {
		return fmt.Errorf("timed out waiting for the condition on nvmftargets/%s", name)
	}
	return nil
}

// podReady: a pod runs when its claim's class is of a target that serves.
func (s *state) podReady(name string) error {
	pod, err := s.find("Pod", name)
	if err != nil {
		return err
	}
	for _, v := range pod.Spec.Volumes {
		claim, err := s.find("PersistentVolumeClaim", v.Claim.Name)
		if err != nil {
			return err
		}
		class, err := s.find("StorageClass", claim.Spec.StorageClassName)
		if err != nil {
			return err
		}
		if err := s.targetReady(class.Parameters["target"]); err != nil {
			return err
		}
	}
	if slices.Contains(s.NeverReady, name) {
		return fmt.Errorf("timed out waiting for the condition on pods/%s", name)
	}
	return nil
}

func (s *state) remove(args []string) error {
	if len(args) != 3 || args[1] != "--all" || !strings.HasPrefix(args[2], "--timeout=") {
		return misused(args)
	}
	kinds := map[string][]string{"pod,pvc": {"Pod", "PersistentVolumeClaim"}, "nvmftarget": {"NvmfTarget"}}[args[0]]
	if kinds == nil {
		return misused(args)
	}
	if args[0] == "nvmftarget" && slices.ContainsFunc(s.Objects, func(o object) bool { return o.Kind == "PersistentVolumeClaim" }) {
		return errors.New("timed out waiting for the condition on nvmftargets")
	}
	if slices.Contains(s.NeverReady, "delete "+args[0]) {
		return errors.New("timed out waiting for the condition")
	}
	s.Objects = slices.DeleteFunc(s.Objects, func(o object) bool { return slices.Contains(kinds, o.Kind) })
	return nil
}
