"""Real buffers on a CUDA device. Only this package imports triton; nothing here is imported where no buffers are asked for."""
