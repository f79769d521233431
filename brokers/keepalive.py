"""The kernel looks after connections too, beside the signs of life that a channel asks for."""

from __future__ import annotations

import os
import socket


def keep_alive(descriptor: int, seconds: float) -> None:
    """Let the kernel notice a dead peer too, where it can; about `seconds` for each sign."""
    whole = max(round(seconds), 1)
    # A socket of our own on the same connection: not every loop lets its own be set.
    with socket.socket(fileno=os.dup(descriptor)) as link:
        if link.family not in (socket.AF_INET, socket.AF_INET6):
            return
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", whole * 2),
            ("TCP_KEEPINTVL", whole),
            ("TCP_KEEPCNT", 2),
            ("TCP_USER_TIMEOUT", whole * 3000),
        ):
            option = getattr(socket, name, None)
            if option is not None:
                link.setsockopt(socket.IPPROTO_TCP, option, value)
