"""What bandwidth is measured with compiles for devices that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = """
import json
from compile_ahead import told
from figures import FULL
from paged_memory import attention_variants, block_copy_variant
variants = attention_variants(FULL.shape, FULL.tries) | {"copy": block_copy_variant(FULL.shape)}
print(json.dumps({name: told(variant, 90) for name, variant in variants.items()}))
"""


@pytest.mark.slow
def test_every_variant_that_is_measured_compiles(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1] / "gpu"), environment.get("PYTHONPATH", "")])
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert len({variant["binary"] for variant in told.values()}) == len(told) == 5, "two tries are the same program"
    for name, variant in told.items():
        assert variant["is_elf"], name
        assert variant["wide"] >= 4, f"{name}: memory is not moved 16 bytes at a time"
