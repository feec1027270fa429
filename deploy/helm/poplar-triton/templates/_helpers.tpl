{{- define "poplar-triton.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Names of objects: 52 characters leave room for suffixes. */}}
{{- define "poplar-triton.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "poplar-triton.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "poplar-triton.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "poplar-triton.selectorLabels" -}}
app.kubernetes.io/name: {{ include "poplar-triton.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "poplar-triton.labels" -}}
{{ include "poplar-triton.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "poplar-triton.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "poplar-triton.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "poplar-triton.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/*
Grace period: the drain, Triton's wait for running requests, 15 s until the supervisor kills Triton, and 10 s for
the rest.
*/}}
{{- define "poplar-triton.gracePeriod" -}}
{{- add (max .Values.supervisor.drainSeconds .Values.supervisor.maxDrainSeconds) .Values.supervisor.exitTimeoutSeconds 15 10 }}
{{- end }}

{{- define "poplar-triton.proxyName" -}}
{{- printf "%s-proxy" (include "poplar-triton.fullname" .) }}
{{- end }}

{{/* The proxies' pods have another name than the servers'. */}}
{{- define "poplar-triton.proxySelectorLabels" -}}
app.kubernetes.io/name: {{ include "poplar-triton.name" . | trunc 57 | trimSuffix "-" }}-proxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "poplar-triton.proxyLabels" -}}
{{ include "poplar-triton.proxySelectorLabels" . }}
app.kubernetes.io/component: proxy
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The Service for clients: the proxies, or the servers if there are no proxies. */}}
{{- define "poplar-triton.frontName" -}}
{{- if .Values.proxy.enabled }}
{{- include "poplar-triton.proxyName" . }}
{{- else }}
{{- include "poplar-triton.fullname" . }}
{{- end }}
{{- end }}

{{/*
deploy/envoy.yaml with the servers' name and the limits replaced. The proxies share a server's limit and the
queue.
*/}}
{{- define "poplar-triton.envoy" -}}
{{- $share := divf .Values.proxy.serverRequests .Values.proxy.replicas | ceil | int }}
{{- $queue := divf .Values.proxy.queue .Values.proxy.replicas | ceil | int }}
{{- .Files.Get "files/envoy.yaml"
  | replace "address: triton, port_value" (printf "address: %s-headless, port_value" (include "poplar-triton.fullname" .))
  | replace "max_concurrent_streams: 32" (printf "max_concurrent_streams: %d" $share)
  | replace "{max_connections: 32}" (printf "{max_connections: %d}" $share)
  | replace "max_pending_requests: 64" (printf "max_pending_requests: %d" $queue)
  | replace "min_retry_concurrency: 32" (printf "min_retry_concurrency: %d" $share)
  | replace "&patience 60s" (printf "&patience %ds" (int .Values.proxy.responseSeconds))
  | replace "timeout: 180s" (printf "timeout: %ds" (mul 3 .Values.proxy.responseSeconds)) }}
{{- end }}

{{- define "poplar-triton.proxyImage" -}}
{{- if .Values.proxy.image.digest }}
{{- printf "%s@%s" .Values.proxy.image.repository .Values.proxy.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.proxy.image.repository .Values.proxy.image.tag }}
{{- end }}
{{- end }}
