"""A trace whose every text tries to become something else than text."""

from __future__ import annotations

from settled.model import events as ev
from settled.model.specs import SlidingWindowSpec

MARKUP = "</script><img src=x onerror=\"document.title='broken'\">&amp;'\"`${1}<!--"
CONTROL = "a\x1b[31m\u2028\u202e]]>"


def hostile_trace() -> list[tuple[int, ev.Event]]:
    """`settled refute optimistic`'s shortest trace, with names from the outside."""
    part = ev.ScheduledRequest(request=MARKUP, start=0, tokens=5, drafts=0, new_blocks=((1, 2),), resumed=False, counters=(5, 5, 0))
    events: list[ev.Event] = [
        ev.Config(
            schema=1,
            engine=f"engine {MARKUP}{CONTROL}",
            num_blocks=16,
            max_in_flight_steps=2,
            max_batched_tokens=5,
            num_draft_tokens=0,
            prefix_caching=True,
            kv_consumer=True,
            groups=(SlidingWindowSpec(block_size=4, window=2),),
        ),
        ev.Add(request=MARKUP, prompt_tokens=5),
        ev.Add(request=CONTROL, prompt_tokens=5),
        ev.Allocate(request=MARKUP, group=0, first_index=0, blocks=(1, 2)),
        ev.Schedule(step=1, requests=(part,)),
        ev.Release(request=MARKUP, group=0, indices=(0,), blocks=(1,), cause="window", freed=(1,)),
        ev.Hold(holder=MARKUP + CONTROL, kind="pin", blocks=(2,)),
        ev.Store(job=MARKUP, request=MARKUP, blocks=((2,),)),
        ev.Cache(entries=(ev.CacheEntry(block=2, group=0, hash=MARKUP, request=MARKUP, start=0, end=4),)),
        ev.End(idle=False),
    ]
    return list(enumerate(events, start=1))
