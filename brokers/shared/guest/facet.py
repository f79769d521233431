"""The base of the parts of a guest's broker."""

from __future__ import annotations

from brokers.shared.guest.host_link import HostLink
from brokers.shared.settings import SharedSettings
from popgate.clock import Clock


class Facet:
    """Given its values by `SharedBroker`."""

    _link: HostLink
    _clock: Clock
    _settings: SharedSettings
