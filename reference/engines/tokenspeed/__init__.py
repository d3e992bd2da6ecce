"""TokenSpeed's C++ scheduler behind the engine protocol."""

from settled.reference.engines.tokenspeed.adapter import TokenSpeedFactory

__all__ = ["TokenSpeedFactory"]
