"""Who may work now: in one turn of the event loop each tenant works for a bounded time, and its connections take turns.

So a tenant that floods the server delays another's request by one turn's time, however many connections it has.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["SECONDS_A_TURN", "Turns"]

SECONDS_A_TURN: Final = 1 / 4096
"""Work of one tenant before the loop looks for what others have sent; a longer request uses up turns to come."""

MOST_DEBT: Final = 50 * SECONDS_A_TURN


class Worker(Protocol):
    """What has work left: a connection with requests that wait, or words that have to be looked at."""

    def work(self) -> None:
        """Go on, while :meth:`Turns.may_work` says so."""
        ...


class Turns:
    """The turns of one event loop; ``call_soon`` is the loop's. Not thread-safe."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._used: dict[str, float] = {}
        self._waiting: dict[str, deque[Worker]] = {}
        self._scheduled = False

    def may_work(self, tenant: str) -> bool:
        """Tell whether the tenant has time left in this turn."""
        return self._used.get(tenant, 0.0) < SECONDS_A_TURN

    def begin(self) -> float:
        """Return what :meth:`end` takes."""
        return self._clock()

    def end(self, tenant: str, begun: float) -> None:
        """Charge a tenant for what it did since."""
        self._used[tenant] = self._used.get(tenant, 0.0) + self._clock() - begun
        self._schedule()

    def wait(self, tenant: str, worker: Worker) -> None:
        """Let it work again once its tenant may, after the tenant's others that wait."""
        queue = self._waiting.setdefault(tenant, deque())
        if worker not in queue:
            queue.append(worker)
        self._schedule()

    def leave(self, tenant: str, worker: Worker) -> None:
        """Forget one that has ended."""
        queue = self._waiting.get(tenant)
        if queue is not None and worker in queue:
            queue.remove(worker)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._used = {
            tenant: min(used, MOST_DEBT) - SECONDS_A_TURN
            for tenant, used in self._used.items()
            if used > SECONDS_A_TURN
        }
        for tenant in list(self._waiting):
            queue = self._waiting[tenant]
            for _ in range(len(queue)):
                if not queue or not self.may_work(tenant):
                    break
                queue.popleft().work()
            if not queue:
                del self._waiting[tenant]
        if self._used or self._waiting:
            self._schedule()
