// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	volumeA = "11111111-2222-3333-4444-555555555555"
	volumeB = "66666666-7777-8888-9999-000000000000"
	nqnA    = "nqn.2026-11.storage.weft:pvc-a"
)

func spaceOf(id engine.ID) namespace {
	return namespace{path: "/pool/volumes/" + string(id), uuid: string(id), nguid: id.NGUID(), enabled: true}
}

func subsystemOf(change ...func(*subsystem)) *subsystem {
	s := &subsystem{
		nqn: nqnA, serial: "serial", model: "weft", queues: 8,
		namespaces: map[uint32]namespace{1: spaceOf(volumeA)},
		hosts:      []string{"host-1"},
		ports:      []int{FirstPort},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func (s step) String() string {
	switch s.do {
	case unlinkPort, linkPort:
		return fmt.Sprintf("%s %d", s.do, s.port-FirstPort)
	case makeNamespace, removeNamespace:
		return fmt.Sprintf("%s %d", s.do, s.nsid)
	case admitHost, refuseHost, dropHost:
		return fmt.Sprintf("%s %s", s.do, s.host)
	default:
		return string(s.do)
	}
}

func TestSteps(t *testing.T) {
	twoHosts := subsystemOf(func(s *subsystem) { s.hosts = []string{"host-1", "host-2"} })
	again := "unlink port 0, remove subsystem, make subsystem, make namespace 1, "
	disabled := spaceOf(volumeA)
	disabled.enabled = false
	refuses := func(hosts ...string) func(*subsystem) {
		return func(s *subsystem) { s.hosts, s.refused = nil, hosts }
	}
	retired := func(s *subsystem) {
		s.retired, s.namespaces = true, map[uint32]namespace{1: disabled}
	}
	tests := []struct {
		name string
		is   *subsystem
		want *subsystem
		todo string
		err  error
		// stays, though it looks otherwise.
		stays bool
	}{
		{
			name: "nothing to do",
			is:   subsystemOf(), want: subsystemOf(),
		}, {
			name: "new: what a host needs first, its way in last",
			want: subsystemOf(func(s *subsystem) { s.namespaces[2] = spaceOf(volumeB) }),
			todo: "make subsystem, make namespace 1, make namespace 2, admit host host-1, link port 0",
		}, {
			name: "new, for nobody",
			want: subsystemOf(func(s *subsystem) { s.hosts, s.ports = nil, nil }),
			todo: "make subsystem, make namespace 1",
		}, {
			name: "first host",
			is:   subsystemOf(func(s *subsystem) { s.hosts, s.ports = nil, nil }), want: subsystemOf(),
			todo: "admit host host-1, link port 0",
		}, {
			name: "another host",
			is:   subsystemOf(), want: subsystemOf(func(s *subsystem) { s.hosts = []string{"host-0", "host-1"} }),
			todo: "admit host host-0",
		}, {
			name: "the last host goes",
			is:   subsystemOf(), want: subsystemOf(func(s *subsystem) { s.hosts, s.ports = nil, nil }),
			todo: strings.TrimSuffix(again, ", "),
		}, {
			name: "a host goes, another stays",
			is:   subsystemOf(func(s *subsystem) { s.hosts = []string{"host-1", "host-2"} }), want: subsystemOf(),
			todo: again + "admit host host-1, link port 0",
		}, {
			name: "a host goes and is refused, another stays",
			is:   twoHosts, want: subsystemOf(func(s *subsystem) { s.refused = []string{"host-2"} }),
			todo: strings.Replace(again, "make namespace 1", "refuse host host-2, make namespace 1", 1) + "admit host host-1, link port 0",
		}, {
			name: "after a reboot, a host that was dismissed before",
			want: subsystemOf(func(s *subsystem) { s.refused = []string{"host-2"} }),
			todo: "make subsystem, refuse host host-2, make namespace 1, admit host host-1, link port 0",
		}, {
			name: "another host beside one that is refused",
			is:   subsystemOf(func(s *subsystem) { s.refused = []string{"host-2"} }),
			want: subsystemOf(func(s *subsystem) { s.hosts, s.refused = []string{"host-1", "host-3"}, []string{"host-2"} }),
			todo: "admit host host-3",
		}, {
			name: "a host that was refused is admitted again",
			is:   subsystemOf(func(s *subsystem) { s.refused = []string{"host-2"} }), want: twoHosts,
			todo: again + "admit host host-1, admit host host-2, link port 0",
		}, {
			name: "what was retired stays so for nobody",
			is:   subsystemOf(refuses("host-1"), retired), want: subsystemOf(refuses("host-1")),
			stays: true,
		}, {
			name: "what was retired is made again for a host, whose namespace old controllers must not find",
			is:   subsystemOf(refuses("host-1"), retired), want: subsystemOf(func(s *subsystem) { s.hosts, s.refused = []string{"host-2"}, []string{"host-1"} }),
			todo: strings.Replace(again, "make namespace 1", "refuse host host-1, make namespace 1", 1) + "admit host host-2, link port 0",
		}, {
			name: "what was retired is made again for another volume",
			is:   subsystemOf(refuses("host-1"), retired),
			want: subsystemOf(refuses("host-1"), func(s *subsystem) { s.namespaces[1] = spaceOf(volumeB) }),
			todo: strings.Replace(again, "make namespace 1", "refuse host host-1, make namespace 1", 1) + "link port 0",
		}, {
			name: "what only refuses gets a volume again",
			is:   subsystemOf(refuses("host-1"), retired, func(s *subsystem) { s.namespaces = map[uint32]namespace{} }),
			want: subsystemOf(func(s *subsystem) { s.refused = []string{"host-2"} }),
			todo: strings.Replace(again, "make namespace 1", "refuse host host-2, make namespace 1", 1) + "admit host host-1, link port 0",
		}, {
			name: "a host goes that a killed process had already cut off",
			is:   subsystemOf(func(s *subsystem) { s.ports = nil }), want: subsystemOf(func(s *subsystem) { s.hosts, s.ports = nil, nil }),
			todo: "remove subsystem, make subsystem, make namespace 1",
		}, {
			name: "a host goes from a volume that cannot be read, whose path is the old one",
			is:   twoHosts, want: ptr.To(twoHosts.onlyFor(engine.Export{Hosts: []string{"host-1", "host-3"}}, nil)),
			todo: again + "admit host host-1, link port 0",
		}, {
			name: "nobody goes from a volume that cannot be read",
			is:   twoHosts, want: ptr.To(twoHosts.onlyFor(engine.Export{Hosts: []string{"host-1", "host-2", "host-3"}}, nil)),
		}, {
			name: "a retired host goes",
			is:   twoHosts, want: subsystemOf(func(s *subsystem) { s.gone = []string{"host-2"} }),
			todo: "drop host host-2",
		}, {
			name: "a retired host with keys goes from a volume that cannot be read",
			is: subsystemOf(func(s *subsystem) {
				s.hosts = twoHosts.hosts
				s.keys = map[string]engine.Authentication{"host-2": {Fingerprint: "keys"}}
			}),
			want: ptr.To(twoHosts.onlyFor(engine.Export{Hosts: []string{"host-1"}, Retired: []string{"host-2"}}, nil)),
			todo: "drop host host-2",
		}, {
			name: "a retired host goes when its successor is dismissed",
			is:   twoHosts, want: subsystemOf(func(s *subsystem) {
				s.hosts, s.gone, s.refused = []string{"host-3"}, []string{"host-2"}, []string{"host-1"}
			}),
			todo: strings.Replace(again, "make namespace 1", "refuse host host-1, make namespace 1", 1) + "admit host host-3, link port 0",
		}, {
			name: "open to anybody",
			is:   subsystemOf(func(s *subsystem) { s.allowAnyHost = true }), want: subsystemOf(),
			todo: again + "admit host host-1, link port 0",
		}, {
			name: "another serial number, unknown to hosts",
			is:   subsystemOf(func(s *subsystem) { s.serial, s.hosts, s.ports = "x", nil, nil }), want: subsystemOf(),
			todo: "remove subsystem, make subsystem, make namespace 1, admit host host-1, link port 0",
		}, {
			name: "another serial number, known to a host",
			is:   subsystemOf(func(s *subsystem) { s.serial = "x" }), want: subsystemOf(),
			err: engine.ErrRestartNeeded,
		}, {
			name: "namespaces come, change and go",
			is: subsystemOf(func(s *subsystem) {
				s.namespaces[2], s.namespaces[3] = spaceOf(volumeB), spaceOf(volumeB)
			}),
			want: subsystemOf(func(s *subsystem) {
				s.namespaces[2], s.namespaces[4] = spaceOf(volumeB), spaceOf(volumeB)
			}),
			todo: "remove namespace 3, make namespace 4",
		}, {
			name: "a namespace of another volume",
			is:   subsystemOf(), want: subsystemOf(func(s *subsystem) { s.namespaces[1] = spaceOf(volumeB) }),
			todo: "remove namespace 1, make namespace 1",
		}, {
			name: "a namespace that was left half made",
			is:   subsystemOf(func(s *subsystem) { s.namespaces[1] = namespace{uuid: volumeB} }), want: subsystemOf(),
			todo: "remove namespace 1, make namespace 1",
		}, {
			name: "queues, and a port that opened and one that closed",
			is:   subsystemOf(), want: subsystemOf(func(s *subsystem) { s.queues, s.ports = 4, []int{FirstPort + 1} }),
			todo: "unlink port 0, set queues, link port 1",
		}, {
			name: "a kernel that cannot limit queues",
			is:   subsystemOf(func(s *subsystem) { s.queues = 0 }), want: subsystemOf(),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			todo, err := steps(tt.is, *tt.want)
			if !errors.Is(err, tt.err) || (err != nil) != (tt.err != nil) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			var got []string
			for _, s := range todo {
				got = append(got, s.String())
			}
			if joined := strings.Join(got, ", "); joined != tt.todo {
				t.Errorf("steps:\n got %s\nwant %s", joined, tt.todo)
			}
			if tt.err == nil && !tt.stays && !replay(tt.is, *tt.want, todo) {
				t.Errorf("these steps do not lead to what is wanted: %v", todo)
			}
		})
	}
}

// replay the steps on a model of configfs, and say whether they lead to what is wanted.
func replay(is *subsystem, want subsystem, todo []step) bool {
	var s *subsystem
	if is != nil {
		clone := *is
		clone.namespaces = map[uint32]namespace{}
		for nsid, ns := range is.namespaces {
			clone.namespaces[nsid] = ns
		}
		clone.hosts, clone.refused, clone.ports = slices.Clone(is.hosts), slices.Clone(is.refused), slices.Clone(is.ports)
		s = &clone
	}
	for _, step := range todo {
		switch step.do {
		case makeSubsystem:
			s = &subsystem{nqn: want.nqn, serial: want.serial, model: want.model, queues: want.queues, namespaces: map[uint32]namespace{}}
		case removeSubsystem:
			if len(s.ports) > 0 {
				return false // configfs refuses it
			}
			s = nil
		case unlinkPort:
			s.ports = slices.DeleteFunc(s.ports, func(p int) bool { return p == step.port })
		case linkPort:
			s.ports = append(s.ports, step.port)
		case setQueues:
			s.queues = want.queues
		case removeNamespace:
			delete(s.namespaces, step.nsid)
		case makeNamespace:
			if _, there := s.namespaces[step.nsid]; there {
				return false
			}
			s.namespaces[step.nsid] = step.namespace
		case admitHost:
			s.hosts = append(s.hosts, step.host)
		case refuseHost:
			s.refused = append(s.refused, step.host)
		case dropHost:
			s.hosts = without(s.hosts, []string{step.host})
		}
	}
	slices.Sort(s.hosts)
	if s.queues == 0 {
		s.queues = want.queues
	}
	s.keys, s.gone = want.keys, want.gone
	return fmt.Sprint(*s) == fmt.Sprint(want)
}

func TestWanted(t *testing.T) {
	x := engine.Export{
		NQN: nqnA, Serial: "serial", Model: "weft", MaxIOQueues: 8,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: volumeA}},
		Hosts:      []string{"host-1"},
	}
	paths := map[engine.ID]string{volumeA: "/pool/volumes/" + volumeA}
	got := wanted(x, paths, []int{FirstPort}, []string{"host-1"})
	if want := *subsystemOf(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	x.Hosts = nil
	if got := wanted(x, paths, []int{FirstPort}, nil); len(got.ports) > 0 {
		t.Errorf("a subsystem for nobody is served on ports %v", got.ports)
	}
}
