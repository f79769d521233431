"""OpenTelemetry spans for the whole way of a message, if `tracing.enabled` is set.

OpenTelemetry is imported only if tracing is enabled, and only in this package: the processor that makes spans
replaces the plain one when the gateway is built, so that a gateway without tracing pays nothing.
"""
