"""Engines behind one protocol: the reference, and unmodified schedulers of real releases."""
