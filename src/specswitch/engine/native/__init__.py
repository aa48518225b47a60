"""specswitch on an engine with the native patch (``patches/``): the same functions, no hooks.

The engine asks ``plugin`` where there is no worker yet, and the worker itself through
``callbacks``.
"""
