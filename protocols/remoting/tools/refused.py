"""Requests of RocketMQ's tools that no gateway serves: refused with the reason.

docs/tools.md lists them command by command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from popgate.wire.frames.codes import RequestCode as Code
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command
from protocols.remoting.requests import DoorContext, Handler, Request

_NO_PAIRS = "a gateway keeps no key-value pairs: no client of it needs them, order is kept without"
_NO_NAME_SERVER = "the settings of a gateway are in its own file and flags, it is no name server"
_OWN_SETTINGS = "the settings of a gateway are in its own file and flags, they cannot be changed from here"
_CLEANS_ITSELF = "nothing is left to clean: what is deleted or older than its retention is removed by itself"
_NO_RATES = "a gateway counts messages in its metrics, and keeps no rates by topic and group"
_NO_REPLICATION = "there is no replication to look at: gateways share a broker, or stand before a cluster"
_NO_CONTROLLER = "a gateway is no controller of brokers"
_NO_CONTAINER = "a gateway is no container of brokers"
_NO_ACCESS = "who may do what is not decided by these commands at a gateway"
_NO_COLD = "a gateway does not tell cold data from warm: there is nothing to set or slow down"
_NO_TIMER = "delayed messages are kept in one way only: there is no other timer to change to"
_NO_ROCKS = "nothing is kept in RocksDB here"
_NO_POP_RECORDS = "the records of pops are no messages here: there is nothing to bring over"
_NO_STATIC = "a topic's queues cannot be mapped to several brokers from here"
_NO_PERMISSIONS = "the permissions of a whole broker cannot be changed from here, those of a topic can"
_NO_RESUME = "a half message that was given up is not asked about again: send the message anew"
_SETTINGS = "a gateway changes no settings of brokers and name servers: they are asked themselves"
_REPLICATION = (
    "which brokers follow which is told by `popgate cluster`: a gateway tells no addresses behind it"
)
_ONE_BROKER = (
    "it is about one broker's own files and clocks, and all have this address: ask the broker itself"
)
_HALF = (
    "a half message that was given up lies in its broker's own log: ask the broker itself, by an id that has"
    " the broker's address"
)
_LITE = "lite topics are told by `popgate lite` and the admin API, not to these commands"

REASONS: Final[Mapping[int, str]] = {
    Code.PUT_KV_CONFIG: _NO_PAIRS,
    Code.GET_KVLIST_BY_NAMESPACE: _NO_PAIRS,
    Code.UPDATE_NAMESRV_CONFIG: _NO_NAME_SERVER,
    Code.GET_NAMESRV_CONFIG: _NO_NAME_SERVER,
    Code.UPDATE_BROKER_CONFIG: _OWN_SETTINGS,
    Code.GET_BROKER_HA_STATUS: _NO_REPLICATION,
    Code.GET_BROKER_EPOCH_CACHE: _NO_REPLICATION,
    Code.RESET_MASTER_FLUSH_OFFSET: _NO_REPLICATION,
    Code.CONTROLLER_ELECT_MASTER: _NO_CONTROLLER,
    Code.CONTROLLER_GET_METADATA_INFO: _NO_CONTROLLER,
    Code.CONTROLLER_GET_SYNC_STATE_DATA: _NO_CONTROLLER,
    Code.UPDATE_CONTROLLER_CONFIG: _NO_CONTROLLER,
    Code.GET_CONTROLLER_CONFIG: _NO_CONTROLLER,
    Code.CLEAN_BROKER_DATA: _NO_CONTROLLER,
    Code.ADD_BROKER: _NO_CONTAINER,
    Code.REMOVE_BROKER: _NO_CONTAINER,
    Code.AUTH_CREATE_USER: _NO_ACCESS,
    Code.AUTH_UPDATE_USER: _NO_ACCESS,
    Code.AUTH_DELETE_USER: _NO_ACCESS,
    Code.AUTH_GET_USER: _NO_ACCESS,
    Code.AUTH_LIST_USER: _NO_ACCESS,
    Code.AUTH_CREATE_ACL: _NO_ACCESS,
    Code.AUTH_UPDATE_ACL: _NO_ACCESS,
    Code.AUTH_DELETE_ACL: _NO_ACCESS,
    Code.AUTH_GET_ACL: _NO_ACCESS,
    Code.AUTH_LIST_ACL: _NO_ACCESS,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _NO_COLD,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _NO_COLD,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _NO_COLD,
    Code.SET_COMMITLOG_READ_MODE: _NO_COLD,
    Code.SWITCH_TIMER_ENGINE: _NO_TIMER,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _NO_ROCKS,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _NO_ROCKS,
    Code.POP_ROLLBACK: _NO_POP_RECORDS,
    Code.RESUME_CHECK_HALF_MESSAGE: _NO_RESUME,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _NO_STATIC,
    Code.WIPE_WRITE_PERM_OF_BROKER: _NO_PERMISSIONS,
    Code.ADD_WRITE_PERM_OF_BROKER: _NO_PERMISSIONS,
    Code.GET_BROKER_LITE_INFO: _LITE,
    Code.GET_PARENT_TOPIC_INFO: _LITE,
    Code.GET_LITE_TOPIC_INFO: _LITE,
    Code.GET_LITE_CLIENT_INFO: _LITE,
    Code.GET_LITE_GROUP_INFO: _LITE,
    Code.TRIGGER_LITE_DISPATCH: _LITE,
}


ALONE: Final[Mapping[int, str]] = {
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CLEANS_ITSELF,
    Code.CLEAN_UNUSED_TOPIC: _CLEANS_ITSELF,
    Code.DELETE_EXPIRED_COMMITLOG: _CLEANS_ITSELF,
    Code.VIEW_BROKER_STATS_DATA: _NO_RATES,
}
"""Refused where there is no cluster behind the gateway, and answered by its brokers where there is one."""

BEFORE_A_CLUSTER: Final[Mapping[int, str]] = {
    **dict.fromkeys(
        (Code.UPDATE_NAMESRV_CONFIG, Code.GET_NAMESRV_CONFIG, Code.UPDATE_BROKER_CONFIG), _SETTINGS
    ),
    **dict.fromkeys((Code.GET_BROKER_HA_STATUS, Code.GET_BROKER_EPOCH_CACHE), _REPLICATION),
    **dict.fromkeys(
        (
            Code.RESET_MASTER_FLUSH_OFFSET,
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.GET_COLD_DATA_FLOW_CTR_INFO,
            Code.SET_COMMITLOG_READ_MODE,
            Code.SWITCH_TIMER_ENGINE,
            Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            Code.POP_ROLLBACK,
        ),
        _ONE_BROKER,
    ),
    Code.RESUME_CHECK_HALF_MESSAGE: _HALF,
}
"""Other reasons for some of them where there is a cluster behind the gateway."""


class RefusedCodes:
    """Answers requests that no gateway serves with the reason."""

    def __init__(self, door_context: DoorContext) -> None:
        self._relaying = door_context.processor.command_relay

    def handlers(self) -> Mapping[int, Handler]:
        return dict.fromkeys(REASONS, self.refuse)

    def drain(self) -> None:
        """Nothing waits here."""

    async def refuse(self, request: Request) -> Command:
        return refused(request, cluster=self._relaying.available)


def refused(request: Request, *, cluster: bool = False) -> Command:
    """With the code that unknown requests get, too: clients go on in the same way."""
    code = request.command.code
    reason = BEFORE_A_CLUSTER.get(code) if cluster else None
    return request.refusal(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason or REASONS.get(code) or ALONE[code]
    )
