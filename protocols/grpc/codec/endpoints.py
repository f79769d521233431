"""The address that clients are told to connect to: the one that they used, unless a setting overrides it.

Behind a load balancer, a port mapping or a container network only the client knows an address
that reaches the gateway, and its request contains it (protocol facts 1.6, pitfalls 20 and 21).
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

from popgate.context import Context
from popgate.errors import BadRequest, Fault
from popgate.pb.definition_pb2 import Address, AddressScheme, Endpoints

_MOST = 64
"""Addresses that are echoed."""
_LONGEST_HOST = 255
"""Characters of a host's name; what is longer cannot be dialled, and would be echoed for every queue."""


def fixed_endpoints(host: str, port: int) -> Endpoints:
    """Endpoints of one address, its scheme found from its form."""
    return Endpoints(scheme=_scheme_of([host]), addresses=[Address(host=host, port=port)])


def dialled_endpoints(request: Endpoints, context: Context) -> Endpoints:
    """What the client dialled: as its request says, else the address where its connection ended.

    Raises BadRequest ILLEGAL_ACCESS_POINT when neither is known.
    """
    addresses = [Address(host=a.host, port=a.port) for a in request.addresses[:_MOST] if _can_be_dialled(a)]
    if not addresses:
        dialled = _address_in(context.local)
        if dialled is None or not _can_be_dialled(dialled):
            raise BadRequest(
                "the request names no endpoints with a host and a port from 1 to 65535",
                Fault.ILLEGAL_ACCESS_POINT,
            )
        return fixed_endpoints(dialled.host, dialled.port)
    scheme = request.scheme
    if scheme not in (AddressScheme.IPv4, AddressScheme.IPv6, AddressScheme.DOMAIN_NAME):
        scheme = _scheme_of([address.host for address in addresses])
    # Clients refuse a domain name with several addresses.
    return Endpoints(
        scheme=scheme, addresses=addresses[:1] if scheme == AddressScheme.DOMAIN_NAME else addresses
    )


def _address_in(text: str) -> Address | None:
    """The host and the port of "host:port", which a client may have written: a port is up to five digits."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    return Address(host=host.strip("[]"), port=int(port))


def _can_be_dialled(address: Address) -> bool:
    return bool(address.host.strip()) and len(address.host) <= _LONGEST_HOST and 0 < address.port < 65_536


def _scheme_of(hosts: list[str]) -> AddressScheme:
    schemes = set()
    for host in hosts:
        try:
            address = ip_address(host.strip("[]").partition("%")[0])
        except ValueError:
            return AddressScheme.DOMAIN_NAME
        schemes.add(AddressScheme.IPv6 if isinstance(address, IPv6Address) else AddressScheme.IPv4)
    return schemes.pop() if len(schemes) == 1 else AddressScheme.DOMAIN_NAME
