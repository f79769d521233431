"""The metrics of a process: counted cheaply on the way, rendered at the scrape.

A request costs a few dictionary and list steps; Prometheus' own objects are created at the scrape. The
names are a contract (`proxy.metrics.names`). Labels are bounded: methods, operations, codes and faults
are closed sets, topics and groups have limits and are removed when they are idle.
"""

from __future__ import annotations

from proxy.metrics.exposition import CONTENT_TYPE, Metrics
from proxy.metrics.histograms import BUCKETS, COARSE
from proxy.metrics.labels import OTHER

__all__ = ["BUCKETS", "COARSE", "CONTENT_TYPE", "OTHER", "Metrics"]
