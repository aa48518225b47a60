"""Load-aware speculative decoding for the SGLang inference server."""

__version__ = "0.1.0"
