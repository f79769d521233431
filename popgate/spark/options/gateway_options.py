"""The options by which source and sink connect to the gateway.

Files and environment variables that they name are read whenever a connection is opened, also on executors:
rotated credentials take effect with the next connection, and plans contain no secrets.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from popgate.blocking import Credentials, parse_endpoint
from popgate.errors import BadRequest, Fault, shown
from popgate.spark.errors import Code, SparkSourceError, illegal_option
from popgate.spark.options.option_values import NAMESPACE, namespace_of, number, one_of, truth

_log: Final = logging.getLogger(__name__)
_TLS: Final = "rocketmq.client.tls"
_CA, _CERTIFICATE, _KEY = f"{_TLS}.ca", f"{_TLS}.certificate", f"{_TLS}.key"
_SERVER_NAME, _VERIFY = f"{_TLS}.serverName", f"{_TLS}.verify"
_TEXTS: Final = (_CA, _CERTIFICATE, _KEY, _SERVER_NAME)
_OF_TLS: Final = (*_TEXTS, _VERIFY)
_CONNECT_TIMEOUT: Final = "rocketmq.client.connectTimeoutMs"
TRANSPORT: Final = "transport"
REMOTING: Final = "remoting"
GRPC: Final = "grpc"
SHARED: Final = (
    *("endpoints", "nameServer", "accessKey", "secretKey", "credentials"),
    *(NAMESPACE, TRANSPORT, _CONNECT_TIMEOUT, _TLS, *_OF_TLS),
)
"""Options of the source and of the sink."""
_FORM: Final = "it is env:NAME or file:/path, where accessKey:secretKey stands"


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings. Files are given by path; an empty path means none."""

    ca: str
    certificate: str
    key: str
    server_name: str
    verify: bool

    def context(self) -> ssl.SSLContext:
        """Raises SparkSourceError for files that cannot be read, or hold something else."""
        name, path = _CA, self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            # Set from Python 3.13 on, and refuses authorities as `openssl req -x509` makes them.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate:
                name, path = _CERTIFICATE, self.certificate
                # Without a password: one that is asked for would be asked of the terminal.
                context.load_cert_chain(self.certificate, self.key or None, password="")
        except (OSError, ValueError) as error:
            raise illegal_option(name, path, f"it cannot be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class Gateway:
    """The endpoints, the credentials and the transport of a gateway, and the namespace of what is there."""

    endpoints: tuple[str, ...]
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    source: str = ""
    """Where both keys stand instead."""
    tls: Tls | None = None
    connect_timeout_s: float | None = None
    """None: as long as for any answer."""
    namespace: str = ""
    """The one that rows name topics without. Options, plans, offsets and errors name them with it."""
    transport: str = REMOTING
    """REMOTING or GRPC."""

    @property
    def is_grpc(self) -> bool:
        return self.transport == GRPC

    def told(self, fault: Fault) -> str:
        """The options that a failure of this kind is a matter of, with their values, for a sentence."""
        endpoints = f"option endpoints = {self.endpoints}"
        if fault not in (Fault.UNAUTHENTICATED, Fault.FORBIDDEN):
            return endpoints
        if self.source:
            account = f"option credentials = {self.source}"
        elif self.access_key:
            account = f"option accessKey = {shown(self.access_key)}"
        else:
            account = "there is no option accessKey"
        if fault is Fault.UNAUTHENTICATED:
            return f"{endpoints}, {account}: name an account that the gateway knows, and its secretKey"
        return f"{endpoints}, {account}: let the account, and the topic itself, allow it"

    def credentials(self) -> Credentials | None:
        """The current credentials; None: requests are not signed.

        Raises SparkSourceError.
        """
        if not self.source:
            return Credentials(self.access_key, self.secret_key) if self.access_key else None
        kind, _, place = self.source.partition(":")
        if kind == "env":
            text = os.environ.get(place, "")
        else:
            try:
                text = Path(place).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise illegal_option("credentials", self.source, f"it cannot be read: {error}") from error
        access_key, _, secret_key = text.strip().partition(":")
        if not access_key or not secret_key:
            raise illegal_option("credentials", self.source, "no accessKey:secretKey stands there")
        return Credentials(access_key, secret_key)


def gateway_of(options: Mapping[str, str]) -> Gateway:
    """Of options by their own names. Raises SparkSourceError."""
    access_key, secret_key = _account(options)
    transport = one_of(options, TRANSPORT, (REMOTING, GRPC))
    timeout_ms = number(options, _CONNECT_TIMEOUT, 100, 3_600_000, None)
    return Gateway(
        endpoints=_endpoints(options),
        access_key=access_key,
        secret_key=secret_key,
        source=_source(options),
        tls=_tls(options, transport),
        connect_timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        namespace=namespace_of(options),
        transport=transport,
    )


def refuse_over_grpc(name: str, value: str, why: str) -> SparkSourceError:
    """An option that does not go with `transport = grpc`; `why`: what gRPC lacks, or does otherwise."""
    return illegal_option(
        name, value, f"with {TRANSPORT} = {GRPC} {why}, leave it out or take {TRANSPORT} = {REMOTING}"
    )


def _endpoints(options: Mapping[str, str]) -> tuple[str, ...]:
    name = "endpoints"
    if "nameServer" in options:
        if "endpoints" in options:
            raise illegal_option("nameServer", options["nameServer"], "endpoints is given too, leave it out")
        name = "nameServer"
        _log.warning("option nameServer is taken for endpoints: it names a gateway, no name server is asked")
    text = options.get(name, "")
    addresses = tuple(each.strip() for each in text.replace(";", ",").split(",") if each.strip())
    if not addresses:
        raise SparkSourceError(
            Code.MISSING_OPTION, "option endpoints is missing: the gateway's host:port, several with commas"
        )
    for each in addresses:
        try:
            parse_endpoint(each)
        except BadRequest as error:
            raise illegal_option(name, text, error.sentence) from error
    return addresses


def _account(options: Mapping[str, str]) -> tuple[str, str]:
    """The source of the credentials; empty: requests are not signed."""
    access_key, secret_key = options.get("accessKey", ""), options.get("secretKey", "")
    if bool(access_key) != bool(secret_key):
        raise SparkSourceError(
            Code.MISSING_OPTION, "options accessKey and secretKey are given together or not"
        )
    return access_key, secret_key


def _source(options: Mapping[str, str]) -> str:
    text = options.get("credentials", "")
    if "credentials" not in options:
        return ""
    kind, _, place = text.partition(":")
    if kind not in ("env", "file") or not place.strip():
        # What stands there instead may be a secret.
        raise SparkSourceError(Code.ILLEGAL_OPTION, f"option credentials: {_FORM}")
    if options.get("accessKey"):
        raise illegal_option("credentials", text, "accessKey is given too, leave one of them out")
    return text


def _tls(options: Mapping[str, str], transport: str) -> Tls | None:
    if not truth(options, _TLS, default=False):
        for name in _OF_TLS:
            if name in options:
                raise illegal_option(name, options[name], f"it needs {_TLS} = true")
        return None
    for name in _TEXTS:
        # A variable that is not set, as a rule: others would be trusted than was meant.
        if options.get(name) == "":
            raise illegal_option(name, "", "it is empty, leave it out")
    if _KEY in options and _CERTIFICATE not in options:
        raise illegal_option(_KEY, options[_KEY], f"it needs {_CERTIFICATE}")
    verify = truth(options, _VERIFY, default=True)
    if not verify and transport == GRPC:
        raise refuse_over_grpc(_VERIFY, options[_VERIFY], "certificates are always verified")
    if not verify:
        _log.warning("option %s = false: whoever answers at an endpoint is taken for the gateway", _VERIFY)
    return Tls(
        ca=options.get(_CA, ""),
        certificate=options.get(_CERTIFICATE, ""),
        key=options.get(_KEY, ""),
        server_name=options.get(_SERVER_NAME, ""),
        verify=verify,
    )
