"""A RocketMQ cluster of one's own for a test: name servers, brokers, and a Java proxy if one is wanted.

with RocketMQ(brokers=pairs("broker-a", "broker-b")) as cluster:
    ...  # a gateway is given cluster.url, tools are called with cluster.admin("clusterList")
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from popgate.errors import PeerWireError
from popgate.testing.rocketmq import plans
from popgate.testing.rocketmq.downloads import chosen_version, jars
from popgate.testing.rocketmq.plans import BrokerPlan
from popgate.testing.rocketmq.ports import free_ports, is_open
from popgate.testing.rocketmq.requests import addresses_known, ask
from popgate.testing.rocketmq.servers import QUICK, JavaServer, Reaper, environment_of, java
from popgate.wire.frames.codes import RequestCode
from popgate.wire.json_syntax.fastjson import loads

_ORG = "org.apache.rocketmq"
_BROKER_PORTS = 4
"""A broker takes the port before the last but one, its own, and the next: 2, 0, and 1 away."""
_ADMIN_WITHIN_S = 240.0
_POLLED_FOR_S = 5.0
"""A starting server may not answer requests that come too early."""


class RocketMQ:
    """Processes on free ports of the loopback device, in a folder that goes with them.

    With `controllers` each name server holds one, and brokers of `plans.replicas` are under them. `settings`
    are lines of every broker.conf. `options` are those of the brokers' and the proxy's virtual machines;
    None: such that start soon. `properties` are system properties of name servers and brokers.
    """

    def __init__(
        self,
        *,
        version: str | None = None,
        name_servers: int = 1,
        brokers: Sequence[BrokerPlan] = (BrokerPlan(),),
        controllers: bool = False,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] | None = None,
        name_server_settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version or chosen_version()
        self.name_servers: list[JavaServer] = []
        self.brokers: dict[tuple[str, int], JavaServer] = {}
        self.proxies: list[JavaServer] = []
        self._plans = tuple(brokers)
        self._count = name_servers
        self._controllers = controllers
        self._settings = dict(settings or {})
        self._name_server_settings = dict(name_server_settings or {})
        self._options = options
        self._properties = dict(properties or {})
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._reaper: Reaper | None = None
        self._controller_ports: list[int] = []

    # -- where it is ------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        if self._temporary is None:
            raise RuntimeError("the cluster was not started")
        return Path(self._temporary.name)

    @property
    def addresses(self) -> list[str]:
        """Of the name servers."""
        return [server.address for server in self.name_servers]

    @property
    def url(self) -> str:
        """As the gateway's `--broker` wants it."""
        return f"rocketmq://{','.join(self.addresses)}"

    def master(self, name: str = "broker-a") -> JavaServer:
        """The process that is the master now, as a name server says. Raises KeyError when there is none."""
        for address in self._alive_name_servers():
            known = addresses_known(address).get(name, {})
            for server in self.brokers.values():
                if server.address == known.get(plans.MASTER):
                    return server
        raise KeyError(f"{name} has no master")

    def leading_controller(self) -> JavaServer:
        """The name server whose controller is the leader of all. Raises KeyError when there is none."""
        for server, port in zip(self.name_servers, self._controller_ports, strict=False):
            with contextlib.suppress(OSError, PeerWireError):
                if server.runs and self._leads(f"127.0.0.1:{port}"):
                    return server
        raise KeyError("no controller leads")

    @staticmethod
    def _leads(controller: str) -> bool:
        response = ask(controller, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_s=_POLLED_FOR_S)
        return response.fields.get("isLeader") == "true"

    def _alive_name_servers(self) -> list[str]:
        return [server.address for server in self.name_servers if server.runs]

    # -- its life ---------------------------------------------------------------------------------

    def start(self) -> RocketMQ:
        """Start all of it and wait until it serves. Raises Missing, RocketMQDidNotStart."""
        jars(self.version)
        self._temporary = tempfile.TemporaryDirectory(prefix="popgate-rocketmq-", ignore_cleanup_errors=True)
        self._reaper = Reaper()
        self._reaper.tell(str(self.folder))
        try:
            if self._controllers:
                self._controller_ports = [free_ports() for _ in range(self._count)]
            for number in range(self._count):
                self.name_servers.append(self._name_server(number))
            self._together(self.name_servers)
            for plan in self._plans:
                self.brokers[plan.name, plan.number] = self._broker(plan)
            self._together(list(self.brokers.values()))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill all processes at once and remove the folder: nothing depends on an orderly shutdown."""
        servers = [*self.proxies, *self.brokers.values(), *self.name_servers]
        for server in servers:
            server.signal(signal.SIGKILL)
        for server in servers:
            server.wait()
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> RocketMQ:
        return self if self._temporary is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add_broker(self, plan: BrokerPlan) -> JavaServer:
        """One more broker, started. Raises RocketMQDidNotStart."""
        made = self.brokers[plan.name, plan.number] = self._broker(plan)
        return made.start()

    def start_proxy(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        options: Sequence[str] | None = None,
        broker: BrokerPlan | None = None,
    ) -> JavaServer:
        """The Java proxy before this cluster; `address` is its gRPC door. Raises RocketMQDidNotStart.

        `options` are its virtual machine's; None: those of the cluster. With `broker` it is one process with
        that broker inside, RocketMQ's local mode.
        """
        made = self._proxy(settings or {}, self._options if options is None else options, broker)
        self.proxies.append(made)
        return made.start()

    def admin(self, *words: str) -> str:
        """Run a command of mqadmin against the cluster; returns its output. Raises CalledProcessError."""
        home = self.folder / "admin"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        command = [
            java(),
            *plans.ADMIN_HEAP,
            *QUICK,
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={home}",
            "-cp",
            str(jars(self.version) / "*"),
        ]
        ended = subprocess.run(  # noqa: S603 - a program of our choice, without a shell
            [*command, f"{_ORG}.tools.command.MQAdminStartup", *words, "-n", ";".join(self.addresses)],
            cwd=home,
            env=environment_of(home),
            capture_output=True,
            text=True,
            check=True,
            timeout=_ADMIN_WITHIN_S,
        )
        return ended.stdout

    # -- its servers ------------------------------------------------------------------------------

    @staticmethod
    def _together(servers: Sequence[JavaServer]) -> None:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_ready()

    def _name_server(self, number: int) -> JavaServer:
        def arguments(server: JavaServer) -> list[str]:
            server.port = server.port or free_ports()
            settings = {
                **plans.NAME_SERVER_SETTINGS,
                "listenPort": str(server.port),
                **self._name_server_settings,
            }
            if self._controllers:
                settings |= {
                    "enableControllerInNamesrv": "true",
                    "controllerDLegerGroup": "controllers",
                    "controllerDLegerPeers": ";".join(
                        f"n{peer}-127.0.0.1:{port}" for peer, port in enumerate(self._controller_ports)
                    ),
                    "controllerDLegerSelfId": f"n{number}",
                    "controllerStorePath": str(server.folder / "controller"),
                }
            return ["-c", _written(server, "namesrv.properties", settings)]

        def ready(server: JavaServer) -> bool:
            addresses_known(server.address, timeout_s=_POLLED_FOR_S)
            return True

        options = (*plans.NAME_SERVER_HEAP, *QUICK, *_flags(self._properties))
        return self._server(f"namesrv-{number}", "namesrv.NamesrvStartup", arguments, ready, options)

    def _broker(self, plan: BrokerPlan) -> JavaServer:
        def arguments(server: JavaServer) -> list[str]:
            server.port = server.port or free_ports(_BROKER_PORTS) + 2
            return ["-c", self._broker_file(server, plan, server.port)]

        def ready(server: JavaServer) -> bool:
            known = [addresses_known(at, timeout_s=_POLLED_FOR_S) for at in self._alive_name_servers()]
            if not all(server.address in addresses.get(plan.name, {}).values() for addresses in known):
                return False
            return plan.number == plans.MASTER or self.is_followed(plan.name)

        name = f"{plan.name}-{plan.number}"
        options = (*plans.BROKER_HEAP, *QUICK) if self._options is None else self._options
        options = (*options, *_flags(self._properties | dict(plan.properties)))
        return self._server(name, "broker.BrokerStartup", arguments, ready, options)

    def _broker_file(self, server: JavaServer, plan: BrokerPlan, port: int) -> str:
        """The path of the settings of a broker in a server's folder."""
        store = server.folder / "store"
        settings = {
            **plans.BROKER_SETTINGS,
            "brokerName": plan.name,
            "brokerId": str(plan.number),
            "namesrvAddr": ";".join(self.addresses),
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            **self._settings,
            **plan.settings,
        }
        if settings.get("enableControllerMode") == "true":
            settings["controllerAddr"] = ";".join(f"127.0.0.1:{port}" for port in self._controller_ports)
        return _written(server, "broker.conf", settings)

    def is_followed(self, name: str) -> bool:
        """Whether the slaves of a broker are in sync with its master, so that it accepts messages.

        Raises OSError, PeerWireError.
        """
        try:
            master = self.master(name).address
        except KeyError:  # another one is being chosen
            return False
        answer = ask(master, RequestCode.GET_BROKER_HA_STATUS, timeout_s=_POLLED_FOR_S)
        slaves = loads(answer.body).get("haConnectionInfo", []) if answer.body else []
        return bool(slaves) and all(slave.get("inSync", True) for slave in slaves)

    def _proxy(
        self, settings: Mapping[str, object], wanted: Sequence[str] | None, inside: BrokerPlan | None
    ) -> JavaServer:
        def arguments(server: JavaServer) -> list[str]:
            server.port = server.port or free_ports(2 if inside is None else 2 + _BROKER_PORTS)
            proxy_config: dict[str, object] = {
                "rocketMQClusterName": plans.CLUSTER_NAME,
                "namesrvAddr": ";".join(self.addresses),
                "proxyMode": "CLUSTER" if inside is None else "LOCAL",
                "grpcServerPort": server.port,
                "remotingListenPort": server.port + 1,
                "enableProxyRemotingProtocol": True,
                **settings,
            }
            path = server.folder / "home" / "conf" / "rmq-proxy.json"
            path.write_text(json.dumps(proxy_config))
            words = ["-pc", str(path)]
            if inside is not None:
                conf = self._broker_file(server, inside, server.port + 4)
                words += ["-pm", "LOCAL", "-n", ";".join(self.addresses), "-bc", conf]
            return words

        def ready(server: JavaServer) -> bool:
            known = inside is None or all(
                inside.name in addresses_known(at, timeout_s=_POLLED_FOR_S)
                for at in self._alive_name_servers()
            )
            return known and is_open(server.port)

        options = plans.PROXY_HEAP if wanted is None else wanted
        name = f"proxy-{len(self.proxies)}"
        return self._server(
            name,
            "proxy.ProxyStartup",
            arguments,
            ready,
            options,
            says="startup successfully",
        )

    def _server(
        self,
        name: str,
        main: str,
        arguments: Callable[[JavaServer], Sequence[str]],
        ready: Callable[[JavaServer], bool],
        options: Sequence[str],
        says: str = "boot success",
    ) -> JavaServer:
        if self._reaper is None:
            raise RuntimeError("the cluster was not started")
        folder = self.folder / name
        folder.mkdir()
        return JavaServer(
            name,
            f"{_ORG}.{main}",
            jars=jars(self.version),
            folder=folder,
            reaper=self._reaper,
            arguments=arguments,
            says=says,
            ready=ready,
            options=options,
        )


def _flags(properties: Mapping[str, str]) -> list[str]:
    return [f"-D{name}={value}" for name, value in properties.items()]


def _written(server: JavaServer, name: str, settings: Mapping[str, str]) -> str:
    path = server.folder / "home" / "conf" / name
    path.write_text(plans.as_properties(settings))
    return str(path)
