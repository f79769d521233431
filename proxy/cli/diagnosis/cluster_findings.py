"""Findings of `popgate doctor` about a RocketMQ cluster, from the view of its gateway (/api/cluster)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from protocols.probing import Finding, Level
from proxy.cli.diagnosis.broker_findings import Told, broker_findings, broker_name, named
from proxy.config.units import counted

_OLD_ROUTE_S = 120.0


def cluster_findings(cluster: Told, topics: Sequence[Told] = ()) -> list[Finding]:
    """Findings by the answer of `/api/cluster` and the list of `/api/topics`, the most general first."""
    brokers = [broker for broker in cluster["brokers"] if not broker["trouble"]]
    return [
        *_name_servers(cluster["name_servers"]),
        *_reached(cluster),
        *broker_findings(brokers),
        *_topics(topics),
        *_groups(cluster["unserved"]),
        *_gateway(cluster["gateway"], cluster["refusals"]),
    ]


def _name_servers(servers: Sequence[Told]) -> Iterator[Finding]:
    silent = [server for server in servers if server["trouble"]]
    talking = [server for server in servers if not server["trouble"]]
    for server in silent:
        yield Finding(
            "name-server",
            Level.WARNING if talking else Level.PROBLEM,
            f"name server {server['address']} does not answer: {server['trouble']}",
            "start it, or take it out of the setting broker; a network rule must let the gateway to its port"
            + ("" if talking else "; the last known routes serve until then"),
        )
    if not talking:
        return
    names = named(server["address"] for server in talking)
    agree = all(server["brokers"] == talking[0]["brokers"] for server in talking)
    if agree:
        several = len(talking) > 1
        sentence = f"{counted(len(talking), 'name server')} {'answer' if several else 'answers'}: {names}"
        sentence += "; all tell the same brokers" if several else ""
        yield Finding("name-server", Level.OK, sentence)
        if len(servers) == 1:
            yield Finding(
                "name-server",
                Level.WARNING,
                "there is one name server only",
                "run a second one and name both: rocketmq://ns-1:9876,ns-2:9876",
            )
        return
    for broker in sorted({name for server in talking for name in server["brokers"]}):
        by_address: dict[str, list[str]] = {}
        for server in talking:
            by_address.setdefault(server["brokers"].get(broker, "nothing"), []).append(server["address"])
        if len(by_address) > 1:
            opinions = "; ".join(
                f"{address or 'no master'} says {named(who)}" for address, who in by_address.items()
            )
            yield Finding(
                "name-server",
                Level.WARNING,
                f"name servers do not agree on broker {broker}: {opinions}",
                "one that has just started learns within half a minute; else the broker's namesrvAddr must"
                " name all of them, and all must be of the same cluster",
            )


def _reached(cluster: Told) -> Iterator[Finding]:
    servers, brokers = cluster["name_servers"], cluster["brokers"]
    remote = not all(_is_loopback(server["address"]) for server in servers)
    if not brokers:
        yield Finding(
            "broker",
            Level.PROBLEM,
            "no broker is known",
            "start one with namesrvAddr set to these name servers",
        )
    for broker in brokers:
        name = broker_name(broker)
        if broker["trouble"]:
            yield _unreached(broker, remote=remote)
            continue
        if remote and _is_loopback(broker["address"]):
            yield Finding(
                "broker",
                Level.WARNING,
                f"{name} tells everybody that it is at {broker['address']}: other machines do not find it"
                " there",
                "set brokerIP1 of the broker to an address that all gateways reach",
            )
        acting = broker["role"] == "acting master"
        yield Finding(
            "broker",
            Level.WARNING if acting else Level.OK,
            f"{name} at {broker['address']} answers in {broker['answer_ms']:.0f} ms"
            + ("; its master is gone: it serves consumers and ends no transactions" if acting else ""),
            "start its master again" if acting else "",
        )
    masters = {broker["name"] for broker in brokers if broker["role"] != "slave"}
    for lone in sorted({broker["name"] for broker in brokers} - masters):
        yield Finding(
            "broker",
            Level.PROBLEM,
            f"broker {lone} has no master: it takes no messages, and no acknowledgements",
            "start its master again, or let a slave act (enableSlaveActingMaster), or use a controller",
        )
    if cluster["not_asked"]:
        yield Finding("broker", Level.SKIPPED, f"{cluster['not_asked']} more processes were not asked")


def _unreached(broker: Told, *, remote: bool) -> Finding:
    advice = "start it; a network rule must let the gateway to that port"
    if remote and _is_loopback(broker["address"]):
        advice = (
            "set brokerIP1 of the broker to an address that all gateways reach: this one is its own machine"
        )
    else:
        advice += ", and brokerIP1 of the broker must be an address that all gateways reach"
    level = Level.WARNING if broker["role"] == "slave" else Level.PROBLEM
    where = (
        broker["trouble"]
        if broker["address"] in broker["trouble"]
        else f"{broker['address']}: {broker['trouble']}"
    )
    return Finding("broker", level, f"{broker_name(broker)} does not answer: {where}", advice)


def _topics(topics: Sequence[Told]) -> Iterator[Finding]:
    own = [topic for topic in topics if not topic["name"].startswith(("%DLQ%", "%RETRY%"))]
    if not own:
        return
    free = [topic["name"] for topic in own if not topic["types"]]
    if free:
        yield Finding(
            "topic-types",
            Level.OK,
            f"{len(free)} of {counted(len(own), 'topic')} declare no message type and take every one:"
            f" {named(free)}",
            "to have types checked: mqadmin updateTopic -a +message.type=FIFO, or popgate apply",
        )
    else:
        yield Finding(
            "topic-types", Level.OK, f"{counted(len(own), 'topic')}, all with a declared message type"
        )
    closed = [topic["name"] for topic in own if topic["permission"] != "read-write"]
    if closed:
        yield Finding(
            "topic-permission",
            Level.WARNING,
            f"{counted(len(closed), 'topic')} cannot be both written and read: {named(closed)}",
            "if that is not meant: mqadmin updateTopicPerm -p 6",
        )


def _groups(unserved: Sequence[Told]) -> Iterator[Finding]:
    for group in unserved:
        yield Finding(
            "group",
            Level.PROBLEM,
            f"broker {group['broker']} gives group {group['group']} nothing, and what it has waits:"
            f" {group['why']}",
            "make the group there as it is on the other brokers (mqadmin updateSubGroup -b), or let the"
            " broker be read (brokerPermission 4 or 6)",
        )


def _gateway(gateway: Told, refusals: Told) -> Iterator[Finding]:
    if gateway.get("transactions_bound"):
        yield Finding(
            "transactions",
            Level.WARNING,
            "transactions can be ended through this gateway only, and not after its end",
            "set remote.transaction_key, the same for all gateways of the cluster",
        )
    else:
        yield Finding(
            "transactions", Level.OK, "a key is set: transactions can be ended through every gateway"
        )
    if unkept := int(gateway.get("numbers_unkept", 0)):
        yield Finding(
            "numbers",
            Level.WARNING,
            f"the name servers do not keep the numbers of {counted(unkept, 'topic')} (`.brokers`: of the"
            " brokers): ids that classic clients get may be found nowhere, and those before 4.9.5 see no new"
            " queues",
            "give the gateway's account the right Sub on the topic `.brokers` and on the group `numbers of"
            " queues`, and on the topics of clients before 4.9.5; the gateway's log says what failed",
        )
    merged = int(gateway.get("clients_merged", 0))
    if merged:
        yield Finding(
            "clients",
            Level.WARNING,
            f"{counted(merged, 'client')} share a connection with others of their group: the cluster's tools,"
            " and checks of transactions, do not see them",
            "raise remote.max_links (each costs a socket on both sides), or run more gateways",
        )
    for address, why in sorted(refusals.items()):
        yield Finding(
            "clients",
            Level.WARNING,
            f"broker {address} does not take heartbeats of clients: {why}",
            "give the gateway's account the right Sub on the groups of its clients and on the topics that"
            " they subscribe to",
        )
    if not merged and not refusals:
        registered = int(gateway.get("clients_registered", 0))
        yield Finding("clients", Level.OK, f"{counted(registered, 'client')} registered at the brokers")
    silent_s = float(gateway.get("name_servers_silent_s", 0.0))
    if silent_s > _OLD_ROUTE_S:
        yield Finding(
            "routes",
            Level.PROBLEM,
            f"no name server has answered for {silent_s:.0f} s: routes are the last ones known",
            "see the name servers above; new topics, and brokers that moved, are not found until then",
        )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
