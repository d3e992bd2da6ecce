"""The spin kernels in Triton. `words` and `bounds` lie in pinned host memory: Triton asks the driver for the device's address of it.

A volatile load is PTX's `ld.volatile`, which is read anew each time, as a relaxed load of the whole system is; `.wt` writes through to
system memory. Atomics are avoided: over PCIe they need not be atomic to the host. A kernel begins when all before it on its stream has
ended and can be seen by the whole device, so that the post needs no fence of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["index", "value", "looks"])
def wait_kernel(words, index, value, bounds, looks):  # type: ignore[no-untyped-def]
    """Differences are cyclic, as the driver's are."""
    word = tl.load(words + index, volatile=True)
    left = looks
    while (word - value < 0) & (left > 0):
        word = tl.load(words + index, volatile=True)
        left -= 1
    if word - value < 0:
        tl.store(bounds + index, value, cache_modifier=".wt")


@triton.jit(do_not_specialize=["index", "value"])
def post_kernel(words, index, value):  # type: ignore[no-untyped-def]
    tl.store(words + index, value, cache_modifier=".wt")
