"""Merges the settings: defaults < TOML file < environment < flags; errors name their layer.

A mistake is one sentence that names the setting, its location, and the nearest known name.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from pydantic import BaseModel, PlainSerializer, ValidationError
from pydantic.fields import FieldInfo

from proxy.config import renamed
from proxy.config.error import SettingsWrong
from proxy.config.settings import Settings
from proxy.config.tables import shown_urls

_log = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "POPGATE_"
NOT_SETTINGS = frozenset({"POPGATE_CONFIG", "POPGATE_OUTPUT"})
"""Variables that the command line reads by itself."""

FILE_LAYER = "in "
"""Followed by the name of the file."""
ENVIRONMENT_LAYER = "in the environment"
FLAGS_LAYER = "among the flags"

_ALIKE = 0.6
_UNIT = re.compile(r"_(?:bytes|ms|s)\Z")
_LARGEST_FILE = 1 << 20
_KUBERNETES = re.compile(r"_(?:SERVICE_HOST|SERVICE_PORT\w*|PORT(?:_\d+_(?:TCP|UDP|SCTP)\w*)?)\Z")
"""Kubernetes puts these into every container beside a service called popgate."""


@dataclass(slots=True, frozen=True)
class Mistake:
    """A fault of one setting: `path` is its name, `layer` the source in which it was found."""

    sentence: str
    path: tuple[str, ...] = ()
    layer: str = ""


@dataclass(slots=True, frozen=True)
class Layer:
    """Values of one source, nested like the settings; `name` says where that is, for sentences."""

    name: str
    values: Mapping[str, Any]
    former_names: tuple[tuple[str, ...], ...] = ()
    """Those that it uses, in the place of the present ones under which the values are here."""

    def written(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The name by which this layer gives a setting."""
        return next((name for name in renamed.names_of(path) if name in self.former_names), path)

    def holds(self, path: tuple[str, ...]) -> bool:
        here: Any = self.values
        for key in path:
            if not isinstance(here, Mapping) or key not in here:
                return False
            here = here[key]
        return True


class Examined(NamedTuple):
    """What was read. `settings` is None if there are mistakes; `former_names` still work."""

    settings: Settings | None
    mistakes: list[Mistake]
    former_names: list[Mistake]


def load_settings(
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """The effective settings. `flags` are nested like the settings. Former names of settings are logged as
    warnings. Raises SettingsWrong."""
    settings, mistakes, former_names = examine(config=config, environment=environment, flags=flags)
    for former in former_names:
        _log.warning("%s", former.sentence)
    if settings is None:
        raise SettingsWrong(mistakes[0].sentence)
    return settings


def examine(
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Examined:
    """The effective settings, or everything that is wrong with them, by layer."""
    environment = os.environ if environment is None else environment
    mistakes: list[Mistake] = []
    in_file: Mapping[str, Any] = {}
    if config is not None:
        try:
            in_file = _read_file(config)
        except SettingsWrong as error:
            mistakes.append(Mistake(str(error), layer=f"{FILE_LAYER}{config}"))
    variables, unknown = _read_environment(environment)
    layers = []
    former_names: list[Mistake] = []
    mistakes += unknown
    for name, values in (
        (f"{FILE_LAYER}{config}", in_file),
        (ENVIRONMENT_LAYER, variables),
        (FLAGS_LAYER, flags or {}),
    ):
        layer, of_layer, twice = _with_present_names(Layer(name, values))
        layers.append(layer)
        former_names += of_layer
        mistakes += twice
    for layer in layers:
        mistakes += _unknown(layer)
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer.values)
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        # Of an unknown name it is said above where it is, and what was perhaps meant.
        paths = {mistake.path for mistake in mistakes}
        model_mistakes = [
            _mistake(detail, layers) for detail in error.errors(include_url=False, include_context=False)
        ]
        mistakes += [
            mistake for mistake in model_mistakes if not any(mistake.path[: len(p)] == p for p in paths if p)
        ]
        return Examined(None, mistakes, former_names)
    return Examined(None if mistakes else settings, mistakes, former_names)


def parse_assignment(text: str) -> tuple[tuple[str, ...], str]:
    """Split a flag `limits.max_body_bytes=8MiB` into path and value. Raises SettingsWrong."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingsWrong(f"'{text}' is no setting: write name=value, like limits.max_body_bytes=8MiB")
    return tuple(name.strip().split(".")), value.strip()


def nest(path: tuple[str, ...], value: Any, into: dict[str, Any]) -> None:
    """Put a value at a dotted path of nested dictionaries. Raises SettingsWrong if a value is in the way."""
    here = into
    for key in path[:-1]:
        here = here.setdefault(key, {})
        if not isinstance(here, dict):
            raise SettingsWrong(f"{'.'.join(path)} is no setting: {key} is a value, not a group")
    here[path[-1]] = value


def known_settings(model: type[BaseModel] = Settings) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every setting with its path, groups left out, in the order of the reference."""
    for name, field in model.model_fields.items():
        inner = group_of(field)
        if inner is None:
            yield (name,), field
        else:
            yield from (((name, *path), field) for path, field in known_settings(inner))


def group_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a group of settings."""
    kind = field.annotation
    if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, BaseModel):
        return kind
    return None


def is_secret(field: FieldInfo) -> bool:
    """Whether the value of a setting must not be shown."""
    return any(isinstance(rule, PlainSerializer) for rule in field.metadata)


def environment_name(path: tuple[str, ...]) -> str:
    """`POPGATE_LIMITS__MAX_BODY_BYTES` for limits.max_body_bytes."""
    return ENVIRONMENT_PREFIX + "__".join(path).upper()


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise SettingsWrong(f"the configuration file {path} cannot be read: {error.strerror}") from None
    if len(text) > _LARGEST_FILE:
        raise SettingsWrong(f"the configuration file {path} is larger than {_LARGEST_FILE} bytes")
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsWrong(f"the configuration file {path} is no TOML: {error}") from None


def _read_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[Mistake]]:
    """Texts only: each setting reads its own. An empty variable sets nothing."""
    known = {environment_name(path): path for path, _ in known_settings()}
    former = {environment_name(path): path for path in renamed.FORMER_NAMES}
    values: dict[str, Any] = {}
    unknown = []
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in NOT_SETTINGS:
            continue
        if path := known.get(name) or former.get(name):
            if environment[name] != "":
                nest(path, environment[name], values)
        elif not _KUBERNETES.search(name):
            sentence = f"the environment variable {name} is no setting{_nearest(name, list(known))}"
            unknown.append(Mistake(sentence, (name,), ENVIRONMENT_LAYER))
    return values, unknown


def _with_present_names(layer: Layer) -> tuple[Layer, list[Mistake], list[Mistake]]:
    """The layer under the present names, a warning for each former one, and settings given under both."""
    values, used, doubled = renamed.with_present_names(layer.values)
    warnings = [Mistake(renamed.warning(former, layer.name), former, layer.name) for former in used]
    twice = [Mistake(renamed.doubled_sentence(former, layer.name), former, layer.name) for former in doubled]
    return Layer(layer.name, values, tuple(used)), warnings, twice


def _unknown(layer: Layer) -> Iterator[Mistake]:
    """Names that are no settings, and groups that have a value."""
    leaves = {path for path, _ in known_settings()}
    groups = {path[:1] for path in leaves if len(path) > 1}
    secret = {path[:1] for path, field in known_settings() if is_secret(field)} | {("policies",)}
    for path, value in _walk(layer.values, ()):
        name = ".".join(path)
        if path in leaves:
            continue
        if path in groups:
            shown = "a value" if path in secret else f"the value {_shown(value)}"
            sentence = f"{name} {layer.name} is a group of settings, not {shown}"
        else:
            nearest = _nearest(name, [".".join(leaf) for leaf in sorted(leaves)])
            sentence = f"{name} {layer.name} is no setting{nearest}"
        yield Mistake(sentence, path, layer.name)


def _walk(values: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and len(above) < 8:
            yield from _walk(value, (*above, key))
        else:
            yield (*above, key), value


def _nearest(name: str, known: list[str]) -> str:
    """The end of the sentence: the nearest name, or how to list all names.

    A prefix or suffix of a known name matches it. Otherwise the last parts are compared, without their
    units, and the whole names, so that a missing group or unit is recognised.
    """
    plain = _plain(name)
    last = plain.rpartition(".")[2]
    for candidate in known:
        if _plain(candidate).startswith(plain) or (len(last) > 3 and f".{last}" in _plain(candidate)):
            return f"; did you mean {candidate}?"
    score, nearest = max((_likeness(plain, _plain(candidate)), candidate) for candidate in known)
    return f"; did you mean {nearest}?" if score[0] >= _ALIKE else "; `popgate settings` lists them all"


def _plain(name: str) -> str:
    """The name of a variable as that of its setting."""
    return name.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".").lower()


def _likeness(name: str, known: str) -> tuple[float, float]:
    """How alike two names are, and, to decide between equal ones, in all."""
    last = _alike(_UNIT.sub("", name.rpartition(".")[2]), _UNIT.sub("", known.rpartition(".")[2]))
    whole = _alike(name, known)
    return max(last, whole), last + whole


def _alike(written: str, other: str) -> float:
    return difflib.SequenceMatcher(None, written, other).ratio()


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping):
            if not isinstance(below.get(key), dict):
                below[key] = {}  # also where a layer below has a value in the place of a group, which is told
            _merge(below[key], value)
        else:
            below[key] = value


def _mistake(error: Mapping[str, Any], layers: list[Layer]) -> Mistake:
    path = tuple(str(part) for part in error["loc"] if isinstance(part, str))
    holder = next((layer for layer in reversed(layers) if layer.holds(path)), None)
    place, written = (holder.name, holder.written(path)) if holder is not None else ("", path)
    reason = error["msg"].removeprefix("Value error, ")
    secret = path[:1] == ("policies",) or any(
        setting_path == path and is_secret(field) for setting_path, field in known_settings()
    )
    shown = "" if secret or reason.startswith("'") else f" is {_shown(error['input'])}"
    sentence = f"{'.'.join(written)} {place}{shown}: {reason[:1].lower()}{reason[1:]}"
    return Mistake(sentence, written, place)


def _shown(value: Any) -> str:
    text = shown_urls(repr(value))
    return text if len(text) <= 80 else text[:80] + "…"
