"""What the documents show of real releases is what the commands print: console blocks that hunt in installed ones."""

from __future__ import annotations

import pytest
from documents import all_blocks, is_current, needs_engines, printed_by

BLOCKS = [block for block in all_blocks() if needs_engines(block.commands)]


@pytest.mark.engines
@pytest.mark.parametrize("commands", list(dict.fromkeys(block.commands for block in BLOCKS)), ids="; ".join)
def test_a_document_shows_what_is_printed(commands: tuple[str, ...]) -> None:
    printed = printed_by(commands)
    for block in BLOCKS:
        if block.commands == commands:
            for shown, text in zip(block.shown, printed, strict=True):
                assert is_current(shown, text), f"{block.where}: {shown.command}\n{text}"
