{{- define "inferd.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "inferd.selector" -}}
app.kubernetes.io/name: inferd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "inferd.labels" -}}
{{ include "inferd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "inferd.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "inferd.name" . }}{{ else }}default{{ end }}
{{- end }}

{{- define "inferd.priorityClass" -}}
{{- if .Values.priorityClass.name }}{{ .Values.priorityClass.name }}{{ else if .Values.priorityClass.create }}{{ include "inferd.name" . }}-serving{{ end }}
{{- end }}

{{- define "inferd.check" -}}
{{- $ranks := mul .Values.parallel.tp .Values.parallel.pp .Values.parallel.ep }}
{{- if and (contains "/mig-" .Values.accelerator.resource) (gt (int $ranks) 1) }}
{{- fail "MIG slices have no link to one another: parallel.tp, pp and ep must be 1; use replicas" }}
{{- end }}
{{- if and (gt (int .Values.groupSize) 1) (eq .Values.mode "deployment") }}
{{- fail "groupSize above 1 needs mode leaderWorkerSet or statefulSet" }}
{{- end }}
{{- if and (gt (int .Values.groupSize) 1) (not .Values.cluster.existingSecret) }}
{{- fail "groupSize above 1 needs cluster.existingSecret, a Secret with the entry `secret`" }}
{{- end }}
{{- if and (ne .Values.autoscaling.kind "none") (eq .Values.mode "statefulSet") }}
{{- fail "mode statefulSet has one StatefulSet per replica and cannot be scaled by HPA or KEDA; use leaderWorkerSet" }}
{{- end }}
{{- if ne 0 (int (mod (mul $ranks .Values.parallel.dp) .Values.groupSize)) }}
{{- fail (printf "tp*pp*ep*dp = %d ranks cannot be dealt over groupSize %d pods" (int (mul $ranks .Values.parallel.dp)) (int .Values.groupSize)) }}
{{- end }}
{{- if and .Values.accelerator.resource (eq .Values.device "cpu") }}
{{- fail "accelerator.resource is set but device is cpu: the devices would be held and not used; set device=cuda" }}
{{- end }}
{{- end }}

{{/* The pod of a role: single, leader, worker (LeaderWorkerSet), member (StatefulSet: rank by ordinal, `service` its headless Service). */}}
{{- define "inferd.pod" -}}
{{- $root := .root }}
{{- $values := .root.Values }}
{{- $serves := ne .role "worker" }}
metadata:
  labels:
    {{- include "inferd.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ if $serves }}server{{ else }}worker{{ end }}
    llm-d.ai/engine-type: inferd
    {{- with .labels }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with $values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $values.podAnnotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "inferd.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false  # a Service called inferd would set INFERD_PORT
  {{- with include "inferd.priorityClass" $root }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add $values.drain.delaySeconds $values.drain.timeoutSeconds 10 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: { type: RuntimeDefault }
  containers:
  - name: inferd
    image: "{{ $values.image.repository }}:{{ $values.image.tag | default (printf "%s%s" $root.Chart.AppVersion (ternary "" "-cuda" (eq $values.device "cpu"))) }}"
    imagePullPolicy: {{ $values.image.pullPolicy }}
    command: [/usr/local/bin/inferd]
    args:
    - serve
    - --model={{ $values.model.source }}
    {{- with $values.model.servedNames }}
    - --served-model-name={{ join "," . }}
    {{- end }}
    {{- with $values.model.version }}
    - --model-version={{ . }}
    {{- end }}
    {{- if ne $values.device "cpu" }}
    - --device={{ $values.device }}
    {{- end }}
    {{- range $flag := list "tp" "pp" "ep" "dp" }}
    {{- if gt (int (get $values.parallel $flag)) 1 }}
    - --{{ $flag }}={{ get $values.parallel $flag }}
    {{- end }}
    {{- end }}
    {{- if $serves }}
    - --host=0.0.0.0
    - --port={{ $values.service.port }}
    - --grpc-port={{ if $values.service.grpc }}{{ $values.service.grpcPort }}{{ else }}none{{ end }}
    - --drain-delay={{ $values.drain.delaySeconds }}
    - --shutdown-timeout={{ $values.drain.timeoutSeconds }}
    {{- if $values.auth.existingSecret }}
    - --api-key-file=/etc/inferd/keys/keys.yaml
    {{- end }}
    {{- end }}
    {{- if gt (int $values.groupSize) 1 }}
    - --nnodes={{ $values.groupSize }}
    {{- if ne .role "member" }}
    - --node-rank=$(LWS_WORKER_INDEX)
    - --leader={{ if $serves }}$(POD_IP){{ else }}$(LWS_LEADER_ADDRESS){{ end }}:7000
    {{- end }}
    - --data-address=$(POD_IP)
    - --cluster-secret-file=/etc/inferd/cluster/secret
    - --rendezvous-timeout={{ $values.startupSeconds }}
    {{- end }}
    {{- with $values.extraArgs }}{{ toYaml . | nindent 4 }}{{ end }}
    env:
    - { name: HOME, value: /models }
    - { name: INFERD_CACHE, value: /models }
    - name: POD_IP
      valueFrom: { fieldRef: { fieldPath: status.podIP } }
    {{- if eq .role "member" }}
    # The server takes its rank and its leader's address from these.
    - name: POD_INDEX
      valueFrom: { fieldRef: { fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']" } }
    - name: POD_NAME
      valueFrom: { fieldRef: { fieldPath: metadata.name } }
    - name: POD_NAMESPACE
      valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
    - { name: SERVICE_NAME, value: {{ .service }} }
    {{- end }}
    {{- with $values.extraEnv }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- if $serves }}
    ports:
    - { name: http, containerPort: {{ $values.service.port }} }
    {{- if $values.service.grpc }}
    - { name: grpc, containerPort: {{ $values.service.grpcPort }} }
    {{- end }}
    {{- range $probe := list
        (dict "name" "startupProbe" "path" "/startupz" "period" 5 "timeout" 1 "failures" (div (add $values.startupSeconds 4) 5))
        (dict "name" "readinessProbe" "path" "/readyz" "period" 1 "timeout" 1 "failures" 2)
        (dict "name" "livenessProbe" "path" "/livez" "period" 10 "timeout" 2 "failures" 3) }}
    {{ $probe.name }}:
      {{- if and (eq $.role "member") (gt (int $values.groupSize) 1) }}
      # Only the pod with ordinal 0 serves HTTP.
      exec: { command: [sh, -c, '[ "$POD_INDEX" != 0 ] || curl -fsS -m {{ $probe.timeout }} http://127.0.0.1:{{ $values.service.port }}{{ $probe.path }}'] }
      {{- else }}
      httpGet: { path: {{ $probe.path }}, port: http }
      {{- end }}
      periodSeconds: {{ $probe.period }}
      timeoutSeconds: {{ if eq $.role "member" }}{{ add $probe.timeout 1 }}{{ else }}{{ $probe.timeout }}{{ end }}
      failureThreshold: {{ $probe.failures }}
    {{- end }}
    {{- end }}
    resources:
      {{- $resources := deepCopy $values.resources }}
      {{- if $values.accelerator.resource }}
      {{- $ranks := mul $values.parallel.tp $values.parallel.pp $values.parallel.ep $values.parallel.dp }}
      {{- $count := $values.accelerator.count | default (div $ranks $values.groupSize) }}
      {{- $limits := merge (dict $values.accelerator.resource (toString $count)) ($resources.limits | default dict) }}
      {{- $_ := set $resources "limits" $limits }}
      {{- end }}
      {{- toYaml $resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: { drop: [ALL] }
    volumeMounts:
    - { name: models, mountPath: /models }
    - { name: tmp, mountPath: /tmp }
    - { name: shm, mountPath: /dev/shm }
    {{- if and $serves $values.auth.existingSecret }}
    - { name: keys, mountPath: /etc/inferd/keys, readOnly: true }
    {{- end }}
    {{- if gt (int $values.groupSize) 1 }}
    - { name: cluster, mountPath: /etc/inferd/cluster, readOnly: true }
    {{- end }}
  volumes:
  - name: models
    {{- if $values.model.claim }}
    persistentVolumeClaim: { claimName: {{ $values.model.claim }} }
    {{- else }}
    emptyDir: { sizeLimit: {{ $values.model.cacheSize }} }
    {{- end }}
  - name: tmp
    emptyDir: { sizeLimit: 1Gi }
  - name: shm
    emptyDir: { medium: Memory, sizeLimit: {{ $values.sharedMemory }} }
  {{- if and $serves $values.auth.existingSecret }}
  - name: keys
    secret: { secretName: {{ $values.auth.existingSecret }}, defaultMode: 288 }
  {{- end }}
  {{- if gt (int $values.groupSize) 1 }}
  - name: cluster
    secret: { secretName: {{ $values.cluster.existingSecret }}, defaultMode: 288 }
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
