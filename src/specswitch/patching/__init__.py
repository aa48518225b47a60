"""Puts the native patch onto an installed SGLang, and takes it off again.

The patch gives the engine itself the points that specswitch otherwise hooks; ``patches/README.md``
says what for. An installation is changed as a whole or not at all, and only if each file is the one
that was released, so what is served is either the released engine or exactly the reviewed patch.
"""
