"""An interrupt waits until no foreign frame is on the stack; then it is raised, once, in our own code."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import signal, time
from settled.proofs.cli.interrupt import interruptible
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in a script's background does not begin with
reached = []
foreign = {"__name__": "MODULE.z3core", "signal": signal, "reached": reached}
exec("def call():\\n  signal.raise_signal(signal.SIGINT)\\n  reached.append('the foreign call ended')", foreign)
try:
    with interruptible():
        foreign["call"]()
        time.sleep(5)
        reached.append("never interrupted")
except KeyboardInterrupt:
    reached.append("interrupted")
print(reached, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def printed(module: str) -> str:
    """What the script prints when the frame that is interrupted belongs to a module. A process of its own: signals need the main thread."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("MODULE", module)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_an_interrupt_waits_for_the_solver() -> None:
    assert printed("z3") == "['the foreign call ended', 'interrupted'] True"


def test_in_our_own_code_it_does_not_wait() -> None:
    assert printed("settled") == "['interrupted'] True"
