# SPDX-License-Identifier: Apache-2.0
#
# The only entry point. `make help` lists what there is.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

GO       ?= go
ARCH     ?= $(shell $(GO) env GOARCH)
VERSION  ?= $(shell sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}$$/\1/p' charts/weft/Chart.yaml)
IMAGE    ?= ghcr.io/weft-storage/weft:$(VERSION)
# The image of target pods has a version of its own, as the chart names it. docs/tasks/change-the-target-image.md says
# when it changes.
TARGET_VERSION ?= $(shell sed -n '/^target:/,/^[a-z]/s/^ *tag: *"\([^"]*\)"$$/\1/p' charts/weft/values.yaml)
TARGET_IMAGE ?= ghcr.io/weft-storage/weft-target:$(TARGET_VERSION)
# SPDK for the image of target pods: the path of an nvmf_tgt of this machine, or an image that has one in its PATH. Both
# empty: what the Dockerfile says. PUSH=1 pushes what NVMF_TGT made.
NVMF_TGT     ?=
TARGET_BASE  ?=
PUSH         ?=

BIN            := $(CURDIR)/bin
CONTROLLER_GEN := $(BIN)/controller-gen
HELM           := $(BIN)/helm
GOLANGCI_LINT  := $(BIN)/golangci-lint
KIND           := $(BIN)/kind
ACTIONLINT     := $(BIN)/actionlint
GOVULNCHECK    := $(BIN)/govulncheck
PROMTOOL       := $(BIN)/promtool
PROMETHEUS     := $(BIN)/prometheus
LAB            := $(BIN)/weft-lab
PACKAGE_operator := ./operator/cmd/weft-operator
PACKAGE_agent    := ./dataplane/cmd/weft-agent
PACKAGE_launch   := ./dataplane/cmd/weft-launch
PACKAGE_csi      := ./csi-driver/cmd/weft-csi
PACKAGE_cli      := ./operator/cmd/kubectl-weft
# Where install-cli puts kubectl-weft: PREFIX/bin, or without PREFIX where go install puts programs.
PREFIX  ?=
CLI_DIR  = $(if $(PREFIX),$(PREFIX)/bin,$(or $(shell $(GO) env GOBIN),$(shell $(GO) env GOPATH)/bin))

export HELM
export PROMTOOL
export PROMETHEUS
# One way of compiling for everything: what is built once is not built again, and no C compiler is needed.
export CGO_ENABLED := 0
export GOFLAGS     := $(strip $(shell $(GO) env GOFLAGS) -trimpath)

# SPDK's own description of its RPCs, where it lies beside the checkout: requests of our client are held against it.
export WEFT_SPDK_SCHEMA ?= $(wildcard $(CURDIR)/../shared/spdk/schema-26.05.json)
# A real SPDK target for the tests that can use one: make test WEFT_SPDK_TARGET=/path/to/nvmf_tgt
export WEFT_SPDK_TARGET ?=

##@ The two commands

.PHONY: demo
demo: binaries $(LAB) $(HELM) ## Build, start the lab, install the chart, apply the samples, show the data on the other node's drive
	cd test/e2e && $(LAB) demo

# Both print at their end how long each part took, and which tests were slowest. What + joins runs at the same time: a
# machine of the kernel tests uses less than one core.
.PHONY: test
test: export SHORT := yes
test: $(LAB) ## Run lint, unit and API-server tests, kernel tests in a virtual machine, and end-to-end tests in the lab
	cd test/e2e && $(LAB) tools
	+$(LAB) parts lint test-unit+test-lab-targets+test-lab-hosts test-e2e

.PHONY: test-all
test-all: $(LAB) ## Run everything: what test runs, the whole end-to-end suite, others' tests of a storage driver, random sequences
	cd test/e2e && $(LAB) tools
	+$(LAB) parts --keep-going lint test-unit+test-lab-targets+test-lab-hosts test-intruders test-mirrors test-mirrors-lab test-release test-e2e-all test-e2e-third test-second-cluster e2e-storage-all test-chaos

##@ Build

.PHONY: binaries
binaries: ## Build the programs for ARCH into bin/ARCH
	@mkdir -p $(BIN)/$(ARCH)
	GOARCH=$(ARCH) $(GO) build -ldflags '-s -w -X main.version=$(VERSION)' \
		-o $(BIN)/$(ARCH)/ $(PACKAGE_operator) $(PACKAGE_agent) $(PACKAGE_csi) $(PACKAGE_cli)
	GOARCH=$(ARCH) $(GO) build -ldflags '-s -w -X main.version=$(TARGET_VERSION)' -o $(BIN)/$(ARCH)/ $(PACKAGE_launch)

.PHONY: install-cli
install-cli: ## Install kubectl's plugin weft into PREFIX/bin, or into GOBIN
	@mkdir -p $(CLI_DIR)
	$(GO) build -ldflags '-s -w -X main.version=$(VERSION)' -o $(CLI_DIR)/ $(PACKAGE_cli)
	@install -m 755 operator/cmd/kubectl-weft/kubectl_complete-weft $(CLI_DIR)/
	@echo 'installed $(CLI_DIR)/kubectl-weft'
	@case ":$$PATH:" in *:$(CLI_DIR):*) echo 'kubectl weft --help shows what it does';; *) echo 'kubectl finds it only in PATH: export PATH=$$PATH:$(CLI_DIR)';; esac

.PHONY: images
images: image image-target ## Build the images for ARCH with Docker

.PHONY: image
image: binaries
	docker build --build-arg TARGETARCH=$(ARCH) --target weft -t $(IMAGE) .

.PHONY: image-target
image-target: binaries ## Build the image of target pods: from the nvmf_tgt that NVMF_TGT names without Docker, else with Docker
ifneq ($(NVMF_TGT),)
	$(GO) run ./hack/targetimage --launch $(BIN)/$(ARCH)/weft-launch --version $(TARGET_VERSION) --image $(TARGET_IMAGE) --output dist/weft-target.tar $(if $(PUSH),--push) $(NVMF_TGT)
else
	docker build --build-arg TARGETARCH=$(ARCH) $(if $(TARGET_BASE),--build-arg TARGET_BASE=$(TARGET_BASE)) --build-arg VERSION=$(TARGET_VERSION) --target weft-target -t $(TARGET_IMAGE) .
endif

.PHONY: cross
cross: ## Compile everything for both architectures
	GOARCH=amd64 $(GO) build ./...
	GOARCH=arm64 $(GO) build ./...

.PHONY: generate
generate: $(CONTROLLER_GEN) $(HELM) ## Generate deep copies, CRDs, RBAC, the kustomize base, docs/reference/nvmftarget*.md and the values in the chart's README
	$(CONTROLLER_GEN) object:headerFile=hack/header.go.txt paths=./api/...
	$(CONTROLLER_GEN) crd:headerFile=hack/header.yaml.txt paths=./api/... output:crd:dir=config/crd
	hack/generate.sh
	$(GO) run ./hack/docs reference
	$(GO) run ./hack/docs values

.PHONY: docs-figures
docs-figures: ## Draw the figures of docs, and fill in the tables of docs/tuning.md, from published measurements and weft's own plans
	$(GO) run ./hack/docs figures

RECORDING := docs/figures/demo
.PHONY: demo-recording
demo-recording: binaries $(LAB) $(HELM) ## Run the demo, and draw what it printed, and when, into docs/figures
	$(GO) run ./hack/docs record $(RECORDING).cast $(MAKE) --silent demo
	$(GO) run ./hack/docs draw $(RECORDING).cast $(RECORDING).svg

# From a Prometheus that scrapes weft, such as that of hack/dashboards/lab.sh. DRAW has flags of hack/dashboards/draw.mjs,
# such as '--range 1h --var node=node1'.
PROMETHEUS_URL ?=
DRAW ?=
CHROMIUM ?= chromium
DASHBOARDS := fleet target-and-node volume
.PHONY: dashboard-pictures
dashboard-pictures: ## Draw the dashboards into docs/figures, with what the Prometheus at PROMETHEUS_URL has; needs node, npm and chromium
	@[ -n '$(PROMETHEUS_URL)' ] || { echo 'name a Prometheus that scrapes weft: make $@ PROMETHEUS_URL=http://127.0.0.1:9090'; exit 1; }
	@for program in node npm $(CHROMIUM); do command -v $$program >/dev/null || { echo "there is no $$program in PATH: install it, as with apt-get install nodejs npm chromium"; exit 1; }; done
	@mkdir -p dist/dashboards && cp hack/dashboards/*.json hack/dashboards/*.mjs hack/dashboards/*.jsx dist/dashboards/
	cd dist/dashboards && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	CHROMIUM=$(CHROMIUM) node dist/dashboards/draw.mjs $(DRAW) $(PROMETHEUS_URL) $(foreach d,$(DASHBOARDS),charts/weft/files/dashboards/$(d).json=docs/figures/dashboard-$(firstword $(subst -, ,$(d))).png)

##@ Check

# What users and contributors read: hack/docs/language.go has the phrases that it does not use.
LANGUAGE := api operator csi-driver dataplane internal charts/weft config/samples docs hack/kind test/README.md test/e2e .github $(wildcard *.md)

# Those with files of the tag lab, which replace others there.
LAB_PACKAGES := ./csi-driver/node/... ./dataplane/agent ./dataplane/cmd/weft-launch ./dataplane/device ./dataplane/engine/... ./dataplane/inventory ./dataplane/tuning
.PHONY: lint
lint: $(GOLANGCI_LINT) $(ACTIONLINT) cross verify-generate ## Check format, lint, generated files, licence headers, workflows, language of messages, both architectures
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "not formatted (run gofmt -w):" $$unformatted; exit 1; fi
	@missing=$$(git ls-files '*.go' '*.sh' '*.yaml' '*.yml' '*.tpl' '.ci/*' Makefile Dockerfile | xargs grep -L 'SPDX-License-Identifier: Apache-2.0'); if [ -n "$$missing" ]; then echo "no SPDX header in:" $$missing; exit 1; fi
	$(GO) run ./hack/docs language $(LANGUAGE)
	$(ACTIONLINT)
	$(GOLANGCI_LINT) run --allow-parallel-runners ./...
	$(GOLANGCI_LINT) run --allow-parallel-runners --build-tags lab $(LAB_PACKAGES)
	cd test/e2e && $(GOLANGCI_LINT) run --allow-parallel-runners ./...
	cd hack/release && $(GOLANGCI_LINT) run --allow-parallel-runners ./...

# Where known vulnerabilities are listed: https://vuln.go.dev, or a copy of it, as file:///path/to/copy.
VULNDB ?= https://vuln.go.dev
.PHONY: vulncheck
vulncheck: $(GOVULNCHECK) ## Check what weft's code calls for known vulnerabilities; needs vuln.go.dev, or a copy that VULNDB names
	$(GOVULNCHECK) -db $(VULNDB) ./...
	cd hack/release && $(GOVULNCHECK) -db $(VULNDB) ./...

.PHONY: verify-generate
verify-generate: generate ## Fail when `make generate` leaves a diff
	@git diff --exit-code -- api config charts docs/reference || { echo 'generated files differ: run `make generate` and commit'; exit 1; }

.PHONY: envtest
envtest: $(LAB) ## Build etcd, kube-apiserver and kube-controller-manager for the API-server tests
	cd test/e2e && $(LAB) build --only envtest

# Flags of go test, for tests that need neither a virtual machine nor the lab.
TESTFLAGS ?=
# Of a package, on a busy machine.
UNIT_TIMEOUT := 20m

# The tests, and the API servers beside them, have little memory, and collect its garbage less often than Go does by
# itself: that takes a fifth to a third less of the processors.
test-unit test-api test-chaos test-mirrors: export GOGC ?= 300

.PHONY: test-unit
test-unit: envtest $(HELM) $(PROMTOOL) ## Run unit and API-server tests
	KUBEBUILDER_ASSETS=$$(cd test/e2e && $(LAB) assets-dir) $(GO) test $(if $(SHORT),-short) -timeout $(UNIT_TIMEOUT) $(TESTFLAGS) ./...
	cd test/e2e && $(GO) test $(TESTFLAGS) -skip TestEndToEnd ./...
	cd hack/release && $(GO) test $(TESTFLAGS) ./...

.PHONY: test-api
test-api: envtest ## Run the API-server tests alone
	KUBEBUILDER_ASSETS=$$(cd test/e2e && $(LAB) assets-dir) $(GO) test ./api/... ./operator/... ./csi-driver/controller/... ./dataplane/agent/...

# Where a sequence is cut comes from its seed alone. SEQUENCES=1 with the SEED of a failure repeats that one.
SEQUENCES ?= 300
SEQUENCES_PACKAGE := ./test/histories
.PHONY: test-chaos
test-chaos: envtest ## Run SEQUENCES random sequences of CSI calls, from SEED on, in which processes are killed and hosts reboot, and compare what is left
	KUBEBUILDER_ASSETS=$$(cd test/e2e && $(LAB) assets-dir) WEFT_SEQUENCES=$(SEQUENCES) WEFT_SEED=$(or $(SEED),$$(date +%s)) \
		$(GO) test $(TESTFLAGS) $(SEQUENCES_PACKAGE) -count=1 -v -timeout 60m

.PHONY: test-mirrors
test-mirrors: SEQUENCES = 3000
test-mirrors: ## Run SEQUENCES random histories of a mirror, its holders, its replicas and the API, from SEED on, on a model
	WEFT_SEQUENCES=$(SEQUENCES) WEFT_SEED=$(or $(SEED),$$(date +%s)) \
		$(GO) test $(TESTFLAGS) ./csi-driver/node/internal/keeper -run 'TestHistories$$' -count=1 -v -timeout 60m

# Tests of what only a kernel can say: its NVMe-oF target (the engine's conformance suite) and its initiator (the node
# plugin). They run as root in virtual machines of their own, one for each of the two.
MACHINE_DIR = .lab-machine
MACHINE = cd test/e2e && WEFT_LAB_DIR=$(CURDIR)/$(MACHINE_DIR) $(LAB)
# in-machine PACKAGE[,TESTS[,SKIP]]: run a package's tests with build tag lab in the machine, or those named, without SKIP.
# By default, measurements stay out, and so do intruders, which take ten minutes on the kernel's target: test-intruders has them.
define in-machine
	$(GO) test -c -tags lab -o $(MACHINE_DIR)/share/$(notdir $(1)).test $(1)
	$(MACHINE) exec node1 -- /host-share/$(notdir $(1)).test -test.v $(if $(SHORT),-test.short) -test.timeout 40m -test.skip '$(or $(3),^TestMeasure|^TestConformance$$/^Intruders$$)'$(if $(2), -test.run '$(2)')
endef

# A real SPDK target goes into the machine with its libraries, and serves the kernel's initiator there over TCP and RDMA.
# Then it drives the machine's drives itself, on this machine and on one with an IOMMU.
SPDK_MEMORY := 3072
# On the machine's own disk: from the shared folder each start of the target takes seconds.
spdk-to-machine = $(MACHINE) exec node1 -- cp -r /host-share/spdk /var/tmp/
on-spdk = $(MACHINE) exec node1 -- env WEFT_SPDK_TARGET=/var/tmp/spdk/nvmf_tgt
# With hosts in the tests themselves: what a killed target leaves, what hosts may not do, and what they see of a full pool.
without-hosts = TestKilled|TestClonesHold|TestHostsCannotDiscard|TestSPDKFrees|TestFullPoolOfARealTarget
drives-in-machine = $(on-spdk) /host-share/launch.test -test.v -test.timeout 15m -test.run '^(TestServesDrives|TestSwappedDeadAndAddedDrives|TestBlankDriveJoins)$$'
define spdk-in-machine
	rm -rf $(MACHINE_DIR)/share/spdk
	$(MACHINE) pack-target $(abspath $(WEFT_SPDK_TARGET)) $(CURDIR)/$(MACHINE_DIR)/share/spdk
	$(GO) test -c -tags lab -o $(MACHINE_DIR)/share/spdk.test ./dataplane/engine/spdk
	$(spdk-to-machine)
	$(on-spdk) /host-share/spdk.test -test.v -test.timeout 25m -test.run 'TestConformance|TestMounted|TestRefill|TestPools|TestAcknowledged'
	$(on-spdk) /host-share/spdk.test -test.v -test.timeout 25m -test.run '$(without-hosts)'
	$(on-spdk) /host-share/agent.test -test.v -test.run TestDataOutlivesItsObjectOnARealTarget
	$(GO) test -c -tags lab -o $(MACHINE_DIR)/share/node.test ./csi-driver/node
	$(on-spdk) /host-share/node.test -test.v -test.run TestLabSPDK
	$(GO) test -c -tags lab -o $(MACHINE_DIR)/share/launch.test ./dataplane/cmd/weft-launch
	$(drives-in-machine)
	$(MACHINE) down
	$(MACHINE) up --nodes 1 --no-cluster --iommu --memory $(SPDK_MEMORY)
	$(spdk-to-machine)
	$(drives-in-machine)
endef

.PHONY: test-lab
test-lab: test-lab-targets test-lab-hosts ## Run the kernel tests in virtual machines; with WEFT_SPDK_TARGET, SPDK's too

.PHONY: test-lab-targets
test-lab-targets: $(LAB) ## Run the kernel tests of the storage node's side: targets, drives, agent, tuning
	$(MACHINE) down
	$(MACHINE) up --nodes 1 --no-cluster $(if $(WEFT_SPDK_TARGET),--memory $(SPDK_MEMORY))
	$(call in-machine,./dataplane/engine/nvmet)
	$(GO) test -c -tags lab -o $(MACHINE_DIR)/share/inventory.test ./dataplane/inventory
	$(MACHINE) exec node1 -- /host-share/inventory.test -test.v -test.run '^(TestVerbs|TestErasedDriveIsBlank)$$'
	$(call in-machine,./dataplane/device)
	$(call in-machine,./dataplane/agent)
	$(call in-machine,./dataplane/tuning)
	$(if $(WEFT_SPDK_TARGET),$(spdk-in-machine),@echo 'WEFT_SPDK_TARGET is not set: the SPDK engine met no host, only the fake target in test-unit')
	$(MACHINE) down

.PHONY: test-lab-hosts
test-lab-hosts: MACHINE_DIR = .lab-machine-hosts
test-lab-hosts: $(LAB) ## Run the kernel tests of the node plugin
	$(MACHINE) down
	$(MACHINE) up --nodes 1 --no-cluster
	# test-unit runs its tests of the fake kernel.
	$(call in-machine,./csi-driver/node,^TestLab)
	$(MACHINE) down

.PHONY: test-intruders
test-intruders: $(LAB) ## Attack the kernel's target in a virtual machine, as a stranger and as a host that is admitted; try wrong proofs over RDMA
	$(MACHINE) down
	$(MACHINE) up --nodes 1 --no-cluster
	$(call in-machine,./dataplane/engine/nvmet,^TestConformance$$/^Intruders$$,^TestMeasure)
	# Over TCP, test-lab has them.
	$(MACHINE) exec node1 -- env WEFT_SLOW_PROOFS=1 /host-share/nvmet.test -test.v -test.timeout 40m -test.run '^TestConformance$$/^Authentication$$//^RDMA'
	$(MACHINE) down

.PHONY: test-mirrors-lab
test-mirrors-lab: SEQUENCES = 30
test-mirrors-lab: $(LAB) ## Run SEQUENCES random histories of a mirror, from SEED on, on the kernel of a virtual machine; each takes one to two minutes
	$(MACHINE) down
	$(MACHINE) up --nodes 1 --no-cluster
	$(GO) test -c -tags lab -o $(MACHINE_DIR)/share/node.test ./csi-driver/node
	$(MACHINE) exec node1 -- env WEFT_SEQUENCES=$(SEQUENCES) WEFT_SEED=$(or $(SEED),$$(date +%s)) \
		/host-share/node.test -test.v -test.timeout 90m -test.run '^TestLabHistories$$'
	$(MACHINE) down

# TIER=fast leaves out what a cheaper test shows as well, TIER=all nothing that two nodes can show, TIER=third has what needs
# three, and TIER=second what needs a second cluster after the first.
# FOCUS is a regular expression over the specs' names. test/e2e/suite has the tables.
TIER ?= fast
TIER_fast  := -ginkgo.label-filter='!full'
TIER_all   := -ginkgo.label-filter='!third-node && !second-cluster'
TIER_third := -ginkgo.label-filter='third-node'
TIER_second := -ginkgo.label-filter='second-cluster'
# How many nodes the lab has; empty for two.
NODES ?=
.PHONY: test-e2e
test-e2e: binaries $(LAB) $(HELM) $(if $(filter fast,$(TIER)),,$(PROMETHEUS)) ## Run the end-to-end tests of TIER in a new lab; logs of a failure are in dist/logs
	$(if $(filter fast all third second,$(TIER)),,$(error TIER is $(TIER); write fast, all, third or second))
	cd test/e2e && $(LAB) down
	$(if $(NODES),cd test/e2e && $(LAB) up --nodes $(NODES) --weft)
	cd test/e2e && $(GO) test ./suite -run TestEndToEnd -count=1 -timeout 6h -v -ginkgo.v $(TIER_$(TIER)) $(if $(FOCUS),-ginkgo.focus='$(FOCUS)')
	cd test/e2e && $(LAB) down

.PHONY: test-e2e-all
test-e2e-all: TIER := all
test-e2e-all: $(PROMETHEUS) test-e2e ## Run all end-to-end tests in a new lab

.PHONY: test-e2e-third
test-e2e-third: TIER := third
test-e2e-third: NODES := 3
test-e2e-third: test-e2e ## Run the end-to-end tests that need a third node in a new lab

.PHONY: test-second-cluster
test-second-cluster: TIER := second
test-second-cluster: test-e2e ## Run the end-to-end test that carries drives from a new lab to another cluster

# Others' tests of a storage driver. FOCUS and SKIP are regular expressions over the names of Kubernetes' specs for
# external drivers, PROCS is how many run at once; SKIP='^$$' leaves out nothing.
.PHONY: e2e-storage
e2e-storage: binaries $(LAB) $(HELM) ## Run csi-sanity and Kubernetes' storage suite in a new lab; reports are in dist/storage
	cd test/e2e && $(LAB) down
	cd test/e2e && $(LAB) storage $(if $(PROCS),--procs $(PROCS)) $(if $(FOCUS),--focus '$(FOCUS)') $(if $(SKIP),--skip '$(SKIP)')
	cd test/e2e && $(LAB) down

.PHONY: e2e-storage-all
# Volume limits take 257 volumes of 512Mi on one node, which the lab's drives cannot hold.
e2e-storage-all: SKIP := \[Flaky\]|stress|performance|volume limits
e2e-storage-all: e2e-storage ## The same with the slow and the serial specs

# Volumes made, exported, deleted and refilled a second through the SPDK
# engine, against the same calls raw and pipelined, and one at a time, in one run.
.PHONY: bench
bench: ## Measure the SPDK engine: on the nvmf_tgt that WEFT_SPDK_TARGET names, else on the fake at SPDK's pace
	$(GO) test ./dataplane/engine/spdk -run '^$$' -bench 'BenchmarkVolumes|BenchmarkRefill' -benchtime 5x -timeout 10m

# What has a bound fails over it. On a machine with other work the figures say little; a target polls on a core of its own,
# which chrt gives it where others use the core too.
real-target = @[ -n '$(WEFT_SPDK_TARGET)' ] || { echo 'name a real target: make $@ WEFT_SPDK_TARGET=/path/to/nvmf_tgt'; exit 1; }

.PHONY: bench-create
bench-create: envtest ## Measure 200 CreateVolume calls at once with a real API server; on two cores, at least 100 a second with one replica, and 70 with two
	KUBEBUILDER_ASSETS=$$(cd test/e2e && $(LAB) assets-dir) $(GO) test ./csi-driver/controller -run '^$$' -bench BenchmarkCreateVolume -benchtime 3x -timeout 10m

# Sizes as nodes/volumes, each larger than the one before it. Making 20,000 volumes takes some ten minutes on two cores.
SCALE ?= 100/2000,300/6000,1000/20000
.PHONY: bench-scale
bench-scale: envtest ## Measure operator and CSI controller beside the objects of clusters of the sizes in SCALE, with a real API server; docs/concepts/scale.md says what that shows
	KUBEBUILDER_ASSETS=$$(cd test/e2e && $(LAB) assets-dir) WEFT_SCALE=$(SCALE) $(GO) test ./csi-driver/controller ./operator/cmd/weft-operator -p 1 -run '^$$' -bench 'BenchmarkScale$$' -benchtime 1x -timeout 120m -v

.PHONY: bench-watches
bench-watches: envtest ## Measure what the watches of agents cost the API server in clusters of the sizes in SCALE: for one change, and when all agents come back at once
	KUBEBUILDER_ASSETS=$$(cd test/e2e && $(LAB) assets-dir) WEFT_SCALE=$(SCALE) $(GO) test ./dataplane/agent -run '^$$' -bench 'BenchmarkWatches$$' -benchtime 1x -timeout 120m -v

.PHONY: bench-storm
bench-storm: ## Measure a node with 1,000 and 4,000 volumes on the nvmf_tgt that WEFT_SPDK_TARGET names: 500 are detached, attached and created while a host reads; then it is killed
	$(real-target)
	@mkdir -p dist
	$(GO) test -c -o dist/agent.test ./dataplane/agent
	cd dataplane/agent && taskset -c 0 $(CURDIR)/dist/agent.test -test.run '^$$' -test.bench BenchmarkStorm -test.benchtime 1x -test.timeout 10m

.PHONY: bench-deletion
bench-deletion: ## Measure attaching beside the deletion of 1 TiB, on the nvmf_tgt that WEFT_SPDK_TARGET names; at most 1.2 times as long as alone
	$(real-target)
	@mkdir -p dist
	$(GO) test -c -o dist/spdk.test ./dataplane/engine/spdk
	cd dataplane/engine/spdk && chrt -r 10 $(CURDIR)/dist/spdk.test -test.run '^$$' -test.bench BenchmarkAttachBesideDeletion -test.benchtime 1x -test.timeout 10m

.PHONY: bench-clusters
bench-clusters: ## Measure the first write to a cluster after a snapshot, with clusters of each size, on the nvmf_tgt that WEFT_SPDK_TARGET names
	$(real-target)
	$(GO) test ./dataplane/engine/spdk -run '^$$' -bench BenchmarkFirstWriteAfterSnapshot -benchtime 5x -timeout 10m

# RECORD=dataplane/sizing/testdata/memory-26.05-volumes.json keeps what was measured.
RECORD ?= dist/memory.json
.PHONY: bench-memory
bench-memory: ## Measure the memory of the nvmf_tgt that WEFT_SPDK_TARGET names, with one and two cores, and hold the model against it
	$(real-target)
	@mkdir -p $(dir $(RECORD))
	WEFT_SPDK_MEMORY=$(abspath $(RECORD)) $(GO) test ./dataplane/engine/spdk -run TestMeasureMemory -count=1 -timeout 10m
	WEFT_SPDK_MEMORY=$(abspath $(RECORD)) $(GO) test ./dataplane/sizing -run TestMemoryModelMeetsVolumes -count=1 -v

.PHONY: bench-kernel
bench-kernel: $(LAB) ## Measure the kernel in a virtual machine of its own: calls with many items, durable writes, and the layers of a node's stack
	$(MACHINE) down
	$(MACHINE) up --nodes 1 --no-cluster
	$(GO) test -c -tags lab -o $(MACHINE_DIR)/share/nvmet.test ./dataplane/engine/nvmet
	$(MACHINE) exec node1 -- /host-share/nvmet.test -test.v -test.run '^TestMeasure'
	$(GO) test -c -tags lab -o $(MACHINE_DIR)/share/node.test ./csi-driver/node
	$(MACHINE) exec node1 -- /host-share/node.test -test.v -test.run '^TestMeasure'
	$(MACHINE) down

# Flags of weft-lab bench, such as --rounds 5; docs/benchmarks.md has those for a real cluster.
BENCH ?=
.PHONY: bench-data
bench-data: binaries $(LAB) $(HELM) ## Measure volumes from a pod to the drive with fio, beside a local drive: in the lab, or with BENCH='--kubeconfig ...' in a cluster
	cd test/e2e && $(LAB) bench $(BENCH)

##@ The lab: a real cluster on this machine

.PHONY: lab-up
lab-up: $(LAB) ## Start the lab: control plane and two nodes
	cd test/e2e && $(LAB) up

.PHONY: lab-down
lab-down: $(LAB) ## Stop the lab and the machines of the kernel tests, and only them
	cd test/e2e && $(LAB) down
	cd test/e2e && WEFT_LAB_DIR=$(CURDIR)/.lab-machine $(LAB) down
	cd test/e2e && WEFT_LAB_DIR=$(CURDIR)/.lab-machine-hosts $(LAB) down

# kind's nodes share the host's kernel: what it lacks is said before anything is built.
KIND_CLUSTER = KIND=$(KIND) HELM=$(HELM) IMAGE=$(IMAGE) TARGET_IMAGE=$(TARGET_IMAGE) hack/kind/kind.sh
.PHONY: kind-up
kind-up: ## Make a kind cluster with weft, and a pod on a volume of each engine; needs Docker on Linux; not part of CI
	$(KIND_CLUSTER) check
	$(MAKE) $(KIND) $(HELM) images
	$(KIND_CLUSTER) up

.PHONY: kind-down
kind-down: $(KIND) ## Delete the volumes of the kind cluster, and the cluster
	$(KIND_CLUSTER) down

##@ Release

# One way for a maintainer's machine, the workflow and test-release: docs/design/release.md.
RELEASE_TOOL := $(GO) -C hack/release run .
RELEASE_ARCHES := amd64 arm64
# Where the release goes.
RELEASE ?= $(CURDIR)/dist/release
# What the images are built on: a folder with amd64.tar and arm64.tar, an OCI image layout, or an image in a registry.
# Empty: made of Debian's packages, once (make clean removes it). TARGET_BASE: see above; without it there is no weft-target.
BASE ?=
BASES := $(CURDIR)/dist/base
# release-version is that of the tag, or of a development build.
release-version = $(shell $(RELEASE_TOOL) version)

.PHONY: release
release: $(HELM) $(if $(BASE),,$(RELEASE_ARCHES:%=$(BASES)/%.tar)) ## Build a release for both architectures into dist/release: images, chart, kubectl-weft, SBOMs, checksums, release notes
	$(MAKE) --silent release-programs VERSION=$(or $(release-version),$(error no version))
	$(RELEASE_TOOL) build --out $(RELEASE) --helm $(HELM) --base $(or $(BASE),$(BASES)) $(if $(TARGET_BASE),--target-base $(TARGET_BASE))

.PHONY: release-programs
release-programs:
	$(foreach arch,$(RELEASE_ARCHES),$(MAKE) --silent binaries ARCH=$(arch) &&) true
	$(foreach arch,$(RELEASE_ARCHES),GOOS=darwin GOARCH=$(arch) $(GO) build -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN)/darwin-$(arch)/ $(PACKAGE_cli) &&) true

$(BASES)/%.tar: hack/release/base/base.go hack/release/base/prune.sh
	$(RELEASE_TOOL) base $* $@

# REGISTRY is the prefix of the repositories, such as ghcr.io/weft-storage. Only the release workflow calls it.
.PHONY: release-push
release-push: ## Push dist/release to REGISTRY; nothing that is there is replaced
	$(RELEASE_TOOL) push --from $(RELEASE) --to '$(REGISTRY)'

# Two releases, the second with nothing left of the first, have the same bytes; then the tests look into one.
.PHONY: test-release
test-release: $(HELM) ## Release twice, compare, and check what was released
	rm -rf dist/release dist/release-again bin/amd64 bin/arm64 bin/darwin-*
	$(MAKE) --silent release
	rm -rf bin/amd64 bin/arm64 bin/darwin-*
	$(MAKE) --silent release RELEASE=$(CURDIR)/dist/release-again
	diff --recursive dist/release dist/release-again
	WEFT_RELEASE=$(RELEASE) $(GO) -C hack/release test $(TESTFLAGS) ./... -count=1 -run TestRelease

##@ Tools

$(CONTROLLER_GEN): tools/go.mod tools/go.sum
	$(GO) -C tools build -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen
$(HELM): tools/go.mod tools/go.sum
	$(GO) -C tools build -o $@ helm.sh/helm/v4/cmd/helm
$(GOLANGCI_LINT): tools/lint/go.mod tools/lint/go.sum
	$(GO) -C tools/lint build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(GOVULNCHECK): tools/vuln/go.mod tools/vuln/go.sum
	$(GO) -C tools/vuln build -o $@ golang.org/x/vuln/cmd/govulncheck
# Without what finds targets, which is most of it.
$(PROMTOOL) $(PROMETHEUS): tools/prometheus/go.mod tools/prometheus/go.sum
	$(GO) -C tools/prometheus build -tags remove_all_sd -o $@ github.com/prometheus/prometheus/cmd/$(@F)
$(KIND): tools/go.mod tools/go.sum
	$(GO) -C tools build -o $@ sigs.k8s.io/kind
$(ACTIONLINT): tools/go.mod tools/go.sum
	$(GO) -C tools build -o $@ github.com/rhysd/actionlint/cmd/actionlint
$(LAB): FORCE
	$(GO) -C test/e2e build -o $@ ./cmd/weft-lab
.PHONY: FORCE
FORCE:

.PHONY: clean
clean: ## Remove what was built here; the lab's cache (~/.cache/weft) stays
	rm -rf $(BIN) dist

.PHONY: help
help: ## Show this
	@awk 'BEGIN {FS = ":.*##"} /^[a-zA-Z0-9_-]+:.*?##/ {printf "  %-16s %s\n", $$1, $$2} /^##@/ {printf "\n%s\n", substr($$0, 5)}' $(MAKEFILE_LIST)
