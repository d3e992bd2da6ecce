"""Compiles kernels ahead of time, for a device that is not here: a script, since the process must not have Triton's interpreter on.

Prints a JSON object: for each variant and architecture how large the binary is, and what of its assembly a test asks for. The interpreter
accepts what the compiler refuses; a refusal ends the script with the compiler's message.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from settled.reference.device.cuda.variants import Variant, attention_variant, copy_variant, variants_for


def every_variant() -> dict[str, Variant]:
    """What differential runs launch, and what bandwidth is measured with."""
    launched = variants_for(16)
    return {
        **{name: getattr(launched, name) for name in launched.__dataclass_fields__},
        "attention, bfloat16": attention_variant(128, heads=8, numbers="bf16", tile=64, is_checked=False),
        "attention, unchecked and gated": attention_variant(16, is_checked=False, is_gated=True),
        "copy, bfloat16": copy_variant(1024, 1024, is_tagged=False, numbers="bf16"),
    }


def compiled(variant: Variant, architecture: int) -> Any:
    """As a launch would have it compiled: the same types, constants and alignment. Raises what the compiler raises."""
    signature = variant.signature()
    names = list(signature)
    source = ASTSource(
        fn=variant.kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if variant.is_aligned(name)},
    )
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=variant.options())


def told(variant: Variant, architecture: int) -> dict[str, object]:
    """`looks`: loads that wait for a gate; `tells`: stores that the host sees at once; `back_edges`: branches to a label that stands above
    them; `wide`: accesses of 16 bytes.
    """
    binary = compiled(variant, architecture)
    lines = binary.asm["ptx"].splitlines()
    labels = {line.split(":")[0].strip(): at for at, line in enumerate(lines) if line.strip().startswith("$L") and ":" in line}
    jumps = [(at, line.replace(";", " ").split()[-1]) for at, line in enumerate(lines) if "bra" in line.split("//")[0]]
    return {
        "cubin": len(binary.asm["cubin"]),
        "binary": sha256(binary.asm["cubin"]).hexdigest(),
        "is_elf": binary.asm["cubin"][:4] == b"\x7fELF",
        "target": next(line.split()[1] for line in lines if line.startswith(".target")).rstrip(","),
        "looks": sum("ld.volatile.global" in line for line in lines),
        "tells": sum("st.global.wt" in line for line in lines),
        "waits": sum(
            any("ld.volatile.global" in line for line in lines[labels[label] : at])
            for at, label in jumps
            if label in labels and labels[label] < at
        ),
        "back_edges": sum(label in labels and labels[label] < at for at, label in jumps),
        "wide": sum(".v4.b32" in line for line in lines),
        "warps": variant.num_warps,
    }


if __name__ == "__main__":
    asked = [int(each) for each in sys.argv[1:]]
    made = {f"{name} sm_{at}": told(variant, at) for name, variant in every_variant().items() for at in asked}
    print(json.dumps({"triton": triton.__version__, "variants": made}))
