"""The metric names of revocation lists; a gateway without lists has none of them. See `names`."""

from __future__ import annotations

from proxy.metrics.spec import Spec

OF_REVOCATION = (
    Spec(
        "popgate_tls_crl_warnings",
        "gauge",
        "Revocation lists in `tls.crl_file` that the log warns about: missing, expired or near their end.",
        over="max",
    ),
    Spec(
        "popgate_tls_crl_expiry_timestamp_seconds",
        "gauge",
        "Unix time at which the first list in `tls.crl_file` expires.",
        over="min",
    ),
    Spec(
        "popgate_broker_tls_crl_warnings",
        "gauge",
        "Revocation lists in `remote.crl_file` that the log warns about: missing, expired or near their end.",
        over="max",
    ),
    Spec(
        "popgate_broker_tls_crl_expiry_timestamp_seconds",
        "gauge",
        "Unix time at which the first list in `remote.crl_file` expires.",
        over="min",
    ),
)
