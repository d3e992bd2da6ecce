"""One op log on a device and on the CPU: the same launches in the same orders, and whether both read the same.

Over contiguous memory the same kernels on the same device must give the same bits wherever tags are right. Directed, every digest, every
count and every first wrong position must be those of a CPU replay of that order, garbled or not; and so must natural timing's be where
nothing races, for then all orders are alike. Where something does, natural timing is told and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from settled.reference.device.attention import rows_differing
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda.contiguous import contiguous_log
from settled.reference.device.cuda.launches import Launches
from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.cuda.streams import GateTimeoutError, StreamsError, run_on_streams
from settled.reference.device.mismatches import garbled_of
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import LaunchKind, OpLog
from settled.reference.device.outcome import Outcome
from settled.reference.device.payload import Numbers
from settled.reference.device.replay import replay_outcome
from settled.reference.device.results import sentence
from settled.reference.device.trials import Trial, races_of_launches

NUMBERS = Numbers(head_dim=16, is_single=True)
TOLERANCE = 1e-5
"""Of outputs of two devices, relative to the norm of a row: 16 numbers in float32, over some hundred keys at most."""

NATURAL, IN_ORDER = "natural timing", "one stream"
DRAIN_SECONDS = 30.0
RUN_SECONDS, LAUNCH_SECONDS = 10.0, 0.005
"""Deadlines: of a run, and more for each launch, whose closed gate may be looked at over the bus."""

Launch = Callable[[int], None]
Queued = Callable[[Launch, OpLog], Launch]
"""Makes of a launch one that goes to the current stream: on a CUDA device they do by themselves, on a fake one somebody sees to it."""


def by_itself(launch: Launch, log: OpLog) -> Launch:
    return launch


@dataclass(slots=True)
class Run:
    """The log once on the device. `order`: in words. `rows_garbled`, `stores_wrong`: what the device found; `problems`: what must not be.

    `wanted_rows`, `wanted_stores`: what the CPU's replay found; None where it says nothing, in natural timing of a log that races.
    `first`: what was first found garbled, in words, where the device and the CPU agree on it.
    `is_repeated`: the first try came to its deadline, as where the device puts streams one behind the other; see `_directed`.
    """

    order: str
    rows_garbled: int = 0
    stores_wrong: int = 0
    wanted_rows: int | None = None
    wanted_stores: int | None = None
    compared: int = 0  # outputs of keys and states whose tags are right, compared bit for bit with contiguous memory
    is_repeated: bool = False
    first: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def is_garbled(self) -> bool:
        return bool(self.rows_garbled or self.stores_wrong)


class AgainstCpu:
    """A log, ready on the device: uploaded, its kernels compiled, run once over contiguous memory and once on one stream.

    `first_runs`: of those two. `races`: between launches. Raises what the device raises.
    """

    def __init__(self, log: OpLog, device: CudaDevice, *, queued: Queued = by_itself, numbers: Numbers = NUMBERS) -> None:
        self.device, self.log, self.queued = device, log, queued
        self.races = races_of_launches(log)
        self.compiled = compile_log(log)
        self.numbered = NumberedLog(self.compiled, numbers)
        self._right = replay_outcome(self.compiled, self.numbered)
        laid_out = compile_log(contiguous_log(self.compiled))
        beside = Launches(laid_out, NumberedLog(laid_out, numbers), device.place)
        run_in_order(beside, device, queued)
        self.contiguous = beside.outcome()
        self.launches = Launches(self.compiled, self.numbered, device.place)
        self.first_runs = [Run("contiguous memory", problems=list(self._wrong_over_contiguous())), self._in_order()]

    def natural(self, *, step_seconds: float) -> Run:
        """Only the log's own records, waits and host syncs order the work. `step_seconds`: the compute stream is busy before each step."""
        name = f"{NATURAL}, steps of {step_seconds * 1000:g} ms" if step_seconds else NATURAL
        return self._run(name, None if self.races else self._right, lambda run: self._on_streams(None, step_seconds))

    def directed(self, trial: Trial) -> Run:
        """Exactly that order, by tickets."""
        wanted = replay_outcome(self.compiled, self.numbered, trial.order)
        return self._run(str(trial), wanted, lambda run: self._directed(run, trial.order))

    def _in_order(self) -> Run:
        return self._run(IN_ORDER, self._right, lambda run: run_in_order(self.launches, self.device, self.queued))

    def _directed(self, run: Run, order: list[int]) -> None:
        """CUDA does not know the order that tickets make, and may let a stream wait for another whose gate is closed. Then, from here on,
        nothing is put behind a closed gate, and the run is repeated.
        """
        try:
            self._on_streams(order)
        except GateTimeoutError:
            if self.device.is_lost or self.device.tickets.ahead == 1:
                raise
            self.device.tickets.ahead = 1
            run.is_repeated = True
            self._on_streams(order)

    def _on_streams(self, order: list[int] | None, step_seconds: float = 0.0) -> None:
        self.launches.reset()
        seconds = RUN_SECONDS + LAUNCH_SECONDS * len(self.log.launches())
        launch = self.queued(self.launches.run, self.log)
        run_on_streams(self.log, launch, device=self.device, order=order, step_seconds=step_seconds, seconds=seconds)

    def _run(self, name: str, wanted: Outcome | None, do: Callable[[Run], None]) -> Run:
        run = Run(name)
        try:
            do(run)
        except StreamsError as error:
            run.problems.append(f"{name}: {' '.join([str(error), *getattr(error, '__notes__', ())])}")
            return run
        found = self.launches.outcome()
        run.rows_garbled, run.stores_wrong = rows_garbled(found), stores_wrong(found)
        if wanted is not None:
            run.wanted_rows, run.wanted_stores = rows_garbled(wanted), stores_wrong(wanted)
            run.compared = len(_by_tags(found.wrong)[0]) + len(_right_state_rows(found))
            run.problems += [f"{name}: {each}" for each in differences(found, wanted, self.contiguous)]
            if run.is_garbled and not run.problems:
                run.first = sentence(garbled_of(found, self.compiled)[0], self.compiled.describe)
        return run

    def _wrong_over_contiguous(self) -> Iterator[str]:
        """Of the device's own reference: it must be clean, and near what the CPU computes."""
        if not self.contiguous.is_clean:
            yield f"contiguous memory: {self.contiguous.counts()}"
        far = _far(self.contiguous.outputs, torch.cat([self.numbered.steps[step.op].outputs for step in self.compiled.steps]))
        if far:
            yield f"contiguous memory: {len(far)} rows further than {TOLERANCE:g} from the CPU's outputs, row {far[0]} first"


def run_in_order(launches: Launches, device: CudaDevice, queued: Queued = by_itself) -> None:
    """All launches on one stream, as they were enqueued. A FILL, which is the host's, waits for the uploads before it."""
    launches.reset()
    launch = queued(launches.run, launches.log)
    for op in launches.log.launches():
        if launches.compiled.kinds[op] is LaunchKind.FILL:
            _drain(device)
            launch(op)
        else:
            device.enqueue(1, partial(launch, op))
    _drain(device)


def _drain(device: CudaDevice) -> None:
    if not device.drain(DRAIN_SECONDS):
        raise StreamsError(f"the device did not end its work in {DRAIN_SECONDS:g} s")


# ---- two outcomes ------------------------------------------------------------------------------------------------------------


def differences(found: Outcome, wanted: Outcome, contiguous: Outcome) -> Iterator[str]:
    """What is not as it must be, in words. `wanted`: the CPU's replay of the same order."""
    names = found.differences(wanted)
    if names:
        yield f"{', '.join(names)} differ from the CPU's: {found.counts()} on the device, {wanted.counts()} on the CPU"
    clean, garbled = _by_tags(found.wrong)
    changed = rows_differing(found.outputs[clean], contiguous.outputs[clean])
    if changed:
        yield f"{len(changed)} rows read the right tags and are not contiguous memory's bits, row {int(clean[changed[0]])} first"
    far = _far(found.outputs[garbled], wanted.outputs[garbled])
    if far:
        yield f"{len(far)} garbled rows are further than {TOLERANCE:g} from the CPU's, row {int(garbled[far[0]])} first"
    right = _right_state_rows(found)
    moved = rows_differing(found.state_outputs[right], contiguous.state_outputs[right])
    if moved:
        yield f"{len(moved)} states were right and are not contiguous memory's bits, state row {right[moved[0]]} first"
    states = _far(found.state_outputs, wanted.state_outputs, relative=0.0)
    if states:
        yield f"{len(states)} numbers of states differ from the CPU's, state row {states[0]} first"


def _by_tags(wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows read right tags alone, which a wrong one."""
    return (wrong == 0).nonzero().flatten(), (wrong != 0).nonzero().flatten()


def _right_state_rows(outcome: Outcome) -> list[int]:
    """Of parts that read the right state: what they read, and what they made of it."""
    rows = outcome.rows
    ends = pairwise([*rows.state_rows, rows.num_state_rows])
    return [row for wrong, (first, end) in zip(outcome.state_wrong.tolist(), ends, strict=True) if not wrong for row in range(first, end)]


def _far(found: Tensor, wanted: Tensor, relative: float = TOLERANCE) -> list[int]:
    """Rows further apart than that, or whose NaN are elsewhere: of poison and of what was never written."""
    found, wanted = found.double(), wanted.double()
    elsewhere = (found.isnan() != wanted.isnan()).any(1)
    found, wanted = found.nan_to_num(), wanted.nan_to_num()
    is_far = (found - wanted).norm(dim=1) > relative * wanted.norm(dim=1)
    return (elsewhere | is_far).nonzero().flatten().tolist()  # type: ignore[no-any-return]


def rows_garbled(outcome: Outcome) -> int:
    """As `Counts.rows_garbled` counts: a wrong state garbles each of its part's queries."""
    rows = outcome.rows
    queries = torch.tensor([end - first - 1 for first, end in pairwise([*rows.state_rows, rows.num_state_rows])], dtype=torch.int64)
    return int((outcome.wrong != 0).sum()) + int(queries[outcome.state_wrong != 0].sum())


def stores_wrong(outcome: Outcome) -> int:
    """STOREs that brought something else."""
    return int(((outcome.store_wrong != 0) | (outcome.store_differing != 0)).sum())
