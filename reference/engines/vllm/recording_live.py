"""What the parts of the recorder share: where events go, which requests are alive, and what was changed in the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from settled.model.events import Event, ReleaseCause
from settled.reference.engines.protocol import Sink

_ABSENT = object()


class Patches:
    """Attributes of live instances that the recorder replaced; no class and no module is ever touched."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def wrap(self, instance: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces a method of one instance by what `make` makes of it. Raises AttributeError if it has none of that name."""
        self._replaced.append((instance, name, vars(instance).get(name, _ABSENT)))
        setattr(instance, name, make(getattr(instance, name)))

    def wrap_if_present(self, instance: Any, name: str, make: Callable[[Any], Any]) -> None:
        """The same, for a method that not every release has."""
        if hasattr(instance, name):
            self.wrap(instance, name, make)

    def undo(self) -> None:
        """Puts everything back, the last first."""
        while self._replaced:
            instance, name, former = self._replaced.pop()
            if former is _ABSENT:
                delattr(instance, name)
            else:
                setattr(instance, name, former)


@dataclass(slots=True, eq=False)
class KnownRequest:
    """A request of the scheduler as the trace knows it.

    `name` is its name in the trace, where names are unique; an id that comes again while the former request is not gone gets another.
    `tables` has, per group, the index of each block that the request holds. `rows` are the worker's, and `lengths` theirs, in blocks.
    """

    name: str
    request: Any
    tables: list[dict[int, int]]
    rows: list[list[int]]
    lengths: tuple[int, ...]
    is_on_worker: bool = False
    is_finished: bool = False
    last_stale_step: int = -1  # this step and those before it are of an earlier generation
    num_unprocessed_steps: int = 0
    num_fenced: int = 0  # tables that a fence still keeps

    @property
    def is_gone(self) -> bool:
        """Whether nothing more can be told of it."""
        return self.is_finished and not self.num_unprocessed_steps and not self.num_fenced and not any(self.tables)


class KnownRequests:
    """The requests that the trace may still speak of. Bounded by what is alive in the engine."""

    def __init__(self, num_groups: int) -> None:
        self.by_id: dict[str, KnownRequest] = {}
        self._num_groups = num_groups
        self._names: set[str] = set()
        self._num_renamed = 0

    def add(self, request: Any) -> KnownRequest:
        """A request enters the scheduler."""
        name = request.request_id
        while name in self._names:
            self._num_renamed += 1
            name = f"{request.request_id}~{self._num_renamed}"
        self._names.add(name)
        groups = range(self._num_groups)
        known = KnownRequest(name, request, [{} for _ in groups], [[] for _ in groups], (0,) * self._num_groups)
        self.by_id[request.request_id] = known
        return known

    def forget_if_gone(self, known: KnownRequest) -> None:
        """Drops a request of which nothing is left, so that its name may come again."""
        if known.is_gone:
            self._names.discard(known.name)
            request_id = known.request.request_id
            if self.by_id.get(request_id) is known:
                del self.by_id[request_id]


@dataclass(slots=True, eq=False)
class Recording:
    """The moment in which the scheduler is: who is being served, and why blocks are given up.

    `emit` is the sink, or a list's `append` while events must wait for another that comes before them. `unattributed` has a sentence for
    each operation of the pool that no request and no holder explains: a trace with one is worth nothing.
    """

    scheduler: Any
    sink: Sink
    requests: KnownRequests
    emit: Callable[[Event], None]
    patches: Patches
    cause: ReleaseCause | None = None
    last_step: int = -1
    unattributed: list[str] = field(default_factory=list)

    def because(self, cause_of: Callable[[Any], ReleaseCause | None]) -> Callable[[Any], Any]:
        """Makes a wrapper of a scheduler's method whose first argument is a request: blocks given up in it have that cause."""

        def make(original: Any) -> Any:
            def wrapped(request: Any, *args: Any, **kwargs: Any) -> Any:
                former, self.cause = self.cause, cause_of(request)
                try:
                    return original(request, *args, **kwargs)
                finally:
                    self.cause = former

            return wrapped

        return make
