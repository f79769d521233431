{{/* The pod of both modes; (dict "root" $ "data" the volume of the data folder, empty where a claim has it) */}}
{{- define "popgate.pod" -}}
{{- $ := .root -}}
metadata:
  annotations:
    # Settings are read at the start: what changes them makes new pods.
    checksum/settings: {{ include "popgate.settings" $ | sha256sum }}
    {{- with $.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- include "popgate.labels" $ | nindent 4 }}
    {{- with $.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "popgate.serviceAccountName" $ }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  # The gateway ends within drainSeconds of SIGTERM, lame-duck time included; what even then keeps it is ended 10 s later.
  terminationGracePeriodSeconds: {{ add (int $.Values.stopping.drainSeconds) 10 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: popgate
      image: {{ include "popgate.image" $ | quote }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      args: [serve, --config, /etc/popgate/settings/popgate.toml]
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      {{- $adminPort := int $.Values.admin.port }}
      {{- if or (ne $adminPort 8083) (and (eq $.Values.mode "cluster") $.Values.cluster.credentials.existingSecret) $.Values.extraEnv }}
      env:
        {{- if ne $adminPort 8083 }}
        # Commands in the pod look there; it is the setting `admin`, too.
        - name: POPGATE_ADMIN
          value: http://0.0.0.0:{{ $adminPort }}
        {{- end }}
        {{- if and (eq $.Values.mode "cluster") $.Values.cluster.credentials.existingSecret }}
        - name: POPGATE_REMOTE__ACCESS_KEY
          valueFrom:
            secretKeyRef:
              name: {{ $.Values.cluster.credentials.existingSecret }}
              key: {{ $.Values.cluster.credentials.accessKeyKey }}
        {{- end }}
        {{- with $.Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      ports:
        {{- range $name, $door := $.Values.doors }}
        {{- if $door.enabled }}
        - name: {{ $name }}
          containerPort: {{ $door.port }}
          protocol: TCP
        {{- end }}
        {{- end }}
        - name: admin
          containerPort: {{ $.Values.admin.port }}
          protocol: TCP
      # The admin port is open before the store is: a large one that is opened anew is not ready, but not dead.
      startupProbe:
        httpGet: {path: /health, port: admin}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 150
      # Every 2 s, and out at the first refusal: well within half of the lame-duck time.
      readinessProbe:
        httpGet: {path: /ready, port: admin}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 1
      livenessProbe:
        httpGet: {path: /health, port: admin}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      resources:
        {{- toYaml $.Values.resources | nindent 8 }}
      volumeMounts:
        # As a folder: Kubernetes does not update a file that is mounted by subPath, which a reload would read.
        - name: settings
          mountPath: /etc/popgate/settings
          readOnly: true
        - name: data
          mountPath: /var/lib/popgate
        - name: temporary
          mountPath: /tmp
        {{- if $.Values.tls.existingSecret }}
        - name: tls
          mountPath: /etc/popgate/tls
          readOnly: true
        {{- if $.Values.tls.clientCa.existingSecret }}
        - name: client-ca
          mountPath: /etc/popgate/client-ca
          readOnly: true
        {{- end }}
        {{- if $.Values.tls.crl.existingSecret }}
        - name: crl
          mountPath: /etc/popgate/crl
          readOnly: true
        {{- end }}
        {{- end }}
        {{- if eq $.Values.mode "cluster" }}
        - name: transactions
          mountPath: /etc/popgate/transactions
          readOnly: true
        {{- if $.Values.cluster.credentials.existingSecret }}
        - name: credentials
          mountPath: /etc/popgate/credentials
          readOnly: true
        {{- end }}
        {{- if and $.Values.cluster.tls.enabled $.Values.cluster.tls.existingSecret }}
        - name: broker-tls
          mountPath: /etc/popgate/broker-tls
          readOnly: true
        {{- end }}
        {{- end }}
        {{- with $.Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: settings
      configMap:
        name: {{ include "popgate.fullname" $ }}
    - name: temporary
      emptyDir: {}
    {{- if .emptyData }}
    - name: data
      emptyDir: {}
    {{- end }}
    {{- if $.Values.tls.existingSecret }}
    - name: tls
      secret:
        secretName: {{ $.Values.tls.existingSecret }}
        defaultMode: 0440
    {{- if $.Values.tls.clientCa.existingSecret }}
    - name: client-ca
      secret:
        secretName: {{ $.Values.tls.clientCa.existingSecret }}
        defaultMode: 0440
    {{- end }}
    {{- if $.Values.tls.crl.existingSecret }}
    - name: crl
      secret:
        secretName: {{ $.Values.tls.crl.existingSecret }}
        defaultMode: 0440
    {{- end }}
    {{- end }}
    {{- if eq $.Values.mode "cluster" }}
    - name: transactions
      secret:
        secretName: {{ include "popgate.transactionSecret" $ }}
        defaultMode: 0440
    {{- if $.Values.cluster.credentials.existingSecret }}
    - name: credentials
      secret:
        secretName: {{ $.Values.cluster.credentials.existingSecret }}
        defaultMode: 0440
    {{- end }}
    {{- if and $.Values.cluster.tls.enabled $.Values.cluster.tls.existingSecret }}
    - name: broker-tls
      secret:
        secretName: {{ $.Values.cluster.tls.existingSecret }}
        defaultMode: 0440
    {{- end }}
    {{- end }}
    {{- with $.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if and (eq $.Values.mode "cluster") $.Values.topologySpread.enabled }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - topologyKey: {{ . }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "popgate.selectorLabels" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- with $.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
