"""Random workloads on an engine, whichever it is: what is violated, made small and kept.

All but the report works without z3, rich or click, so that it runs in the environment of an engine's release.
"""
