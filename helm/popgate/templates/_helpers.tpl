{{- define "popgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "popgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "popgate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "popgate.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "popgate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "popgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "popgate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "popgate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "popgate.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "popgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "popgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/*
The number of pods that the manifest sets; empty: none. Helm removes a field that its manifest before had and the new
one has not, and Kubernetes makes `replicas` 1 then. So an autoscaled Deployment is given no number only where it is
new, or where the manifest before had none either, which a label tells; elsewhere as many as there are, and not fewer
than the autoscaler has at least, which does not scale from 0. An annotation would not do: `kubectl rollout undo` puts
back those of then, which ReplicaSets keep, and leaves the labels of a Deployment alone.
*/}}
{{- define "popgate.replicas" -}}
{{- if not .Values.autoscaling.enabled -}}
{{- .Values.replicas -}}
{{- else -}}
{{- $there := lookup "apps/v1" "Deployment" .Release.Namespace (include "popgate.fullname" .) -}}
{{- if and $there (ne (dig "metadata" "labels" "popgate/replicas" "" $there) "autoscaler") -}}
{{- max (int .Values.autoscaling.minReplicas) (int (dig "spec" "replicas" 1 $there)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "popgate.transactionSecret" -}}
{{- default (printf "%s-transactions" (include "popgate.fullname" .)) .Values.cluster.transactionKey.existingSecret -}}
{{- end -}}

{{/*
The chart's own Secret with the transaction key, as the cluster has it now; empty where there is none, or nobody can
look. Fails where it lacks a key that the pods would read. A Secret of others is not looked up: whoever installs the
chart need not be allowed to read it, and an umbrella chart may make it in the same step.
*/}}
{{- define "popgate.transactionSecretNow" -}}
{{- $name := include "popgate.transactionSecret" . -}}
{{- $there := lookup "v1" "Secret" .Release.Namespace $name -}}
{{- if $there -}}
{{- $has := keys (default dict $there.data) | sortAlpha -}}
{{- range $value, $key := dict "key" .Values.cluster.transactionKey.key "previousKey" .Values.cluster.transactionKey.previousKey -}}
{{- if and $key (not (has $key $has)) -}}
{{- fail (printf "cluster.transactionKey.%s is %q, and the Secret %s has no such key, only %s: name one of those, or add it to the Secret" $value $key $name (join ", " $has)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $there.data -}}
{{- end -}}
{{- end -}}

{{/* The address of a listener: (dict "root" $ "name" "remoting" "door" .Values.doors.remoting) */}}
{{- define "popgate.listen" -}}
{{- $options := list -}}
{{- $options = append $options (printf "tls=%s" (get (dict "off" "false" "optional" "permissive" "required" "true") .door.tls)) -}}
{{- $advertised := include "popgate.advertised" . -}}
{{- if $advertised -}}
{{- $options = append $options (printf "advertised=%s" $advertised) -}}
{{- end -}}
{{- printf "%s://0.0.0.0:%d" .name (int .door.port) -}}
?{{ join "&" $options }}
{{- end -}}

{{/* What clients of a listener are told to connect to; empty: what they dialled. Classic clients know no such thing. */}}
{{- define "popgate.advertised" -}}
{{- if .door.advertised -}}
{{- .door.advertised -}}
{{- else if eq .name "remoting" -}}
{{- if ne .door.service.type "ClusterIP" -}}
{{- fail (printf "doors.remoting.advertised is needed with a Service of type %s: the host:port at which clients reach it from outside; classic clients connect to the address that they are told" .door.service.type) -}}
{{- end -}}
{{- printf "%s-remoting.%s.svc.%s:%d" (include "popgate.fullname" .root) .root.Release.Namespace .root.Values.clusterDomain (int .door.service.port) -}}
{{- end -}}
{{- end -}}

{{/* What cannot be, as sentences. */}}
{{- define "popgate.check" -}}
{{- if and (eq .Values.mode "cluster") (not .Values.cluster.nameServers) -}}
{{- fail "cluster.nameServers is needed with mode=cluster: the host:port of each RocketMQ name server" -}}
{{- end -}}
{{- if and (eq .Values.mode "embedded") .Values.cluster.nameServers -}}
{{- fail "cluster.nameServers is given, but mode is embedded: set mode=cluster to serve that cluster" -}}
{{- end -}}
{{- if hasPrefix "tcp:" (toString .Values.config.share_broker) -}}
{{- fail (printf "config.share_broker is %q, for which the chart opens no port: in a pod it may be unix:/path, for another container" .Values.config.share_broker) -}}
{{- end -}}
{{- if not (or .Values.doors.grpc.enabled .Values.doors.remoting.enabled) -}}
{{- fail "no listener is enabled: set doors.grpc.enabled or doors.remoting.enabled" -}}
{{- end -}}
{{- $ports := list (int .Values.admin.port) -}}
{{- range $name, $door := .Values.doors -}}
{{- if $door.enabled -}}
{{- if has (int $door.port) $ports -}}
{{- fail (printf "doors.%s.port (%d) is taken: listeners and admin.port need ports of their own" $name (int $door.port)) -}}
{{- end -}}
{{- $ports = append $ports (int $door.port) -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.ingress.enabled (and .Values.gatewayApi.enabled .Values.gatewayApi.grpcParents)) (not .Values.doors.grpc.enabled) -}}
{{- fail "ingress and gatewayApi.grpcParents need doors.grpc.enabled: they lead to its Service" -}}
{{- end -}}
{{- if and .Values.gatewayApi.enabled .Values.gatewayApi.remotingParents (not .Values.doors.remoting.enabled) -}}
{{- fail "gatewayApi.remotingParents needs doors.remoting.enabled: it leads to its Service" -}}
{{- end -}}
{{- if and .Values.gatewayApi.enabled .Values.gatewayApi.remotingParents (not .Values.doors.remoting.advertised) -}}
{{- fail "gatewayApi.remotingParents needs doors.remoting.advertised: the host:port of the Gateway, which classic clients are told" -}}
{{- end -}}
{{- if and .Values.tls.clientCa.existingSecret (not .Values.tls.existingSecret) -}}
{{- fail "tls.clientCa needs tls.existingSecret: a Secret of type kubernetes.io/tls" -}}
{{- end -}}
{{- if and .Values.cluster.tls.crlKey (not .Values.cluster.tls.existingSecret) -}}
{{- fail "cluster.tls.crlKey needs cluster.tls.existingSecret: the Secret with that key and with the authorities" -}}
{{- end -}}
{{- if and .Values.tls.crl.existingSecret (not .Values.tls.clientCa.existingSecret) -}}
{{- fail "tls.crl needs tls.clientCa.existingSecret: the authorities whose lists it has" -}}
{{- end -}}
{{- if lt (int .Values.stopping.drainSeconds) (mul 2 (int .Values.stopping.lameDuckSeconds)) -}}
{{- fail (printf "stopping.drainSeconds (%d) has to be at least twice stopping.lameDuckSeconds (%d): what is under way needs the other half" (int .Values.stopping.drainSeconds) (int .Values.stopping.lameDuckSeconds)) -}}
{{- end -}}
{{- if and .Values.cluster.tls.clientCertificate (not .Values.cluster.tls.existingSecret) -}}
{{- fail "cluster.tls.clientCertificate needs cluster.tls.existingSecret: the Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a size as settings have it: 268435456, 256MiB, 1.5GiB, 10MB (proxy/config/units.py). */}}
{{- define "popgate.bytes" -}}
{{- $text := kindIs "string" . | ternary (toString .) (printf "%.0f" (float64 .)) | trim | lower -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text | trim -}}
{{- $factors := dict "" 1 "b" 1 "kb" 1000 "mb" 1000000 "gb" 1000000000 "tb" 1000000000000
    "k" 1024 "m" 1048576 "g" 1073741824 "t" 1099511627776
    "kib" 1024 "mib" 1048576 "gib" 1073741824 "tib" 1099511627776 -}}
{{- if or (not $number) (not (hasKey $factors $unit)) -}}
{{- fail (printf "%q is no size: write bytes, or like 64KiB, 4MiB, 10GiB" (toString .)) -}}
{{- end -}}
{{- int64 (mulf (float64 $number) (float64 (get $factors $unit))) -}}
{{- end -}}

{{/* What one process may have under way; 256 MiB is the setting's default. Each worker has a budget of its own. */}}
{{- define "popgate.budget" -}}
{{- include "popgate.bytes" (dig "budgets" "process_bytes" "256MiB" .Values.config) -}}
{{- end -}}

{{/*
A setting of `config.remote` that is given twice: the account's name is a variable in the pod, before which `config`
counts for nothing, and `tls` would contradict the value that mounts its files. Of other settings `config` wins.
*/}}
{{- define "popgate.checkBoth" -}}
{{- $values := dict -}}
{{- if .Values.cluster.credentials.existingSecret -}}
{{- $_ := set $values "access_key" "cluster.credentials.existingSecret" -}}
{{- end -}}
{{- if .Values.cluster.tls.enabled -}}
{{- $_ := set $values "tls" "cluster.tls.enabled" -}}
{{- end -}}
{{- range $name, $value := $values -}}
{{- if hasKey (default dict $.Values.config.remote) $name -}}
{{- fail (printf "config.remote.%s is given, and %s, which writes that setting too: remove config.remote.%s, or unset %s" $name $value $name $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* popgate.toml: what the chart knows, above it what `config` says. */}}
{{- define "popgate.settings" -}}
{{- $listen := list -}}
{{- range $name, $door := .Values.doors -}}
{{- if $door.enabled -}}
{{- $listen = append $listen (include "popgate.listen" (dict "root" $ "name" $name "door" $door)) -}}
{{- end -}}
{{- end -}}
{{- $settings := dict
    "broker" (ternary (printf "rocketmq://%s" (join "," .Values.cluster.nameServers)) "embedded:" (eq .Values.mode "cluster"))
    "data" "/var/lib/popgate"
    "workers" (int .Values.workers)
    "listen" $listen
    "admin" (printf "http://0.0.0.0:%d" (int .Values.admin.port))
    "log" (dict "format" "json")
    "stopping" (dict "lame_duck_s" (int .Values.stopping.lameDuckSeconds) "drain_s" (int .Values.stopping.drainSeconds)) -}}
{{- if .Values.tls.existingSecret -}}
{{- $tls := dict "certificate" "/etc/popgate/tls/tls.crt" "key" "/etc/popgate/tls/tls.key" -}}
{{- if .Values.tls.clientCa.existingSecret -}}
{{- $_ := set $tls "client_ca" (printf "/etc/popgate/client-ca/%s" .Values.tls.clientCa.key) -}}
{{- end -}}
{{- if .Values.tls.crl.existingSecret -}}
{{- $_ := set $tls "crl_file" (printf "/etc/popgate/crl/%s" .Values.tls.crl.key) -}}
{{- end -}}
{{- $_ := set $settings "tls" $tls -}}
{{- end -}}
{{- if eq .Values.mode "cluster" -}}
{{- $remote := dict "transaction_key_file" (printf "/etc/popgate/transactions/%s" .Values.cluster.transactionKey.key) -}}
{{- with .Values.cluster.transactionKey.previousKey -}}
{{- $_ := set $remote "transaction_key_before_file" (printf "/etc/popgate/transactions/%s" .) -}}
{{- end -}}
{{- if .Values.cluster.credentials.existingSecret -}}
{{- $_ := set $remote "secret_key_file" (printf "/etc/popgate/credentials/%s" .Values.cluster.credentials.secretKeyKey) -}}
{{- end -}}
{{- if .Values.cluster.tls.enabled -}}
{{- $_ := set $remote "tls" true -}}
{{- if .Values.cluster.tls.existingSecret -}}
{{- $_ := set $remote "ca_file" (printf "/etc/popgate/broker-tls/%s" .Values.cluster.tls.caKey) -}}
{{- with .Values.cluster.tls.crlKey -}}
{{- $_ := set $remote "crl_file" (printf "/etc/popgate/broker-tls/%s" .) -}}
{{- end -}}
{{- if .Values.cluster.tls.clientCertificate -}}
{{- $_ := set $remote "cert_file" "/etc/popgate/broker-tls/tls.crt" -}}
{{- $_ := set $remote "key_file" "/etc/popgate/broker-tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "popgate.checkBoth" . -}}
{{- $_ := set $settings "remote" $remote -}}
{{- end -}}
{{- include "popgate.toml" (mergeOverwrite $settings (deepCopy .Values.config)) | trim -}}
{{- end -}}

{{/* TOML of plain settings and one level of tables. Helm's own writes 1024 as 1024.0 and 1e7 for numbers of values. */}}
{{- define "popgate.toml" -}}
{{- range $name, $value := . -}}
{{- if not (kindIs "map" $value) }}
{{ $name }} = {{ include "popgate.tomlValue" $value }}
{{- end -}}
{{- end -}}
{{- range $name, $value := . -}}
{{- if kindIs "map" $value }}

[{{ $name }}]
{{- range $inner, $one := $value }}
{{ $inner }} = {{ include "popgate.tomlValue" $one }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "popgate.tomlValue" -}}
{{- if kindIs "slice" . -}}
[{{- range $index, $one := . -}}{{- if $index }}, {{ end -}}{{- include "popgate.tomlValue" $one -}}{{- end -}}]
{{- else if kindIs "string" . -}}
{{- toJson . -}}
{{- else if kindIs "float64" . -}}
{{- if eq (float64 (int64 .)) . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}
