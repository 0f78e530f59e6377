{{- define "lasthop.labels" -}}
app.kubernetes.io/name: lasthop
app.kubernetes.io/component: agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
