{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/*
Names are fixed, not derived from the release: the CSI driver's name and the
CRDs exist once in a cluster, so a second release could not work beside the first.
*/}}

{{- define "weft.labels" -}}
{{ include "weft.commonLabels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "weft.commonLabels" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/part-of: weft
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What selectors use: never changes between versions. */}}
{{- define "weft.selector" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* An image reference: weft.image (dict "image" values "tag" default). */}}
{{- define "weft.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{- $tag := .image.tag | default .tag | required (printf "the image %s needs a tag or a digest" .image.repository) -}}
{{- if eq $tag "latest" -}}
{{- fail (printf "the image %s has the tag latest: set a version or a digest instead" .image.repository) -}}
{{- end -}}
{{ .image.repository }}:{{ $tag }}
{{- end -}}
{{- end }}

{{- define "weft.ownImage" -}}
{{ include "weft.image" (dict "image" .Values.image "tag" .Chart.AppVersion) }}
{{- end }}

{{/* Spread the replicas of a Deployment, unless the user says how. */}}
{{- define "weft.affinity" -}}
{{- if .affinity -}}
{{ toYaml .affinity }}
{{- else -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    podAffinityTerm:
      topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "weft.selector" .component | nindent 10 }}
{{- end -}}
{{- end }}

{{/* Pods and containers that need nothing from the node. */}}
{{- define "weft.unprivilegedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "weft.unprivilegedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
privileged: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Probes: weft.probes (dict "port" 8081), with "host" for pods in the node's network. */}}
{{- define "weft.probes" -}}
# A start may take minutes on a machine that is busy, and killing it makes it busier.
startupProbe:
  httpGet:
    {{- with .host }}
    host: {{ . }}
    {{- end }}
    path: /healthz
    port: {{ .port }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 150
livenessProbe:
  httpGet:
    {{- with .host }}
    host: {{ . }}
    {{- end }}
    path: /healthz
    port: {{ .port }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    {{- with .host }}
    host: {{ . }}
    {{- end }}
    path: /readyz
    port: {{ .port }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{- define "weft.nodeEnv" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{/* Sidecars of the CSI controller, in a fixed order: each one's port follows from its place. */}}
{{- define "weft.sidecars" -}}
provisioner attacher resizer
{{- $wanted := .Values.csi.controller.snapshotter.enabled -}}
{{- if or (eq $wanted "Always") (and (eq $wanted "Auto") (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1/VolumeSnapshot")) }} snapshotter{{ end }}
{{- end }}
