"""Checks transaction ids and recall handles before a request goes to a broker."""

from __future__ import annotations

from popgate.errors import BadRequest, IllegalTransactionId, shown
from popgate.ids.receipt import NO_RECALL_HANDLE
from popgate.model import EndTransaction, MessageType, Route
from processors.routing import check_type

_LONGEST_ID = 4096
"""Characters of a transaction id or recall handle that is worth looking at."""


def check_end(end: EndTransaction) -> None:
    """Raises IllegalTransactionId for an id that no broker can have given."""
    if end.place is not None:
        return
    if not end.transaction_id.strip():
        raise IllegalTransactionId("it must not be blank", "transaction id cannot be empty")
    if len(end.transaction_id) > _LONGEST_ID:
        raise IllegalTransactionId(f"it has {len(end.transaction_id)} characters, the limit is {_LONGEST_ID}")


def check_recall(recall_handle: str, route: Route, *, check_types: bool) -> None:
    """Raises BadRequest for a handle that cannot be one, MessageTypeMismatch for a topic without delays."""
    if check_types:
        check_type(MessageType.DELAY, route)
    if not recall_handle.strip():
        raise BadRequest("the recall handle must not be blank", known_as=NO_RECALL_HANDLE)
    if len(recall_handle) > _LONGEST_ID:
        raise BadRequest(
            f"the recall handle {shown(recall_handle)} has {len(recall_handle)} characters,"
            f" the limit is {_LONGEST_ID}",
            known_as=NO_RECALL_HANDLE,
        )
