"""Consumer groups of a cluster: listed, created, updated; every broker has them all."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from brokers.capabilities import TellsReaders
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.keyed_lock import KeyedLock
from brokers.remote.access.queries import object_in, of_each, worst
from brokers.remote.access.refreshing_cache import RefreshingCache
from brokers.remote.metadata.config_codec import check_group_settings, group_body, group_in, refusal
from popgate.answers import error_of
from popgate.errors import (
    AlreadyExists,
    BrokerUnavailable,
    GatewayError,
    GroupNotFound,
    NotFound,
    shown,
)
from popgate.model import GroupConfig
from popgate.naming import TOOLS_GROUP, could_be_a_name, is_derived_topic
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.parts import as_object, table, texts

_log = logging.getLogger(__name__)

_SYSTEM_GROUPS = frozenset(
    {
        TOOLS_GROUP,
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_P_GROUP",
        "CID_ONS-HTTP-PROXY",
        "SCHEDULE_CONSUMER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_SYS_RMQ_TRANS",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
    }
)
"""Groups that every broker makes for itself; what else begins with `_SYSTEM_PREFIX` belongs to them."""
_SYSTEM_PREFIX = "CID_RMQ_SYS_"


class Groups(TellsReaders):
    """The part of the port's `Directory` that shows groups, makes and changes them."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._client = access.client
        self._settings = access.settings
        self.group_settings = RefreshingCache.of_settings(
            self._fetch_group, access.clock, access.settings, missing=GroupNotFound
        )
        self.group_turns = KeyedLock()

    async def stop(self) -> None:
        await self.group_settings.close()

    async def group(self, name: str) -> GroupConfig:
        """A broker that makes unknown groups on first use makes it when it is asked (6.4)."""
        return await self.group_settings.of(name)

    async def group_now(self, name: str) -> GroupConfig:
        """As `group`, without the cache."""
        return await self.group_settings.now(name)

    async def groups(self) -> list[GroupConfig]:
        """Those of all brokers that answer, without the system's. Raises BrokerUnavailable: none does."""
        by_broker, failures = await of_each(await self._access.brokers(), self._groups_at)
        if not by_broker:
            raise worst(failures)
        by_name: dict[str, GroupConfig] = {}
        for configs in by_broker.values():
            for config in configs:
                if config.name not in _SYSTEM_GROUPS and not config.name.startswith(_SYSTEM_PREFIX):
                    by_name.setdefault(config.name, config)
        return [by_name[name] for name in sorted(by_name)]

    async def create_group(self, config: GroupConfig) -> None:
        """On every broker that has a master. Those that cannot be reached do without it, unless all are."""
        check_group_settings(config)
        async with self.group_turns.of(config.name):
            if await self._is_listed(config.name):
                raise AlreadyExists("group", config.name)
            masters = await self._access.masters()
            await self.drop_stale_positions(config.name, masters)
            body = group_body(config, None)
            done, failures = await of_each(masters, lambda broker: self._change_group(broker, body))
            self.group_settings.forget(config.name)
            refused = [error for error in failures.values() if not error.retryable]
            if refused or not done:
                raise refused[0] if refused else worst(failures)

    async def update_group(self, config: GroupConfig) -> None:
        if not could_be_a_name(config.name):
            raise GroupNotFound(shown(config.name))
        check_group_settings(config)
        async with self.group_turns.of(config.name):
            by_broker, failures = await of_each(
                await self._access.masters(), lambda broker: self._told_group(broker, config.name)
            )
            silent = {
                broker_name: why for broker_name, why in failures.items() if not isinstance(why, NotFound)
            }
            if silent or not by_broker:
                raise worst(silent) if silent else GroupNotFound(config.name)
            bodies = {broker: group_body(config, by_broker.get(broker)) for broker in (*by_broker, *failures)}
            _, failures = await of_each(bodies, lambda broker: self._change_group(broker, bodies[broker]))
            self.group_settings.forget(config.name)
            if failures:
                raise worst(failures)

    async def topics_of(self, group: str) -> list[str]:
        await self.group(group)
        return await self.topics_read_by(group)

    async def topics_read_by(self, group: str) -> list[str]:
        """The topics in which the group has a position, at the brokers that answer; no retries."""

        by_broker, failures = await of_each(
            await self._access.brokers(), lambda broker: self._topics_read_at(broker, group)
        )
        if not by_broker:
            raise worst(failures)
        return sorted(
            {topic for topics in by_broker.values() for topic in topics if not is_derived_topic(topic)}
        )

    async def readers(self, topic: str) -> list[str]:
        """`brokers.capabilities.TellsReaders`: what the brokers that answer say."""
        if not could_be_a_name(topic):
            return []
        groups, failures = await self.readers_at(topic, await self._access.brokers())
        if groups is None:
            raise worst(failures)
        # RocketMQ 5.3.3 notes a subscribed topic by its own name in the place of its group
        # (ConsumerManager.registerConsumer): without a group of that name nobody reads it by that name.
        if topic in groups and not await self._is_listed(topic):
            groups.remove(topic)
        return groups

    async def readers_at(
        self, topic: str, brokers: Iterable[str]
    ) -> tuple[list[str] | None, Mapping[str, GatewayError]]:
        """The groups that read a topic as these brokers say, None when none does; and who says nothing."""

        async def ask(broker: str) -> tuple[str, ...]:
            answer = await self._access.read_from(
                broker, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}
            )
            if answer.code != ResponseCode.SUCCESS:
                raise error_of(answer, broker=broker)
            return object_in(
                answer, broker, f"the groups of topic {topic}", lambda body: texts(body, "groupList")
            )

        by_broker, failures = await of_each(brokers, ask)
        readers = sorted({group for groups in by_broker.values() for group in groups})
        return readers if by_broker else None, failures

    async def delete_group_at(self, broker: str, name: str) -> None:
        """Delete a group and its positions on one broker, which need not have it."""
        await self._client.done(
            broker,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            {"groupName": name, "cleanOffset": "true"},
            timeout_s=self._settings.slow_s,
        )

    async def drop_stale_positions(self, name: str, brokers: Iterable[str]) -> None:
        """Delete the positions that brokers still have of a group that they do not know (any more).

        A broker stores the position of a pop a moment after it answered, also when the group was deleted
        in between. A group that is created with this name later would begin at that position, and never
        get the messages before it. The positions are requested before the list of groups: a group that is
        created meanwhile through another gateway is in the list before it has positions. Source: RocketMQ
        5.5.0, PopBufferMergeService.scanCommitOffset, which commits without looking for the group.
        """
        positions, failures = await of_each(brokers, lambda broker: self._topics_read_at(broker, name))
        stale = [broker for broker, topics in positions.items() if topics]
        listed, unlisted = await of_each(stale, self._groups_at)
        failures.update(unlisted)
        stale = [
            broker for broker, groups in listed.items() if name not in {config.name for config in groups}
        ]
        _, undeleted = await of_each(stale, lambda broker: self.delete_group_at(broker, name))
        failures.update(undeleted)
        for broker, error in failures.items():
            _log.warning("broker %s may keep old positions of group %s: %s", broker, name, error.sentence)

    # -- inside -------------------------------------------------------------------------------

    async def _topics_read_at(self, broker: str, group: str) -> tuple[str, ...]:
        """The topics in which a broker has a position of the group, those of its retries, too."""
        answer = await self._access.read_from(broker, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group})
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker, group=group)
        return object_in(
            answer, broker, f"the topics of group {group}", lambda body: texts(body, "topicList")
        )

    async def _fetch_group(self, name: str) -> GroupConfig:
        """The settings from the first broker that has them; missing when all brokers say so."""
        failures: dict[str, GatewayError] = {}
        for broker in await self._access.brokers():
            try:
                return group_in(await self._told_group(broker, name))
            except GatewayError as error:
                failures[broker] = (
                    error if self._access.knows_best(broker) else BrokerUnavailable(error.sentence)
                )
        silent = [failure for failure in failures.values() if not isinstance(failure, NotFound)]
        raise silent[0] if silent else GroupNotFound(name)

    async def _told_group(self, broker: str, name: str) -> Mapping[str, Any]:
        answer = await self._access.read_from(
            broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name}
        )
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker, group=name)

        def read(body: Mapping[str, Any]) -> Mapping[str, Any]:
            group_in(body)
            return body

        return object_in(answer, broker, f"group {name}", read)

    async def _is_listed(self, name: str) -> bool:
        """Whether a broker has it. It is looked up in the list: a question by name may make it (6.4)."""
        by_broker, failures = await of_each(await self._access.masters(), self._groups_at)
        if not by_broker:
            raise worst(failures)
        return any(config.name == name for groups in by_broker.values() for config in groups)

    async def _groups_at(self, broker: str) -> list[GroupConfig]:
        answer = await self._access.read_from(
            broker,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            {},
            timeout_s=self._settings.slow_s,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker)

        def read(body: Mapping[str, Any]) -> list[GroupConfig]:
            configs = table(body, "subscriptionGroupTable").values()
            return [group_in(as_object(config, "subscriptionGroupTable")) for config in configs]

        return object_in(answer, broker, "the list of groups", read)

    async def _change_group(self, broker: str, body: bytes) -> None:
        answer = await self._client.call(
            broker,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            {},
            body,
            timeout_s=self._settings.slow_s,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, broker)
