"""Random runs of the reference under the monitor: strategies and a state machine for Hypothesis, campaigns for volume.

`strategies.py` and `machine.py` are for your own tests; they need `hypothesis`.
"""
