"""What vLLM loads in each of its processes (entry point `vllm.general_plugins`): records engine cores where SETTLED_TRACE names a file.

It stands here because it joins what only this layer may import together: the reference's recorder and the model's encoding.
"""

from __future__ import annotations

import os

TRACE = "SETTLED_TRACE"


def register() -> None:
    """Does nothing, and imports nothing, unless the variable is set. Never raises: vLLM would not start."""
    trace = os.environ.get(TRACE)
    if not trace:
        return
    import logging

    try:
        from settled.model.trace_encoding import encode_line
        from settled.reference.engines.vllm.live import install
        from settled.reference.engines.vllm.live_settings import settings_from

        install(settings_from(trace, os.environ), encode_line)
    except Exception:
        logging.getLogger("vllm.settled").exception("settled: nothing is recorded, the server goes on")
