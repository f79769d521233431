"""proxy.config.mapping: what the parts are given that follows from several settings."""

from __future__ import annotations

import pytest

from protocols.adapter import parse_listen
from proxy.config.mapping import _store_host


@pytest.mark.parametrize(
    ("advertised", "listens", "host"),
    [
        ("", ["grpc://10.0.0.1:8081"], "10.0.0.1:8081"),
        # Who dials it speaks remoting.
        ("", ["grpc://10.0.0.1:8081", "remoting://10.0.0.1:8080"], "10.0.0.1:8080"),
        ("", ["grpc://10.0.0.1:8081", "grpc+remoting://10.0.0.1:8080"], "10.0.0.1:8080"),
        ("10.9.9.9:8081", ["grpc+remoting://10.0.0.1:8080"], "10.9.9.9:8080"),
        ("", ["remoting+grpc://10.0.0.1:8080?advertised=10.9.9.9:80"], "10.9.9.9:80"),
        ("", ["grpc+remoting://0.0.0.0:8080"], "127.0.0.1:8080"),
    ],
)
def test_the_store_host_is_where_classic_clients_are_served(
    advertised: str, listens: list[str], host: str
) -> None:
    assert _store_host(advertised, [parse_listen(one) for one in listens]) == host
