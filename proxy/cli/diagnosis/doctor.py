"""`popgate doctor`: checks a gateway from outside, through the address that clients use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import Shown, duration
from proxy.cli.console.terminal import Output, Printer
from proxy.config.units import counted, duration_text, rough_size_text

if TYPE_CHECKING:
    from protocols.probing import Finding, Wish

_MARKS = {
    "ok": ("32", "ok"),
    "warning": ("33", "warning"),
    "problem": ("31", "PROBLEM"),
    "skipped": ("2", "-"),
}
_LITTLE_ROOM = 1 << 30
_LITTLE_SHARE = 0.05


def doctor(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="host:port as clients dial it, or a door like remoting://host:port."
        ),
    ] = "127.0.0.1:8081",
    no_write: Annotated[bool, typer.Option("--no-write", help="Send and receive nothing.")] = False,
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="For the round trip; default popgate-doctor.")
    ] = "",
    patience: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long one look may take.")
    ] = "5s",
    admin: Annotated[
        str | None,
        typer.Option("--admin", envvar="POPGATE_ADMIN", metavar="URL", help="Look there, too."),
    ] = None,
    output: Shown = Output.AUTO,
) -> None:
    """Find out why clients cannot reach a gateway, or that they can; each finding says what to do."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    scheme, wish = _wish(address, write=not no_write, topic=topic, patience_s=duration(patience) or 5.0)
    printer = Printer(output)
    findings = asyncio.run(_look(scheme, wish, admin, printer))
    if printer.as_json:
        printer.done("", [_out(finding) for finding in findings])
    problems = sum(finding.level == "problem" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if not printer.as_json:
        sys.stderr.write(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}\n")
    if problems:
        raise typer.Exit(Ended.FAILED)


async def _look(scheme: str, wish: Wish, admin: str | None, printer: Printer) -> list[Finding]:
    findings = []
    async for finding in _all(scheme, wish, admin):
        findings.append(finding)
        if not printer.as_json:
            _print(printer, finding)
    return findings


async def _all(scheme: str, wish: Wish, admin: str | None) -> AsyncIterator[Finding]:
    from protocols.probing import Level, find_prober, reach

    try:
        probers = [find_prober(protocol) for protocol in scheme.split("+")]
    except ValueError as error:
        raise Failure(Ended.USAGE, str(error)) from None
    silent = await asyncio.to_thread(_silent, admin, wish.patience_s) if admin is not None else None
    if silent is not None:
        admin = None  # it would be waited for with each request
    absent = await asyncio.to_thread(_absent, admin, wish) if admin is not None else ()
    if admin is not None and not wish.topic:
        wish = replace(wish, known=await asyncio.to_thread(_known, admin))
    reported = set()
    for prober in probers:
        last = None
        async for last in reach(wish, prober):
            if last not in reported:  # of its name and its ports each protocol says the same
                reported.add(last)
                yield last
        if last is not None and last.level is Level.OK:
            async for finding in prober.probe(wish):
                yield finding
    if silent is not None:
        yield silent
    if admin is not None:
        await asyncio.to_thread(_tidy, admin, absent)
        for finding in await asyncio.to_thread(_admin_findings, admin):
            yield finding
        for finding in await asyncio.to_thread(_cluster_findings, admin):
            yield finding


def _silent(admin: str, patience_s: float) -> Finding | None:
    """Why nobody answers there, if so."""
    from protocols.probing import Finding, Level

    try:
        with Gateway(admin, patience_s) as gateway:
            gateway.get("version")
    except Failure as failure:
        if failure.code is Ended.UNREACHABLE:
            return Finding("admin", Level.PROBLEM, failure.sentence)
        if failure.code is Ended.USAGE:
            raise
    return None


def _absent(admin: str, wish: Wish) -> tuple[tuple[str, str], ...]:
    """The topic and the group that the checks create, because they do not exist yet."""
    from protocols.probing import SCRATCH

    absent = []
    for kind in ("topics", "groups") if wish.write else ():
        if kind == "topics" and wish.topic:
            continue
        try:
            with Gateway(admin) as gateway:
                gateway.get(kind, SCRATCH)
        except Failure as failure:
            if failure.code is Ended.NOTHING:
                absent.append((kind, SCRATCH))
    return tuple(absent)


def _known(admin: str) -> str:
    """An existing topic that accepts messages; empty: unknown."""
    from protocols.probing import SCRATCH

    try:
        with Gateway(admin) as gateway:
            topics = gateway.get("topics")["topics"]
    except Failure:
        return ""  # what is wrong there is told by the look at it
    names = [topic["name"] for topic in topics if topic.get("permission", "read-write") == "read-write"]
    # In namespaces clients have names of their own, without a %.
    return min((name for name in names if "%" not in name and name != SCRATCH), default="")


def _tidy(admin: str, made: tuple[tuple[str, str], ...]) -> None:
    """Delete the topic and group of the checks; without an admin address they stay, and are used again."""
    for kind, name in made:
        with contextlib.suppress(Failure), Gateway(admin) as gateway:
            gateway.delete(kind, name)


def _admin_findings(admin: str) -> list[Finding]:
    from protocols.adapter import parse_listen
    from protocols.probing import Finding, Level
    from proxy.config.enums import TlsMode
    from proxy.tls.door_tls import speaks_tls, with_tls

    try:
        with Gateway(admin) as gateway:
            version = gateway.get("version")
            store = gateway.get("store")
            settings = gateway.get("settings")
    except Failure as failure:
        if failure.code is Ended.USAGE:
            raise
        return [Finding("admin", Level.PROBLEM, failure.sentence)]
    doors = ", ".join(version["listening"])
    # One that is older than this command is never compiled.
    form = " (compiled)" if version.get("compiled") else ""
    findings = [Finding("admin", Level.OK, f"popgate {version['version']}{form}, listening at {doors}")]
    if store["state"] == "ready":
        size = store["bytes"]
        kept = "" if size is None else f"; {rough_size_text(size)} of tables in the store"
        findings.append(Finding("ready", Level.OK, f"ready{kept}"))
    else:
        advice = {
            "failing": "its store cannot be written, or no broker can be reached and the setting"
            " remote.ready_needs_brokers says that one must be: the log says why; it tries again by itself",
            "draining": "it is stopping: another one should be there for clients",
        }.get(store["state"], "wait until it is")
        findings.append(Finding("ready", Level.PROBLEM, f"the gateway is {store['state']}", advice))
    free, total = store["free_bytes"], store["total_bytes"]
    if free is not None:
        little = free < min(_LITTLE_ROOM, total * _LITTLE_SHARE)
        sentence = f"{rough_size_text(free)} of {rough_size_text(total)} free for the store"
        advice = "lower retention.age_s or retention.max_bytes, or give it a larger disk" if little else ""
        findings.append(Finding("disk", Level.PROBLEM if little else Level.OK, sentence, advice))
    findings += _reload_findings(admin)
    # A gateway that is older than this command says nothing of them.
    known_s, wanted_s = store.get("repeat_window_s"), store.get("repeat_window_configured_s")
    if known_s is not None and wanted_s:
        sentence = f"a repeated send is recognised for {duration_text(round(known_s, 3))}"
        if known_s < wanted_s:
            sentence += f", not for {duration_text(wanted_s)} (embedded.dedup_window_s)"
            advice = (
                "more is sent in that time than embedded.dedup_max_ids: raise it (80 bytes of memory each;"
                " the log says how many are needed), or set a shorter embedded.dedup_window_s"
            )
            findings.append(Finding("repeats", Level.WARNING, sentence, advice))
        else:
            findings.append(Finding("repeats", Level.OK, sentence))
    findings += [
        Finding(
            "revocation",
            Level.WARNING,
            sentence,
            "fetch the list anew and replace the file: it is read within seconds, without a restart",
        )
        for sentence in version.get("tls_warnings", ())
    ]
    # One that is older than this command has no mode, and never makes a certificate.
    tls = settings["tls"]
    at = [parse_listen(with_tls(url, TlsMode(tls.get("mode", "off")))) for url in settings["listen"]]
    if not tls["certificate"] and any(map(speaks_tls, at)):
        findings.append(
            Finding(
                "certificate",
                Level.WARNING,
                "clients that speak TLS are shown a certificate that the gateway made for itself: those that"
                " look cannot verify it",
                "set tls.certificate and tls.key to one of yours",
            )
        )
    return findings


def _reload_findings(admin: str) -> list[Finding]:
    """None of a gateway that has taken its settings, or that is older than this command."""
    from protocols.probing import Finding, Level

    try:
        with Gateway(admin) as gateway:
            outcome = gateway.get("reload")
    except Failure:
        return []
    if not outcome["successful"]:
        sentence = f"the last reload of the settings failed, and the old ones count: {outcome['reason']}"
        return [
            Finding("settings", Level.PROBLEM, sentence, "correct them and reload: popgate config reload")
        ]
    if waiting := outcome["needs_restart"]:
        sentence = f"new values wait for a restart: {', '.join(waiting)}"
        return [Finding("settings", Level.WARNING, sentence, "restart the gateway, or take them back")]
    return []


def _cluster_findings(admin: str) -> list[Finding]:
    """None if the gateway's broker is no cluster, or the gateway does not answer (reported already)."""
    from protocols.probing import Finding, Level
    from proxy.cli.diagnosis.cluster_findings import cluster_findings

    try:
        with Gateway(admin) as gateway:
            cluster = gateway.get("cluster")
            try:
                topics = gateway.get("topics")["topics"]
            except Failure:
                topics = ()  # brokers are asked for them: what is wrong with those is told by the cluster
    except Failure as failure:
        # One that is older than this command has no such page.
        if failure.code in (Ended.UNREACHABLE, Ended.NOTHING) or failure.fault == "UNSUPPORTED":
            return []
        return [
            Finding(
                "cluster",
                Level.PROBLEM,
                f"the cluster cannot be looked at: {failure.sentence}",
                "is a name server running, does it know a broker, and does the gateway reach them?",
            )
        ]
    return cluster_findings(cluster, topics)


def _wish(address: str, *, write: bool, topic: str, patience_s: float) -> tuple[str, Wish]:
    from protocols.probing import Wish

    text = address if "://" in address else f"grpc://{address}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if not host or not port or parts.path not in ("", "/"):
        raise Failure(Ended.USAGE, f"{address!r} is no address: write it like gateway.example.com:8081")
    return parts.scheme, Wish(host, port, patience_s=patience_s, write=write, topic=topic)


def _print(printer: Printer, finding: Finding) -> None:
    style, word = _MARKS[finding.level.value]
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        word = f"\x1b[{style}m{word.ljust(8)}\x1b[0m"
    pretty = f"{word.ljust(8)} {finding.check.ljust(12)} {finding.what}"
    if finding.advice:
        pretty += f"\n{' ' * 22}→ {finding.advice}"
    printer.item((finding.level.value, finding.check, finding.what, finding.advice), pretty, None)
    sys.stdout.flush()


def _out(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "what": finding.what,
        "advice": finding.advice,
    }
