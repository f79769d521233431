"""processors.consume.settlement: what is refused before a broker is asked."""

from __future__ import annotations

import pytest

from popgate.errors import BadRequest, IllegalReceipt
from processors.consume.settlement import check_receipts
from processors.limits import Limits


def test_an_acknowledgement_has_at_least_one_handle_and_not_too_many() -> None:
    with pytest.raises(IllegalReceipt):
        check_receipts([], Limits())
    with pytest.raises(BadRequest, match="5 handles, the limit is 4"):
        check_receipts(["h"] * 5, Limits(max_receipts_per_ack=4))
