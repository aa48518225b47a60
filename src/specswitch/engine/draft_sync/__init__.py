"""Keeps the draft model's KV cache fit for use while the target decodes alone.

The draft's KV at position p is a function of the target's hidden states at p and of the token that
followed. A target-only step leaves that slot empty. ``gap`` counts the empty slots of a request,
``ring`` keeps what is needed to fill them, ``extend`` fills them, and ``sync`` decides when.
"""
