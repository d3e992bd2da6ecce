"""A build backend that builds nothing: it tells pip the metadata that the source distribution already carries.

pip asks for metadata even of what it only downloads. The project's own set-up would import torch for it, and look for compilers; none of
its code runs here.
"""

from __future__ import annotations

from email.parser import HeaderParser
from pathlib import Path


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: object = None) -> str:
    """pip's hook, called in the unpacked source distribution."""
    text = Path("PKG-INFO").read_text(encoding="utf-8")
    headers = HeaderParser().parsestr(text)
    folder = Path(metadata_directory, f"{headers['Name'].replace('-', '_')}-{headers['Version']}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(text, encoding="utf-8")
    return folder.name


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    """pip's hook; a download never calls it."""
    raise NotImplementedError("this backend only tells metadata")
