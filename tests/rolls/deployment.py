"""Pods of a rendered Deployment, kept as its controller, an eviction and a rollout keep them."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

from tests.rolls.manifests import Manifests, count_of
from tests.rolls.pods import Pod
from tests.rolls.service import Service
from tests.support.waiting import until

READY_WITHIN_S = 300.0
"""For all pods that are wanted, on a machine that has other things to do."""


class EvictionRefused(Exception):
    """The PodDisruptionBudget does not allow it now; the API server answers 429."""


class Deployment:
    """`service` hears of every pod's readiness."""

    def __init__(self, manifests: Manifests, folder: Path, service: Service) -> None:
        self.replicas = 0
        self.pods: list[Pod] = []
        """All that have not gone, oldest first."""
        self.past: list[Pod] = []
        self._manifests, self._folder, self._service = manifests, folder, service
        self._numbers = itertools.count(1)
        # Other runs may be going on: each has a network of its own.
        dice = random.SystemRandom()
        self._network = f"127.{dice.randrange(16, 250)}.{dice.randrange(1, 250)}"
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def present(self) -> list[Pod]:
        """Those that are not on their way out."""
        return [one for one in self.pods if not one.terminating]

    @property
    def ready(self) -> list[Pod]:
        return [one for one in self.present if one.ready]

    async def scale(self, replicas: int) -> None:
        """Have so many pods, and wait until all are ready, or those that are too many have gone."""
        self.replicas = replicas
        while len(self.present) < replicas:
            self._create()
        # What is not ready goes first, then the youngest.
        spare = sorted(self.present, key=lambda one: (one.ready, -self.pods.index(one)))
        for pod in spare[: len(self.present) - replicas]:
            self._delete(pod)
        await self._complete()

    async def roll(self) -> None:
        """Replace every pod as a new revision of the Deployment does, and wait until that is complete."""
        limits = self._manifests.deployment["spec"]["strategy"]["rollingUpdate"]
        most = self.replicas + count_of(limits["maxSurge"], self.replicas, up=True)
        least = self.replicas - count_of(limits["maxUnavailable"], self.replicas, up=False)
        old = self.present
        while old:
            while len(self.present) < min(most, self.replicas + len(old)):
                self._create()
            await until(lambda: len(self.ready) > least, READY_WITHIN_S, seen=lambda: self.pods)
            while old and len(self.ready) > least:
                self._delete(old.pop(0))
        await self._complete()

    def evict(self, pod: Pod) -> None:
        """Delete a pod if the budget allows it, as a drain of its node asks for. Raises EvictionRefused."""
        spec = self._manifests.budget["spec"]
        wanted = self.replicas - count_of(spec["maxUnavailable"], self.replicas, up=True)
        if pod.ready and len(self.ready) - 1 < wanted:
            raise EvictionRefused(f"{len(self.ready)} pods are ready, and {wanted} have to be")
        self._delete(pod)
        if len(self.present) < self.replicas:
            self._create()

    async def complete(self) -> None:
        """Wait until as many pods are ready as there have to be, and those that go have gone."""
        await self._complete()

    async def _complete(self) -> None:
        await until(
            lambda: len(self.ready) == self.replicas == len(self.pods),
            READY_WITHIN_S,
            seen=lambda: self.pods,
        )

    def _create(self) -> None:
        number = next(self._numbers)
        pod = Pod(
            self._manifests,
            f"popgate-{number}",
            f"{self._network}.{number}",
            self._folder / f"pod-{number}",
            self._changed,
        )
        self.pods.append(pod)
        pod.start()

    def _delete(self, pod: Pod) -> None:
        async def go() -> None:
            await pod.terminate()
            self.pods.remove(pod)
            self.past.append(pod)
            self._changed()

        going = asyncio.create_task(go(), name=f"{pod.name} goes")
        pod.terminating = True  # at once: who counts must not count it any more
        self._leaving.add(going)
        self._changed()

    def _changed(self) -> None:
        """A pod that is on its way out leaves the endpoints at once, as in an EndpointSlice."""
        self._service.endpoints = [one.address for one in self.ready]

    async def close(self) -> None:
        """End all pods."""
        # One that failed at its start must not keep the others from their end.
        pods = await asyncio.gather(*(pod.close() for pod in self.pods), return_exceptions=True)
        leaving = await asyncio.gather(*self._leaving, return_exceptions=True)
        self.past += self.pods
        for failure in (*pods, *leaving):
            if failure is not None:
                raise failure
