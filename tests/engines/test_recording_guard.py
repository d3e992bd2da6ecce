"""Whatever a recorder does around an engine's method, the caller gets what the method returned or raised."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from settled.reference.engines.vllm.recording_guard import Guard

Method = Callable[[int], int]


class Engine:
    """Doubles, and counts the calls; 13 is more than it takes."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def double(self, number: int) -> int:
        self.calls.append(number)
        if number == 13:
            raise LookupError("thirteen")
        return 2 * number


class Failures(list[Exception]):
    def texts(self) -> list[str]:
        return [str(failure) for failure in self]


def before(original: Method) -> Method:
    def wrapped(number: int) -> int:
        raise RuntimeError("before")

    return wrapped


def after(original: Method) -> Method:
    def wrapped(number: int) -> int:
        original(number)
        raise RuntimeError("after")

    return wrapped


def in_the_end(original: Method) -> Method:
    def wrapped(number: int) -> int:
        try:
            return original(number)
        finally:
            raise RuntimeError("in the end")

    return wrapped


def rightly(original: Method) -> Method:
    def wrapped(number: int) -> int:
        return original(number)

    return wrapped


def by_another_signature(original: Method) -> Callable[[], int]:
    def wrapped() -> int:
        return original(0)

    return wrapped


@pytest.mark.parametrize("make", [before, after, in_the_end, by_another_signature])
def test_the_result_is_the_engines_and_the_error_is_told_once(make: Callable[[Method], Method]) -> None:
    engine, failures = Engine(), Failures()
    guard = Guard(failures.append)
    double = guard.around(make)(engine.double)
    assert [double(2), double(3)] == [4, 6]
    assert engine.calls == [2, 3]
    assert len(failures) == 1
    assert guard.has_failed


@pytest.mark.parametrize("make", [rightly, in_the_end])
def test_an_error_of_the_engine_goes_through_as_it_is(make: Callable[[Method], Method]) -> None:
    engine, failures = Engine(), Failures()
    guard = Guard(failures.append)
    with pytest.raises(LookupError, match="thirteen"):
        guard.around(make)(engine.double)(13)
    assert engine.calls == [13]
    assert guard.is_cut == (make is rightly)
    assert failures.texts() == ([] if make is rightly else ["in the end"])


def test_a_signal_goes_through_and_the_recording_is_cut() -> None:
    def interrupted(original: Method) -> Method:
        def wrapped(number: int) -> int:
            original(number)
            raise SystemExit

        return wrapped

    guard = Guard(Failures().append)
    with pytest.raises(SystemExit):
        guard.around(interrupted)(Engine().double)(2)
    assert guard.is_cut
    assert not guard.has_failed


def test_calls_within_calls_are_kept_apart() -> None:
    """The outer call's result is known to be missing, though an inner one returned."""
    failures = Failures()
    guard = Guard(failures.append)
    seen: list[int] = []

    def engine(number: int) -> int:
        seen.append(number)
        return number if number == 0 else 10 * number + double(number - 1)

    def make(original: Method) -> Method:
        def wrapped(number: int) -> int:
            result = original(number)
            if number == 1:
                raise RuntimeError("after the inner one")
            return result

        return wrapped

    double: Method = guard.around(make)(engine)
    assert double(2) == 30
    assert seen == [2, 1, 0]
    assert failures.texts() == ["after the inner one"]
