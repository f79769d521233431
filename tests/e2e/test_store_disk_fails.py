"""The disk of a gateway that serves becomes read-only: a real file system, as Linux makes it after a fault.

`mount -o remount,ro` is refused while files are open for writing, as those of a store are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from popgate.pb import definition_pb2 as pb
from popgate.testing import GatewayProcess
from tests.e2e.clients import Client
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
MOUNT = 'mount -o loop,errors=remount-ro "$1" "$2"'


class Disk:
    """An ext4 of its own, in a mount namespace of its own, which lives as long as `holder`."""

    def __init__(self, folder: Path) -> None:
        self.image, self.mounted = folder / "image", folder / "disk"
        self.mounted.mkdir()
        with self.image.open("wb") as image:
            image.truncate(128 * 1024 * 1024)
        self._run("mkfs.ext4", "-q", "-F", str(self.image))
        apart = ("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo there && exec cat")
        self.holder = subprocess.Popen(apart, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout is not None
        if not self.holder.stdout.readline():
            self.close()
            raise OSError("no mount namespace of one's own can be made")
        try:
            self.mount()
            self.trigger = Path("/sys/fs/ext4", Path(self._device()).name, "trigger_fs_error")
            if not os.access(self.trigger, os.W_OK):
                raise OSError("the kernel does not let a file system be broken on purpose")
        except BaseException:
            self.close()
            raise

    def inside(self, *command: str) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self.holder.pid), "--mount", "--", *command)

    def mount(self) -> None:
        self._run(*self.inside("sh", "-c", MOUNT, "sh", str(self.image), str(self.mounted)))

    def fail(self) -> None:
        """As after a fault of the disk: from now on nothing can be written, also not to open files."""
        self.trigger.write_text("test")

    async def mend(self) -> None:
        """As an operator does it: unmount, wait until nobody has a file open there, check, mount."""
        loop = Path(self._device()).name
        self._run(*self.inside("umount", "--lazy", str(self.mounted)))
        # The kernel takes the image away when the last file on it is closed.
        await until(lambda: not Path("/sys/block", loop, "loop/backing_file").exists())
        self._run("e2fsck", "-fp", str(self.image), fine=(0, 1))
        self.mount()

    def close(self) -> None:
        """The namespace goes with its last process, the mount with it, and the loop device with that."""
        self.holder.communicate(b"")

    def _device(self) -> str:
        mounts = Path(f"/proc/{self.holder.pid}/mounts").read_text().splitlines()
        return next(line.split()[0] for line in mounts if line.split()[1] == str(self.mounted))

    def _run(self, *command: str, fine: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in fine:
            raise OSError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        made = Disk(tmp_path)
    except OSError as error:
        pytest.skip(f"no disk of one's own can be made here: {error}")
    yield made
    made.close()


def readiness(gateway: GatewayProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{gateway.admin}/ready", timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)["state"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["state"]


async def sent(client: Client, body: bytes) -> str:
    """Why the message was refused; empty: it was stored."""
    try:
        await client.send("orders", body)
    except AssertionError as error:
        return str(error)
    return ""


async def test_a_disk_that_becomes_read_only_is_told_and_all_goes_on_when_it_is_mended(
    disk: Disk, tmp_path: Path
) -> None:
    inside = tmp_path / "inside"
    inside.write_text(f'#!/bin/sh\nexec {" ".join(disk.inside(sys.executable))} "$@"\n')
    inside.chmod(0o755)
    # Of what was answered nothing may be missing, though the disk fails without a warning.
    gateway = GatewayProcess(
        disk.mounted / "data",
        python=str(inside),
        options=("--durability", "sync"),
        environment={"PYTHONPATH": str(ROOT)},
    )
    with gateway:
        client, consumer = Client(gateway.endpoint, "p"), Client(gateway.endpoint, "c")
        numbers = itertools.count()
        answered: list[bytes] = []

        async def send() -> str:
            body = b"%d" % next(numbers)
            why = await sent(client, body)
            answered.extend([] if why else [body])
            return why

        async def stored() -> bool:
            return not await send()

        async with asyncio.timeout(PATIENCE_S):
            while len(answered) < 8:
                assert await send() == ""
            held: list[pb.Message] = []
            while not held:
                _, held = await consumer.receive("orders", "workers", 1)

        disk.fail()
        why = await until(send, pause_s=0)
        await until(lambda: "Read-only file system" in gateway.log)
        assert "HA_NOT_AVAILABLE" in why
        assert f"the store in {disk.mounted}/data/store cannot be " in why
        assert "Read-only file system" in why
        assert readiness(gateway) == (503, "failing")
        # What needs no write goes on, while the disk is as it is.
        pulled: set[bytes] = set()
        async with asyncio.timeout(PATIENCE_S):
            while not set(answered) <= pulled:
                for queue_id in range(8):
                    pulled.update(await consumer.pull("orders", "workers", queue_id))
        assert "Read-only file system" in await send()

        await disk.mend()
        async with asyncio.timeout(PATIENCE_S):
            await until(stored)
            assert readiness(gateway) == (200, "ready")
            # What was held is held still, and what was not comes, once; unless it was answered it need not.
            got: list[bytes] = []
            messages = held
            while not set(answered) <= set(got):
                if messages:
                    await consumer.ack("orders", "workers", messages)
                    got += [message.body for message in messages]
                _, messages = await consumer.receive("orders", "workers", 1)
        assert len(got) == len(set(got))
