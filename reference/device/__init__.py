"""What the reference's steps, transfers and frees do to real KV buffers: the op log and its consumers."""
