"""What happened, in numbers: counted cheaply while it happens, told when somebody scrapes.

A request costs a few dictionary and list steps; Prometheus' own objects are made at the scrape. The
names are a contract (`proxy.metrics.names`). Labels are bounded: methods, operations, codes and faults
are closed sets, topics and groups have settings and are forgotten when they are idle.
"""

from __future__ import annotations

from proxy.metrics.exposition import CONTENT_TYPE, Metrics
from proxy.metrics.histograms import BUCKETS, COARSE
from proxy.metrics.labels import OTHER

__all__ = ["BUCKETS", "COARSE", "CONTENT_TYPE", "OTHER", "Metrics"]
