"""A file of revocation lists: checked before it is used, renewed, and reported before it refuses anybody."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from popgate.tls.revocation_lists import (
    LONGEST_BYTES,
    Authorities,
    RevocationList,
    RevocationLists,
    has_usable,
    lists_in,
)
from popgate.tls.watched_files import Unreadable, WatchedFiles, contents_of

_log = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class RevocationFile:
    """A file of lists. `setting` names it; `authorities` may issue certificates.

    `peers`: whose certificates are looked at, in plural. A renewed file is taken if each authority that has a
    valid list in force has a valid one in it, and none is older than the one in force; otherwise that is
    logged and reported, and the last good contents stay in force.
    """

    def __init__(
        self,
        setting: str,
        file: Path,
        authorities: Authorities,
        *,
        peers: str,
        now: Callable[[], datetime] = _utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError with a sentence: setting, file and reason."""
        self._setting = setting
        self.file = file
        self._peers = peers
        self._now = now
        self._refused = ""
        self._ripe_at: datetime | None = None
        self._watched = WatchedFiles((file,), clock)
        self._reported: set[str] = set()
        self.current = self._read(authorities)

    def __repr__(self) -> str:
        return f"<RevocationFile {self.file} lists {len(self.current.lists)}>"

    @property
    def name(self) -> str:
        """The setting and the file, as sentences begin."""
        return f"{self._setting}, {self.file},"

    def look(self, authorities: Authorities) -> RevocationLists:
        """Read the file again if it has changed; the lists that have to be in force: `accept` what is used.

        They are `current` unless the file, the authorities or the time make a difference. Raises OSError,
        ValueError.
        """
        now, known = self._now(), self.current
        others = known.authorities.data != authorities.data
        passed = known.until is not None and now >= known.until
        if others:
            known = lists_in(known.data, authorities, now)
        elif passed:
            known = replace(known, now=now)
        # What was refused may be better than lists of which one has ended.
        again = others or (passed and self._refused) or (self._ripe_at is not None and now >= self._ripe_at)
        if self._watched.changed() or again:
            self._ripe_at = None
            try:
                read = self._read(authorities)
                self._compare(known, read)
            except ValueError as error:
                self._refuse(error)
            else:
                self._refused = ""
                return known if read.data == known.data else read
        return known

    def _refuse(self, error: ValueError) -> None:
        sentence = f"{error}; the revocation lists from before stay in force"
        if sentence != self._refused:
            _log.error("%s", sentence)
        self._refused = sentence
        if isinstance(error, Unreadable):
            self._watched.retry()

    def retry(self) -> None:
        """What `look` returned could not be used just now."""
        self._watched.retry()

    def accept(self, lists: RevocationLists) -> None:
        """They are in force."""
        before, self.current = self.current, lists
        if lists.data != before.data:
            _log.info("the revocation lists %s were renewed: %s", self.file, _described(lists.lists))
            self._reported.clear()
            gone = before.by_identity.keys() - lists.by_identity.keys() - lists.authorities.identities.keys()
            for identity in gone:
                _log.warning(
                    "%s has no list of %s any more, which is no authority of the gateway: %s",
                    self.name,
                    identity[0],
                    f"{self._peers} whose chain needs it are refused",
                )

    def report(self) -> None:
        """Log each of `doubts` once."""
        for sentence, is_now in self.doubts():
            if sentence not in self._reported and sentence != self._refused:
                self._reported.add(sentence)
                _log.log(logging.ERROR if is_now else logging.WARNING, "%s", sentence)

    def doubts(self) -> Iterator[tuple[str, bool]]:
        """Sentences about lists that are missing, expired or near their end, and about a refused file.

        True: peers are refused now.
        """
        if self._refused:
            yield self._refused, False
        now = self._now()
        for issuer in self.current.missing:
            yield self._doubt(f"no list of {issuer}"), True
        for why in self.current.left_out:
            yield f"{self.name} {why}: that list is left out", False
        for known in self.current.lists:
            warns_from = None if self._is_followed(known) else known.warns_from()
            a_list = f"a list of {known.issuer}"
            if known.begins > now:
                yield (
                    self._doubt(f"{a_list} that is not valid before {_time(known.begins)}", "until then"),
                    True,
                )
            elif known.ends is not None and known.ends <= now:
                yield self._doubt(f"{a_list} that expired at {_time(known.ends)}"), True
            elif known.ends is not None and warns_from is not None and warns_from <= now:
                yield self._doubt(f"{a_list} that expires at {_time(known.ends)}", "from then on"), False

    def _is_followed(self, known: RevocationList) -> bool:
        """Whether the file has the next list of that authority, too."""
        end = known.ends
        return end is not None and any(
            other.identity == known.identity
            and other.begins <= end
            and (other.ends is None or other.ends > end)
            for other in self.current.all
        )

    def _doubt(self, has: str, when: str = "") -> str:
        refused = f"{self._peers} with a certificate from there are refused {when}".rstrip()
        return f"{self.name} has {has}: {refused}"

    def figures(self) -> dict[str, float]:
        """For the metrics: `doubts`, and when the first list expires, in Unix seconds, if one does."""
        ends = [known.ends.timestamp() for known in self.current.lists if known.ends is not None]
        doubts = [is_now for _, is_now in self.doubts()]
        figures: dict[str, float] = {
            "tls_crl_refusing": doubts.count(True),
            "tls_crl_warnings": doubts.count(False),
        }
        return {**figures, "tls_crl_expiry_timestamp_seconds": min(ends)} if ends else figures

    def _read(self, authorities: Authorities) -> RevocationLists:
        """Raises ValueError with a sentence."""
        data = contents_of(self.file, self.name, most=LONGEST_BYTES + 1)
        try:
            read = lists_in(data, authorities, self._now())
        except OSError as error:
            raise Unreadable(f"{self.name} cannot be used: {error}") from None
        except ValueError as error:
            raise ValueError(f"{self.name} {error}") from None
        if not has_usable(read):
            other = f"has no list of an authority in {authorities.file}"
            if read.lists:
                other = f"{other}, but one of {read.lists[0].issuer}"
            raise ValueError(f"{self.name} {read.left_out[0] if read.left_out else other}")
        return read

    def _compare(self, known: RevocationLists, read: RevocationLists) -> None:
        """Raises ValueError for a file that is no renewal of the lists in force."""
        now = self._now()
        for identity, before in known.by_identity.items():
            after = read.by_identity.get(identity)
            a_list = f"a list of {before.issuer} that"
            if identity in read.authorities.identities and before.counts(now):
                if after is None:
                    raise ValueError(f"{self.name} has no list of {before.issuer} any more")
                if after.begins > now:
                    self._ripe_at = after.begins
                    raise ValueError(f"{self.name} has {a_list} is not valid before {_time(after.begins)}")
                if after.ends is not None and after.ends <= now:
                    raise ValueError(f"{self.name} has {a_list} expired at {_time(after.ends)}")
            if after is not None and after.age < before.age and before.begins <= now:
                raise ValueError(
                    f"{self.name} has {a_list} is older than the one in force:"
                    f" {_made(after)} after {_made(before)}"
                )


def _made(known: RevocationList) -> str:
    return f"{_time(known.begins)}, number {known.number}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _described(lists: Sequence[RevocationList]) -> str:
    return "; ".join(
        f"{known.issuer}, {f'until {_time(known.ends)}' if known.ends is not None else 'without an end'}"
        for known in lists
    )
