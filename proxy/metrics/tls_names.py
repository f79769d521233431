"""The metric names of revocation lists; a gateway without lists has none of them. See `names`."""

from __future__ import annotations

from proxy.metrics.spec import Spec

OF_REVOCATION = (
    Spec(
        "popgate_tls_crl_refusing",
        "gauge",
        "Authorities without a valid list in `tls.crl_file`: their certificates are refused.",
        over="max",
    ),
    Spec(
        "popgate_tls_crl_warnings",
        "gauge",
        "Lists in `tls.crl_file` near their end or left out, and 1 for a renewed file that is not used.",
        over="max",
    ),
    Spec(
        "popgate_tls_crl_expiry_timestamp_seconds",
        "gauge",
        "Unix time at which the first list in `tls.crl_file` expires.",
        over="min",
    ),
    Spec(
        "popgate_broker_tls_crl_refusing",
        "gauge",
        "Authorities without a valid list in `remote.crl_file`: their certificates are refused.",
        over="max",
    ),
    Spec(
        "popgate_broker_tls_crl_warnings",
        "gauge",
        "Lists in `remote.crl_file` near their end or left out, and 1 for a renewed file that is not used.",
        over="max",
    ),
    Spec(
        "popgate_broker_tls_crl_expiry_timestamp_seconds",
        "gauge",
        "Unix time at which the first list in `remote.crl_file` expires.",
        over="min",
    ),
)
