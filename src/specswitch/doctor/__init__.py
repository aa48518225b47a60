"""Says, before a server is started, whether it would start and what it would be.

Reads no weights and opens no port. What needs the engine is in `specswitch.doctor.engine_checks`;
the rest works where neither SGLang nor a GPU is.
"""
