"""Op logs on a CUDA device: Triton kernels, real streams, directed orders. Torch and Triton are imported here and nowhere above."""
