"""vLLM V1, as installed, behind the engine protocol. No file of vLLM is changed, and vLLM is imported only when an engine is built."""
