"""A KV-cache manager and scheduler as V1-style engines have them, written to be read. Every choice that a discipline names is a parameter.

In which order to read:

1. Blocks: `free_queue.py` (a block, and the order in which free ones are reused), `pool.py` (references, hashes, the null block),
   `prefix_cache.py` (what a hash covers, how a cached prefix is found).
2. Tables: `managers/base.py` (a group's tables: prune, extend, register, free), then a file per kind beside it. `full.py` and
   `sliding_window.py` are the shortest; `sink_window.py` and `rswa.py` leave a gap; `mamba.py` keeps states instead of keys;
   `custom.py` asks a mask from `masks.py`.
3. Groups over one pool: `kv_cache_manager.py` (`allocate_slots`, two phases: hits of all groups, then fresh blocks), `admission.py` (caps,
   the gate, start-up sizing), `preparation.py` (zeroes and copies before a step).
4. Steps: `request.py` (counters), `scheduler.py` (schedule, update_from_output, preempt, abort), `outputs.py` (what an output changes),
   `fence.py` (frees that wait), the connector's files.
5. Around it: `config.py`, `engine.py` (a scheduler, a pipeline and a fake model), `recorder.py` (events), `workload.py` (random runs),
   `plan.py`, `trial.py` and `replay.py` (scripted ones).
"""
