"""Gates without the driver's help: kernels of one thread that look at a word of pinned memory, and that write one."""

from __future__ import annotations

from torch import Tensor


class SpinKernels:
    """Launched on torch's current stream. Triton is imported where they are used."""

    def wait(self, words: Tensor, index: int, value: int, bounds: Tensor, looks: int) -> None:
        """What follows on the stream waits until `words[index]` is at least `value`, for a look and `looks` more at most: then
        `bounds[index]` is set to `value`, which the host has to look for."""
        from settled.reference.device.cuda.spin_kernels import wait_kernel

        wait_kernel[(1,)](words, index, value, bounds, looks, num_warps=1)

    def post(self, words: Tensor, index: int, value: int) -> None:
        """Writes `words[index]` when all before it on the stream has run."""
        from settled.reference.device.cuda.spin_kernels import post_kernel

        post_kernel[(1,)](words, index, value, num_warps=1)
