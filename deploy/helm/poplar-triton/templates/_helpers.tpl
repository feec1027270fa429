{{- define "poplar-triton.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Names of objects: 52 characters leave room for what is put behind. */}}
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
From the signal to the end: the drain, Triton's own wait for what is under way, the 15 s after which the
supervisor kills it, and 10 s for what is left.
*/}}
{{- define "poplar-triton.gracePeriod" -}}
{{- add .Values.supervisor.drainSeconds .Values.supervisor.exitTimeoutSeconds 15 10 }}
{{- end }}
