"""A failure's traceback leads from the test through the engine to where it lost the block; the recorder's wrappers between say nothing."""

from __future__ import annotations

from itertools import pairwise

OWN = (
    "settled.proofs.pytesting.",
    "settled.reference.recorder",
    "settled.reference.engines.vllm.recording",
    "settled.reference.engines.vllm.observed",
)


def drop_own_frames(error: BaseException) -> None:
    """Takes the recorder's frames out of the traceback, but for the last, which raised it."""
    frames = []
    frame = error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    kept = [each for each in frames[:-1] if not each.tb_frame.f_globals.get("__name__", "").startswith(OWN)] + frames[-1:]
    for each, following in pairwise(kept):
        each.tb_next = following
    error.__traceback__ = kept[0]
