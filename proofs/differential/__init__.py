"""The reference against real KV buffers: workloads run, lowered, searched for races, and replayed in several orders."""
