"""Benchmarks of specswitch against the engine without it: `python -m benchmarks --help`.

Every command starts real servers, one after the other on the same machine, and
sends each of them the same prompts. README.md in this folder says how to read
the result files.
"""
