{{- define "ebb.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "ebb.selector" -}}
app.kubernetes.io/name: ebb
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ebb.labels" -}}
{{ include "ebb.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}
