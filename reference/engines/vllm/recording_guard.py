"""A recorder's own mistakes never reach the server that it records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from settled.reference.engines.vllm.recording_live import Patches


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
            calls: list[_Call] = []  # under way, the innermost last

            def observed(*args: Any, **kwargs: Any) -> Any:
                call = calls[-1]
                call.was_made = True
                try:
                    call.result = original(*args, **kwargs)
                except BaseException as error:
                    call.error = error
                    raise
                return call.result

            recording = make(observed)

            def guarded(*args: Any, **kwargs: Any) -> Any:
                if self.has_failed:
                    return original(*args, **kwargs)
                call = _Call()
                calls.append(call)
                try:
                    return recording(*args, **kwargs)
                except BaseException as error:
                    if not isinstance(error, Exception) or error is call.error:
                        self.is_cut = True
                        raise
                    self.fail(error)
                finally:
                    calls.pop()
                if call.error is not None:
                    raise call.error
                return call.result if call.was_made else original(*args, **kwargs)

            return guarded

        return make_guarded


class _Call:
    """What became of the engine's method in one call of its wrapper."""

    __slots__ = ("error", "result", "was_made")

    def __init__(self) -> None:
        self.was_made = False
        self.result: Any = None
        self.error: BaseException | None = None


class GuardedPatches(Patches):
    """Replaces methods by guarded wrappers."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def wrap(self, instance: Any, name: str, make: Callable[[Any], Any]) -> None:
        super().wrap(instance, name, self._guard.around(make))
