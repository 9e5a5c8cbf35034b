#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A lab whose dashboards have something to show, and a Prometheus that collects it at http://127.0.0.1:9090 until Ctrl-C:
#   NVMF_TGT=/path/to/nvmf_tgt hack/dashboards/lab.sh
# The target `fast` serves a drive of node1 and one of node2 with the kernel's engine, and `spdk-file` a file of node3
# with the nvmf_tgt. load.yaml has what uses them. What is done already is not done again.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${NVMF_TGT:?the path of an nvmf_tgt of this machine, as in docs/tasks/bring-your-own-spdk.md}"
image=lab.example/weft-target
work=$PWD/.lab/prometheus

make --silent binaries "$PWD/bin/weft-lab" "$PWD/bin/helm" "$PWD/bin/prometheus"
make image-target NVMF_TGT="$NVMF_TGT" TARGET_IMAGE=$image:pictures
export HELM=$PWD/bin/helm KUBECONFIG=$PWD/.lab/kubeconfig PATH=$PWD/bin:$PATH
PATH=$(weft-lab assets-dir):$PATH
weft-lab up --nodes 3 --memory 2048 --weft
kubectl get pod/weft-demo >/dev/null 2>&1 || weft-lab demo
weft-lab images load dist/weft-target.tar
weft-lab images fio

helm upgrade weft charts/weft --namespace weft-system --reset-then-reuse-values --wait --timeout 10m --hide-notes \
  --set target.image.repository=$image,target.image.tag=pictures \
  --set metrics.agents.port=9809,metrics.nodePlugins.port=9808 \
  --set 'metrics.readers[0].namespace=weft-system,metrics.readers[0].name=prometheus'
kubectl patch nvmftarget fast --type=merge \
  --patch '{"spec":{"devices":{"selector":{"byID":["nvme-*_weft-node1-0","nvme-*_weft-node2-0"]}}}}'
kubectl label --overwrite node node2 weft.storage/target=fast
kubectl label --overwrite node node3 weft.storage/target=spdk-file
kubectl apply -f config/samples/storageclass-replicas.yaml -f config/samples/spdk/target-file.yaml
kubectl patch nvmftarget spdk-file --type=merge --patch '{"spec":{"latencyHistograms":"Enabled"}}'
kubectl wait --for=condition=Ready nvmfnode --all --timeout=10m
kubectl apply -f hack/dashboards/load.yaml
kubectl wait --for=condition=Ready --namespace shop pod --all --timeout=15m

mkdir -p "$work"
kubectl --namespace weft-system create serviceaccount prometheus --dry-run=client -o yaml | kubectl apply -f -
kubectl --namespace weft-system create token prometheus --duration=24h >"$work/token"
# Every component, in the emulated machines' time: they need seconds to answer.
{
  echo 'global: {scrape_interval: 15s, scrape_timeout: 12s}'
  echo 'scrape_configs:'
  for component in operator:8443 csi-controller:8443 agent:9809 csi-node:9808; do
    name=${component%:*} port=${component#*:}
    printf '%s\n' "- job_name: weft-$name" '  scheme: https' '  honor_labels: true' '  tls_config: {insecure_skip_verify: true}' \
      "  authorization: {credentials_file: $work/token}" '  static_configs:'
    kubectl --namespace weft-system get pods --selector "app.kubernetes.io/component=$name" --field-selector status.phase=Running \
      -o jsonpath='{range .items[*]}{.status.podIP} {.spec.nodeName}{"\n"}{end}' |
      while read -r ip node; do echo "  - {targets: ['$ip:$port'], labels: {node: $node}}"; done
  done
} >"$work/prometheus.yml"
bin/prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address=127.0.0.1:9090 --log.level=warn &
trap 'kill $!' EXIT
echo 'collecting'

# becomes CLAIM STATE: waits until the volume of the claim has this state.
becomes() {
  kubectl wait --timeout=20m --for=jsonpath='{.status.state}'="$2" \
    nvmfvolume/"$(kubectl --namespace shop get pvc "$1" -o jsonpath='{.spec.volumeName}')"
}

# Graphs need some minutes of load, and two scrapes to show something. Then one replica of the volume `database` cannot be
# reached until it is out of use, and `logs` gets a second one.
sleep 300
weft-lab exec node2 -- iptables -I INPUT -p tcp --dport 4420 -s "$(kubectl get node node3 -o jsonpath='{.status.addresses[0].address}')" -j DROP
becomes database Degraded
sleep 30
weft-lab exec node2 -- iptables -D INPUT 1
becomes database Ready
if [[ $(kubectl --namespace shop get pvc logs -o jsonpath='{.spec.volumeAttributesClassName}') != weft-two ]]; then
  kubectl apply -f config/samples/volumeattributesclass-replicas.yaml
  kubectl --namespace shop patch pvc logs --patch '{"spec":{"volumeAttributesClassName":"weft-two"}}'
  becomes logs Degraded
fi
becomes logs Ready
sleep 30
echo 'enough for pictures; in another shell: make dashboard-pictures PROMETHEUS_URL=http://127.0.0.1:9090 DRAW="--range 14m --var namespace=shop"'
wait
