"""A pod of the rendered chart as a process, kept as a kubelet keeps it.

Its address is one of the loopback network's own, so that all pods have the ports that the chart says. Where
the chart says 0.0.0.0 a pod listens at that address, and paths below its mounts are folders of this machine;
nothing else differs from what the chart says. Probes are made at their periods and end what fails them, a
container that ends is started again, and a pod that is to go gets `preStop`, SIGTERM, and SIGKILL at the end
of its grace period.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import popgate
from popgate.testing.variables import variables
from tests.rolls.manifests import Files, Manifests, Object

ENTRYPOINT = (sys.executable, "-m", "popgate")
"""What the image's `popgate` is in a checkout."""
BACK_OFF_S = 1.0
"""A container that ended is started again after it. The kubelet starts it at once the first time, and rests
10 s before the second."""


class Pod:
    """`changed` is called whenever `ready` or `terminating` may have changed."""

    def __init__(
        self, manifests: Manifests, name: str, address: str, folder: Path, changed: Callable[[], None]
    ) -> None:
        self.name, self.address = name, address
        self.ready = False
        self.terminating = False
        self.restarts = 0
        self.ends: list[int] = []
        """Exit codes of its container."""
        self.out_of_grace = False
        """Whether it had to be killed at the end of its grace period."""
        self.unhealthy: list[str] = []
        """Probes that failed as often as their threshold, other than readiness."""
        self._manifests = manifests
        self._spec: Object = manifests.template["spec"]
        self._container = manifests.container
        self._folder = folder
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._closed = False
        self._ending = asyncio.Event()
        """It is to go, and is not started again."""
        self._signalled = False
        """Whether what runs in its container has had its SIGTERM, or would have had it."""
        self._mounts: dict[str, Path] = {}
        folder.mkdir(parents=True)
        self._mount()

    def __repr__(self) -> str:
        return f"<Pod {self.name} at {self.address} ready={self.ready} terminating={self.terminating}>"

    @property
    def log(self) -> str:
        """Everything that its container printed."""
        file = self._folder / "log.txt"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def gone(self) -> bool:
        return self._life is not None and self._life.done()

    def at(self, port: str) -> str:
        """host:port of one of its ports, by the name that the chart gives it."""
        return f"{self.address}:{self._manifests.port(port)}"

    # -- its files ----------------------------------------------------------------------------------

    def _mount(self) -> None:
        """Lay out its volumes: what a ConfigMap says with this machine's paths and this pod's address."""
        volumes = {one["name"]: self._files(one) for one in self._spec["volumes"]}
        mounts = self._container["volumeMounts"]
        for at, one in enumerate(mounts):
            path = self._folder / "mounts" / str(at)
            self._mounts[one["mountPath"]] = path / one["subPath"] if "subPath" in one else path
        for at, one in enumerate(mounts):
            path = self._folder / "mounts" / str(at)
            path.mkdir(parents=True)
            kind, files = volumes[one["name"]]
            for name, content in files.items():
                if one.get("subPath", name) == name:
                    shown = self._here(content.decode()).encode() if kind == "configMap" else content
                    (path / name).write_bytes(shown)

    def _files(self, volume: Object) -> tuple[str, Files]:
        """The kind of a volume and what is in it. Raises KeyError, ValueError."""
        if "configMap" in volume:
            return "configMap", self._manifests.config_maps[volume["configMap"]["name"]]
        if "secret" in volume:
            return "secret", self._manifests.secrets[volume["secret"]["secretName"]]
        if "emptyDir" in volume:
            return "emptyDir", {}
        raise ValueError(f"the volume {volume['name']} is of a kind that is not known here: {volume}")

    def _here(self, text: str) -> str:
        """A text of the pod as it is on this machine."""
        paths = "|".join(re.escape(path) for path in sorted(self._mounts, key=len, reverse=True))
        text = re.sub(rf"(?<![\w/])({paths})(?![\w-])", lambda found: str(self._mounts[found[1]]), text)
        return text.replace("//0.0.0.0:", f"//{self.address}:")

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in variables().items() if not name.startswith("POPGATE_")}
        home = str(Path(popgate.__file__).resolve().parents[1])
        kept |= {"PYTHONPATH": home, "PYTHONUNBUFFERED": "1"}
        if "/tmp" in self._mounts:
            kept["TMPDIR"] = str(self._mounts["/tmp"])
        for one in self._container.get("env", ()):
            kept[one["name"]] = one["value"] if "value" in one else self._secret(one["valueFrom"])
        return kept

    def _secret(self, source: Mapping[str, Any]) -> str:
        named = source["secretKeyRef"]
        return self._manifests.secrets[named["name"]][named["key"]].decode()

    # -- its life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Have it run from now on."""
        self._life = asyncio.create_task(self._live(), name=self.name)

    async def _live(self) -> None:
        while not self.terminating:
            process = self._process = await self._run([*self._command(), *self._arguments()])
            if self._closed:
                # It was closed while this one was being made, and could not be killed then.
                self.kill()
            elif self._signalled:
                # It was to go while this one was being made, and could not be told then.
                _signal(process, signal.SIGTERM, alone=True)
            probing = asyncio.create_task(self._probe_all(process))
            try:
                self.ends.append(await process.wait())
            finally:
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
            self._tell(ready=False)
            if not self.terminating:
                self.restarts += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), BACK_OFF_S)

    def _command(self) -> list[str]:
        given = self._container.get("command")
        # The image's own is this machine's Python already, which may lie in a folder that is mounted, /tmp.
        return list(ENTRYPOINT) if given is None else [self._here(word) for word in given]

    def _arguments(self) -> list[str]:
        return [self._here(word) for word in self._container.get("args", ())]

    async def _run(self, command: list[str]) -> asyncio.subprocess.Process:
        """A process in the container."""
        with (self._folder / "log.txt").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                cwd=self._folder,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End its container with everything in it at once, as a crash of the node's kernel would."""
        assert self._process is not None
        _signal(self._process, signal.SIGKILL)

    async def terminate(self) -> None:
        """Let it go as the kubelet does, and wait until it has gone."""
        loop = asyncio.get_running_loop()
        over = loop.time() + self._spec["terminationGracePeriodSeconds"]
        self.terminating = True
        self._ending.set()
        self._changed()
        assert self._life is not None
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pre_stop(hook), over - loop.time())
        self._signalled = True
        if self._process is not None and self._process.returncode is None:
            _signal(self._process, signal.SIGTERM, alone=True)
        done, _ = await asyncio.wait([self._life], timeout=max(over - loop.time(), 0))
        if not done:
            self.out_of_grace = True
            self.kill()
        await self._life

    async def _pre_stop(self, hook: Object) -> None:
        """Raises ValueError for a hook of a kind that is not known here."""
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        elif "exec" in hook:
            process = await self._run([self._here(word) for word in hook["exec"]["command"]])
            await process.wait()
        else:
            raise ValueError(f"a preStop of a kind that is not known here: {hook}")

    async def close(self) -> None:
        """End it at once, if it still runs."""
        self.terminating = self._closed = True
        self._ending.set()
        if self._life is not None and not self._life.done():
            if self._process is not None:
                self.kill()
            await self._life

    # -- its probes ---------------------------------------------------------------------------------

    async def _probe_all(self, process: asyncio.subprocess.Process) -> None:
        """Startup first, the others when that has succeeded."""
        startup = self._container.get("startupProbe")
        if startup is not None and not await self._started(startup, process):
            return
        await asyncio.gather(self._follow("readinessProbe", process), self._follow("livenessProbe", process))

    async def _started(self, probe: Object, process: asyncio.subprocess.Process) -> bool:
        for _ in range(probe.get("failureThreshold", 3)):
            if await self._succeeds(probe):
                return True
            await asyncio.sleep(
                probe.get("periodSeconds", 10)
            )  # it is the chart's period: nothing is awaited
        self._fail("startupProbe", process)
        return False

    async def _follow(self, name: str, process: asyncio.subprocess.Process) -> None:
        probe, same, last = self._container[name], 0, None
        while True:
            succeeded = await self._succeeds(probe)
            same, last = (same + 1 if succeeded == last else 1), succeeded
            enough = probe.get("successThreshold", 1) if succeeded else probe.get("failureThreshold", 3)
            if same >= enough:
                if name == "readinessProbe":
                    self._tell(ready=succeeded)
                elif not succeeded:
                    self._fail(name, process)
                    return
            await asyncio.sleep(probe.get("periodSeconds", 10))  # as above

    def _fail(self, name: str, process: asyncio.subprocess.Process) -> None:
        if not self.terminating:
            self.unhealthy.append(name)
            _signal(process, signal.SIGTERM, alone=True)

    async def _succeeds(self, probe: Object) -> bool:
        asked = probe["httpGet"]
        host, _, port = self.at(asked["port"]).rpartition(":")
        return await asyncio.to_thread(_answers, host, int(port), asked["path"], probe["timeoutSeconds"])

    def _tell(self, *, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self._changed()


def _answers(host: str, port: int, path: str, timeout_s: float) -> bool:
    link = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        link.request("GET", path, headers={"user-agent": "kube-probe"})
        return 200 <= link.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()


def _signal(process: asyncio.subprocess.Process, number: int, *, alone: bool = False) -> None:
    """To a container's first process, `alone` or with all that it made."""
    with contextlib.suppress(ProcessLookupError):
        (os.kill if alone else os.killpg)(process.pid, number)
