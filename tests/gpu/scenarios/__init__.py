"""Servers for the GPU tests, each in a process of its own.

An engine cannot be torn down, a process that uses CUDA cannot be forked, and an import of the
engine takes long. So the servers that the selected tests need are started side by side (`launch`),
each serves all its request sets one after the other with a fresh controller for each (`serve`), and
the tests look at what they wrote. `plan` lists the servers and what they serve.
"""
