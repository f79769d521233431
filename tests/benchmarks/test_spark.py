from __future__ import annotations

import re
from collections.abc import Callable

FORMS = (
    r"spark\.sink [\d,]+ rows/s, \d+\.\d\d us of the gateway's CPU per row",
    r"spark\.read_all_columns [\d,]+ rows/s, \d+\.\d\d us of the gateway's CPU per row",
    r"spark\.read_lean [\d,]+ rows/s, \d+\.\d\d us of the gateway's CPU per row",
    r"spark\.one_row_batch \d+ ms, Spark's rate source \d+ ms, [+-]\d+ ms \(\d+ and \d+ batches\)",
    r"spark\.many_queues \d+\.\d\d s, 64 queues with one row each",
)


def test_each_part_tells_its_figure(measured: Callable[..., list[str]]) -> None:
    lines = measured("spark.py")
    assert len(lines) == len(FORMS), lines
    for line, form in zip(lines, FORMS, strict=True):
        assert re.fullmatch(form, line), line
