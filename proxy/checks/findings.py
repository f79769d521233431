"""Faults and probable mistakes of a configuration, each with its place. Opens nothing."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protocols.adapter import Listen, parse_listen
from proxy.app import build
from proxy.checks.places import place_of
from proxy.config.error import SettingsWrong
from proxy.config.loader import (
    ENVIRONMENT_LAYER,
    FILE_LAYER,
    FLAGS_LAYER,
    Mistake,
    environment_name,
    examine,
    is_secret,
    known_settings,
)
from proxy.config.mapping import path_or_none, transactions_are_bound
from proxy.config.renamed import names_of
from proxy.tls.door_tls import door_urls

if TYPE_CHECKING:
    from proxy.config.settings import Settings

Level = Literal["fault", "warning"]
_EXPIRES_SOON = timedelta(days=14)
_NAMES = tuple(".".join(path) for path, _ in known_settings())


@dataclass(slots=True, frozen=True)
class Finding:
    """`name` is that of a setting; empty where a finding is about none in particular."""

    level: Level
    name: str
    place: str
    what: str


class Configuration:
    """The layers of a configuration, as `serve` would read them."""

    def __init__(
        self, config: Path | None, environment: Mapping[str, str] | None, flags: Mapping[str, Any]
    ) -> None:
        self._config = config
        self._environment = os.environ if environment is None else environment
        self._flags = flags
        self.settings, self._mistakes, self._former_names = examine(
            config=config, environment=self._environment, flags=flags
        )

    def __repr__(self) -> str:
        return f"<Configuration {self._config or 'without a file'} mistakes {len(self._mistakes)}>"

    def findings(self) -> list[Finding]:
        """Faults first. Values are compared with each other only when each of them is right."""
        if self.settings is None:
            faults = [self._of_mistake("fault", mistake) for mistake in self._mistakes]
            return faults + [self._of_mistake("warning", former) for former in self._former_names]
        try:
            build(self.settings)
        except SettingsWrong as error:
            names = _names_in(str(error))
            name = next((name for name in names if self.place(name)), names[0] if names else "")
            return [self._finding("fault", name, str(error))]
        faults = [self._finding("fault", "listen", sentence) for sentence in _given_twice(self.settings)]
        warnings = [self._of_mistake("warning", former) for former in self._former_names]
        warnings += [
            self._finding("warning", name, sentence) for name, sentence in self._doubts(self.settings)
        ]
        return faults + warnings

    def place(self, name: str) -> str:
        """Where the setting was given; empty: nowhere."""
        paths = list(names_of(tuple(name.split("."))))
        for path in paths:
            if self._holds(self._flags, path):
                return place_of(path, FLAGS_LAYER)
        for path in paths:
            if self._environment.get(environment_name(path)):
                return place_of(path, ENVIRONMENT_LAYER)
        for path in paths if self._config is not None else ():
            place = place_of(path, f"{FILE_LAYER}{self._config}")
            if place != str(self._config):
                return place
        return ""

    def _holds(self, values: Any, path: tuple[str, ...]) -> bool:
        for key in path:
            if not isinstance(values, Mapping) or key not in values:
                return False
            values = values[key]
        return True

    def _of_mistake(self, level: Level, mistake: Mistake) -> Finding:
        place = place_of(mistake.path, mistake.layer, mistake.sentence)
        return Finding(level, ".".join(mistake.path), place, mistake.sentence)

    def _finding(self, level: Level, name: str, sentence: str) -> Finding:
        return Finding(level, name, self.place(name) if name else "", sentence)

    def _doubts(self, settings: Settings) -> Iterator[tuple[str, str]]:
        yield from _doubtful_values(settings)
        yield from _doubtful_certificate(settings)
        yield from self._without_effect(settings)
        yield from self._readable_secrets()

    def _without_effect(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """Tables of a broker that is not the one that is set."""
        kind = settings.broker.partition(":")[0]
        for table, kinds in (("remote", {"rocketmq"}), ("embedded", {"embedded"})):
            given = [name for name in _NAMES if name.startswith(f"{table}.") and self.place(name)]
            if given and kind not in kinds:
                yield given[0], f"{', '.join(given)} has no effect: the broker is {settings.broker}"

    def _readable_secrets(self) -> Iterator[tuple[str, str]]:
        if self._config is None:
            return
        try:
            everybody = bool(self._config.stat().st_mode & stat.S_IROTH)
        except OSError:
            return
        for path, field in known_settings():
            name = ".".join(path)
            if everybody and is_secret(field) and self.place(name).startswith(f"{self._config}:"):
                yield (
                    name,
                    f"every user of this machine can read {self._config}, which has the value of {name}",
                )


def _names_in(sentence: str) -> list[str]:
    """The settings that a sentence is about, in its order."""
    for file_kind in ("certificate", "key"):
        if sentence.startswith(f"the TLS {file_kind} "):
            return [f"tls.{file_kind}"]
    if sentence.partition(":")[0] in _NAMES:
        return [sentence.partition(":")[0]]
    positions = {name: sentence.index(name) for name in _NAMES if "." in name and name in sentence}
    if not positions and any(phrase in sentence for phrase in ("to listen at", "://", "no protocol")):
        return ["listen"]
    # Of two that begin alike the longer one is meant.
    return sorted(positions, key=lambda name: (positions[name], -len(name)))


def _given_twice(settings: Settings) -> Iterator[str]:
    urls = [*door_urls(settings), *([settings.admin] if settings.admin not in ("", "off") else [])]
    listens = [parse_listen(url) for url in urls]
    for listen, other in combinations(listens, 2):
        if _collide(listen, other):
            pair = f"{listen.url(listen.port)} and {other.url(other.port)}"
            yield f"{pair} are one address: only one of them can listen there"


def _collide(listen: Listen, other: Listen) -> bool:
    if listen.path or other.path:
        return listen.path == other.path
    if listen.port != other.port or not listen.port:
        return False
    if listen.host == other.host:
        return True
    try:
        hosts = ipaddress.ip_address(listen.host), ipaddress.ip_address(other.host)
    except ValueError:
        return False
    return hosts[0].version == hosts[1].version and any(host.is_unspecified for host in hosts)


def _doubtful_values(settings: Settings) -> Iterator[tuple[str, str]]:
    connections, limits, budgets = settings.connections, settings.limits, settings.budgets
    if settings.faults:
        yield "faults", "faults are on: this gateway breaks things on purpose, for tests"
    if transactions_are_bound(settings):
        yield (
            "remote.transaction_key",
            (
                "without remote.transaction_key transactions can be ended only through the gateway that took"
                " their message, and not after its end"
            ),
        )
    if connections.max_age_s and connections.age_grace_s <= limits.max_wait_s:
        yield (
            "connections.age_grace_s",
            (
                f"connections.age_grace_s ({connections.age_grace_s:g} s) is not longer than"
                f" limits.max_wait_s ({limits.max_wait_s:g} s): long polls of old connections are cut off"
            ),
        )
    if connections.max_per_address > connections.max:
        yield (
            "connections.max_per_address",
            (
                f"connections.max_per_address ({connections.max_per_address}) is never reached:"
                f" connections.max is {connections.max}"
            ),
        )
    for name in ("group_bytes", "connection_bytes"):
        if (value := getattr(budgets, name)) > budgets.process_bytes:
            yield (
                f"budgets.{name}",
                f"budgets.{name} ({value}) is above budgets.process_bytes, which counts",
            )
    if limits.default_wait_s > limits.max_wait_s:
        yield (
            "limits.default_wait_s",
            (
                f"limits.default_wait_s ({limits.default_wait_s:g} s) is above limits.max_wait_s"
                f" ({limits.max_wait_s:g} s), which counts"
            ),
        )
    if settings.groups.consume_timeout_s > limits.max_invisible_s:
        yield (
            "groups.consume_timeout_s",
            (
                f"groups.consume_timeout_s ({settings.groups.consume_timeout_s:g} s) is above"
                f" limits.max_invisible_s ({limits.max_invisible_s:g} s), which counts"
            ),
        )


def _doubtful_certificate(settings: Settings) -> Iterator[tuple[str, str]]:
    """Files that are only read when they are needed, and a certificate that will not do now or soon."""
    yield from _doubtful_lists(settings)
    for name in ("ca_file", "cert_file", "key_file"):
        file = path_or_none(getattr(settings.remote, name))
        if file is not None and settings.remote.tls and (why := _unreadable(file)):
            yield f"remote.{name}", f"remote.{name}, {file}, cannot be read: {why}"
    if not settings.tls.certificate:
        if settings.tls.mode.value == "required":
            yield (
                "tls.mode",
                (
                    "clients have to speak TLS and are shown a certificate that the gateway makes for itself:"
                    " nobody can verify it; set tls.certificate and tls.key"
                ),
            )
        return
    # Heavy, and wanted here only.
    from cryptography import x509

    file = Path(settings.tls.certificate).expanduser()
    certificate, now = x509.load_pem_x509_certificate(file.read_bytes()), datetime.now(UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if begins > now:
        yield "tls.certificate", f"the certificate {file} is not valid before {begins:%Y-%m-%d %H:%M} UTC"
    if ends - now < _EXPIRES_SOON:
        verb = "expired" if ends < now else "expires"
        yield "tls.certificate", f"the certificate {file} {verb} at {ends:%Y-%m-%d %H:%M} UTC"


def _doubtful_lists(settings: Settings) -> Iterator[tuple[str, str]]:
    """Revocation lists that are missing, expired or near their end."""
    from popgate.tls.revocation_file import RevocationFile
    from popgate.tls.revocation_lists import Authorities

    tls, remote = settings.tls, settings.remote
    given = (
        ("tls.crl_file", tls.crl_file, tls.client_ca, "clients"),
        ("remote.crl_file", remote.crl_file, remote.ca_file, "brokers and name servers"),
    )
    for name, file, authorities, peers in given:
        if file and authorities:
            try:
                known = Authorities.read(Path(authorities).expanduser())
                lists = RevocationFile(name, Path(file).expanduser(), known, peers=peers)
            except ValueError as error:
                yield name, str(error)
                continue
            for sentence, _ in lists.doubts():
                yield name, sentence


def _unreadable(file: Path) -> str:
    try:
        file.open("rb").close()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
