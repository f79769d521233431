"""Spans through a message's whole way, for OpenTelemetry, when `tracing.enabled` says so.

Nothing of OpenTelemetry is imported unless tracing is on, and then only in this folder: the processor
that makes spans takes the place of the plain one when the house is built, so that a gateway without
tracing pays nothing.
"""
