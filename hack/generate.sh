#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes what is generated from Go markers and from the chart:
#   config/rbac           roles, from the +kubebuilder:rbac markers of each component
#   charts/weft/files     copies of config/crd and config/rbac: a chart must be whole by itself
#   config/default        what `kubectl apply -k` installs: the chart's default rendering
# `make generate` calls it, after config/crd is written.
set -euo pipefail
cd "$(dirname "$0")/.."

controller_gen=${CONTROLLER_GEN:-bin/controller-gen}
helm=${HELM:-bin/helm}
for tool in "$controller_gen" "$helm"; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: run 'make generate', which builds it" >&2; exit 1; }
done

roles() { # roles NAME PACKAGES: the role of one component
  "$controller_gen" rbac:roleName="$1",fileName="$1.yaml",headerFile=hack/header.yaml.txt paths="$2" output:rbac:dir=config/rbac
  [ -s "config/rbac/$1.yaml" ] || { echo "no +kubebuilder:rbac marker in $2, but $1 needs a role" >&2; exit 1; }
}
mkdir -p config/rbac
roles weft-operator ./operator/...
roles weft-agent ./dataplane/agent/...
roles weft-csi-controller ./csi-driver/controller/...
roles weft-csi-node ./csi-driver/node/...

copy() { # copy FROM TO: TO holds exactly the YAML files of FROM
  mkdir -p "$2"
  rm -f "$2"/*.yaml
  cp "$1"/*.yaml "$2"/
}
copy config/crd charts/weft/files/crds
copy config/rbac charts/weft/files/rbac

# Labels that would claim Helm manages what kubectl applied are left out.
{
  echo '# SPDX-License-Identifier: Apache-2.0'
  echo '# Generated from charts/weft by `make generate`. Do not edit.'
  "$helm" template weft charts/weft --namespace weft-system --kube-version 1.32.0 |
    sed -e '/^ *app\.kubernetes\.io\/managed-by: Helm$/d' -e '/^ *helm\.sh\/chart: /d' \
      -e '/^ *helm\.sh\/resource-policy: keep$/d' -e '/^# Source: /d'
} >config/default/weft.yaml.new
mv config/default/weft.yaml.new config/default/weft.yaml
