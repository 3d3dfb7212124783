{{- define "outlast.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "outlast.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "outlast.labels" -}}
{{ include "outlast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "outlast.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end -}}

{{- define "outlast.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "outlast.container" -}}
image: {{ include "outlast.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
      - ALL
{{- end -}}

{{- define "outlast.probes" -}}
startupProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    path: /readyz
    port: http
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* Every setting that a file of the Secret holds. */}}
{{- define "outlast.secrets" -}}
{{- range .Values.secret.keys }}
- name: {{ printf "OUTLAST_%s_FILE" (upper .) }}
  value: {{ printf "/run/secrets/%s" . }}
{{- end }}
{{- end -}}

{{- define "outlast.env" -}}
- name: OUTLAST_DRAIN_S
  value: {{ .Values.drainSeconds | quote }}
{{- include "outlast.secrets" . }}
{{- with .Values.secret.tokens }}
- name: OUTLAST_TOKENS_FILE
  value: {{ printf "/run/secrets/%s" . }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "outlast.mounts" -}}
- name: config
  mountPath: /etc/outlast
  readOnly: true
- name: secrets
  mountPath: /run/secrets
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "outlast.volumes" -}}
- name: config
  configMap:
    name: {{ include "outlast.name" . }}
- name: secrets
  secret:
    secretName: {{ .Values.secret.name }}
    defaultMode: 0440
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- end -}}
