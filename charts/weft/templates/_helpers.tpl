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

{{/* Times of every liveness probe. */}}
{{- define "weft.livenessTimes" -}}
# Killing what answers late makes a busy node busier. Liveness probes are for what hangs, so they wait three minutes.
periodSeconds: 20
timeoutSeconds: 15
failureThreshold: 9
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
  {{- include "weft.livenessTimes" . | nindent 2 }}
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

{{/* The certificate of the metrics, for the processes that serve them on a port; nothing while each creates its own. A
Secret that lacks one of the keys keeps the pod from starting, and the pod's Events say so. */}}
{{- define "weft.metricsArg" -}}
{{- with .Values.metrics.tls.secretName -}}
- --metrics-cert-dir=/etc/weft/metrics
{{- end -}}
{{- end }}

{{- define "weft.metricsMount" -}}
{{- with .Values.metrics.tls.secretName -}}
- {name: metrics-cert, mountPath: /etc/weft/metrics, readOnly: true}
{{- end -}}
{{- end }}

{{- define "weft.metricsVolume" -}}
{{- with .Values.metrics.tls.secretName -}}
- name: metrics-cert
  secret:
    secretName: {{ . | quote }}
    items:
    - {key: tls.crt, path: tls.crt}
    - {key: tls.key, path: tls.key}
{{- end -}}
{{- end }}

{{/* What the environment of a process says about traces; nothing while they are off. */}}
{{- define "weft.tracingEnv" -}}
{{- with .Values.tracing -}}
{{- if .endpoint -}}
{{- if and (hasPrefix "https://" .endpoint) (not .tls.secretName) -}}
{{- fail "tracing.endpoint with https:// requires tracing.tls.secretName" -}}
{{- end -}}
{{- if and .tls.secretName (hasPrefix "http://" .endpoint) -}}
{{- fail "tracing.tls.secretName requires a tracing.endpoint with https://" -}}
{{- end -}}
- name: HOST_IP
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .samplingRatio | quote }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.node.name=$(NODE_NAME),k8s.namespace.name=$(POD_NAMESPACE)
{{- if .tls.secretName }}
- name: OTEL_EXPORTER_OTLP_CERTIFICATE
  value: /etc/weft/tracing/ca.crt
{{- if .tls.clientCertificate }}
- name: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE
  value: /etc/weft/tracing/tls.crt
- name: OTEL_EXPORTER_OTLP_CLIENT_KEY
  value: /etc/weft/tracing/tls.key
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "weft.tracingMount" -}}
{{- if and .Values.tracing.endpoint .Values.tracing.tls.secretName -}}
- {name: tracing, mountPath: /etc/weft/tracing, readOnly: true}
{{- end -}}
{{- end }}

{{- define "weft.tracingVolume" -}}
{{- if and .Values.tracing.endpoint .Values.tracing.tls.secretName -}}
- name: tracing
  secret: {secretName: {{ .Values.tracing.tls.secretName | quote }}}
{{- end -}}
{{- end }}
