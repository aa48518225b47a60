"""What a server did over time, from an event log or from a running server, and its picture.

The demo's report, `specswitch plot` and `specswitch watch` share it, so that a picture means the
same wherever it comes from. Imports neither torch nor sglang.
"""
