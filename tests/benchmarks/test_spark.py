from __future__ import annotations

import re
from collections.abc import Callable

RATE = r"[\d,]+ rows/s \([\d,]+ to [\d,]+\), \d+\.\d\d us of the gateway's CPU per row, \d+\.\d\d of Spark's"
FORMS = (
    rf"spark\.sink {RATE}",
    rf"spark\.read_all_columns {RATE}",
    rf"spark\.read_lean {RATE}",
    r"spark\.one_row_batch \d+ ms, Spark's rate source \d+ ms, [+-]\d+ ms \(\d+ and \d+ batches\)",
    r"spark\.many_queues \d+\.\d\d s, 64 queues with one row each",
)


def test_each_part_tells_its_figure(measured: Callable[..., list[str]]) -> None:
    lines = measured("spark.py")
    assert len(lines) == len(FORMS), lines
    for line, form in zip(lines, FORMS, strict=True):
        assert re.fullmatch(form, line), line
