#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A kind cluster with weft, and a pod on a volume of each engine that this host can serve with:
#   kind.sh check   say what the host lacks; fails if it can serve with no engine
#   kind.sh up      make the cluster, install weft, and show a volume of each engine
#   kind.sh down    delete the volumes, so that nothing of them stays in the host's kernel, and the cluster
# `make kind-up` and `make kind-down` run it with KIND, HELM, IMAGE and TARGET_IMAGE set.
set -euo pipefail

cluster=weft
kubectl=(kubectl --context "kind-$cluster")
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
samples=$repo/config/samples
# modprobe is often in a directory that only root has in its PATH.
PATH=$PATH:/usr/sbin:/sbin

say() { printf '%s\n' "$*"; }
fail() { printf 'kind-up: %s\n' "$*" >&2; exit 1; }

# lacking prints those of the given modules that the running kernel neither has built in nor can load.
lacking() {
  local module missing=
  for module in "$@"; do
    modprobe --dry-run --quiet "$module" || missing="$missing $module"
  done
  printf '%s' "${missing# }"
}

install_modules() { say "On Ubuntu: apt install linux-modules-extra-$(uname -r)."; }

check_docker() {
  [ "$(uname -s)" = Linux ] ||
    fail "this is $(uname -s), and weft needs a Linux kernel. Run it in a Linux virtual machine, or use \`make demo\` there."
  command -v docker >/dev/null || fail "there is no docker in PATH. Install Docker Engine, or use \`make demo\`, which needs none."
  command -v kubectl >/dev/null || fail "there is no kubectl in PATH. Install it: https://kubernetes.io/docs/tasks/tools/."
  local kernel security
  kernel=$(docker info --format '{{.KernelVersion}}') ||
    fail "Docker does not answer. Start it (systemctl start docker), and see that you may use it (group docker)."
  [ "$kernel" = "$(uname -r)" ] ||
    fail "Docker's containers run on kernel $kernel and this host on $(uname -r), as with Docker Desktop or a remote Docker." \
      "Use a Docker Engine of this host: \`docker context use default\`."
  security=$(docker info --format '{{.SecurityOptions}}')
  case $security in
  *rootless*) fail "Docker runs rootless, and nodes then cannot use the host's devices. Use the system's: \`docker context use default\`." ;;
  esac
}

# check sets nvmet and spdk: what the host lacks for each engine, empty if it lacks nothing.
check() {
  check_docker
  local missing
  missing=$(lacking nvme_tcp dm_mod)
  [ -z "$missing" ] || fail "this kernel lacks $missing, which every node that uses a volume needs. $(install_modules)"
  nvmet=$(lacking nvmet nvmet_tcp xfs loop)
  [ -z "$nvmet" ] || nvmet="the kernel lacks $nvmet. $(install_modules)"
  spdk=
  [ "$(nproc)" -ge 2 ] || spdk="it takes a whole CPU, and this host has only one."
  say "engine Nvmet (the kernel's target): ${nvmet:-yes}"
  say "engine SPDK: ${spdk:-yes; it runs on ordinary memory here, so it needs no hugepages}"
  [ -z "$nvmet" ] || [ -z "$spdk" ] || fail "this host can serve with neither engine."
}

# grep reads all: if it ended early, kind would fail of it.
has_cluster() { "$KIND" get clusters | grep -x "$cluster" >/dev/null; }

# show TARGET SAMPLE POD POD-SAMPLE: serve with a sample's target, and wait until a pod has written to a volume of it.
show() {
  "${kubectl[@]}" apply -f "$2"
  "${kubectl[@]}" wait --for=condition=Ready "nvmftarget/$1" --timeout=5m || {
    "${kubectl[@]}" describe "nvmftarget/$1" >&2
    fail "target $1 is not Ready; its conditions above say why. docs/troubleshooting/target-not-ready.md explains each."
  }
  "${kubectl[@]}" apply -f "$4"
  "${kubectl[@]}" wait --for=condition=Ready "pod/$3" --timeout=5m || {
    "${kubectl[@]}" describe "pod/$3" "pvc/$3" >&2
    fail "pod $3 is not Ready; its events above say why. see docs/troubleshooting/claim-pending.md and pod-not-starting.md."
  }
  "${kubectl[@]}" logs "$3"
}

up() {
  check
  has_cluster || "$KIND" create cluster --name "$cluster" --config "$here/cluster.yaml" --wait 3m
  "$KIND" load docker-image --name "$cluster" "$IMAGE" "$TARGET_IMAGE"
  "${kubectl[@]}" apply -f "$repo/config/default/namespace.yaml"
  "$HELM" upgrade --install weft "$repo/charts/weft" --kube-context "kind-$cluster" --namespace weft-system --wait --timeout 5m \
    --set-string "image.repository=${IMAGE%:*},image.tag=${IMAGE##*:}" \
    --set-string "target.image.repository=${TARGET_IMAGE%:*},target.image.tag=${TARGET_IMAGE##*:}" \
    --set-string 'agent.nodeSelector.weft\.storage/agent=true'
  # Not with ||, in which bash goes on after an error inside of show.
  if [ -z "$nvmet" ]; then show file "$samples/target-file.yaml" weft-demo "$samples/pvc-pod.yaml"; fi
  if [ -z "$spdk" ]; then show spdk-file "$samples/spdk/target-file.yaml" weft-demo-spdk "$samples/spdk/pvc-pod.yaml"; fi
  "${kubectl[@]}" get nvmfvolumes,nvmfreplicas
  [ -z "$nvmet" ] || say "No volume of the kernel's target: $nvmet"
  [ -z "$spdk" ] || say "No volume of SPDK's target: $spdk"
  say "The cluster is kind-$cluster in your kubeconfig: kubectl --context kind-$cluster get weft. \`make kind-down\` removes it."
}

# detach FILE: else the host's kernel keeps the loop device of a pool, and with it the space of its deleted file.
detach() {
  docker exec "$cluster-worker" sh -ec '
    for device in $(losetup --noheadings --output NAME --associated "$0"); do
      umount --all-targets "$device"
      losetup --detach "$device"
    done' "$1"
}

down() {
  if ! has_cluster; then
    say "There is no cluster $cluster."
    return
  fi
  if "${kubectl[@]}" get crd nvmftargets.weft.storage >/dev/null; then
    "${kubectl[@]}" delete pod,pvc --all --timeout=3m &&
      "${kubectl[@]}" delete nvmftarget --all --timeout=3m &&
      detach /var/lib/weft/file.img ||
      fail "volumes are left. Delete what uses them, and run it again. With \`$KIND delete cluster --name $cluster\`" \
        "the host's kernel would keep their connections until it boots."
  fi
  "$KIND" delete cluster --name "$cluster"
}

case ${1:-} in
check) check ;;
up) up ;;
down) down ;;
*) fail "usage: kind.sh check, up or down" ;;
esac
