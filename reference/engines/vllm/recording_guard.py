"""A recorder's own mistakes never reach the server that it records."""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb
from types import CodeType
from typing import Any

from settled.reference.engines.vllm.recording_live import Patches

_NONE = object()


class Guard:
    """Wraps wrappers. The recorder's error in one of them is told once, to `on_failure`; from then on all of them do nothing.

    What the engine's method returned or raised is what the caller gets, whatever the recorder did around it. After an exception of the
    engine itself, or a signal's, the recorder may have missed a part of what happened: `is_cut`.
    """

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self.has_failed = False
        self.is_cut = False

    def fail(self, error: Exception) -> None:
        """Ends the recording."""
        if not self.has_failed:
            self.has_failed = True
            self._on_failure(error)

    def around(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A maker of wrappers like those of `make`, each of which calls the engine's method once at most."""

        def make_guarded(original: Any) -> Any:
            results: list[Any] = []  # of the calls under way, the innermost last

            def observed(*args: Any, **kwargs: Any) -> Any:
                results[-1] = result = original(*args, **kwargs)
                return result

            recording = make(observed)

            def guarded(*args: Any, **kwargs: Any) -> Any:
                if self.has_failed:
                    return original(*args, **kwargs)
                results.append(_NONE)
                try:
                    return recording(*args, **kwargs)
                except BaseException as error:
                    of_engine = _raised_within(observed.__code__, results, error)
                    if of_engine is error or not isinstance(error, Exception):
                        self.is_cut = True
                        raise
                    self.fail(error)
                    result = results[-1]
                finally:
                    results.pop()
                if of_engine is not None:
                    raise of_engine
                return original(*args, **kwargs) if result is _NONE else result

            return guarded

        return make_guarded


def _raised_within(code: CodeType, results: list[Any], error: BaseException | None) -> BaseException | None:
    """The error that passed through this wrapper's `observed`: this one, or one during whose handling it was raised.

    Asked of the traceback, so that it costs nothing where there is no error.
    """
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            if frame.f_code is code and frame.f_locals["results"] is results:
                return error
        error = error.__context__
    return None


class GuardedPatches(Patches):
    """Replaces methods by guarded wrappers."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def wrap(self, instance: Any, name: str, make: Callable[[Any], Any]) -> None:
        super().wrap(instance, name, self._guard.around(make))
