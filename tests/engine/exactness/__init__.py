"""The feature matrix: is an answer the same whatever the mode, option by option?

`matrix` serves requests under every pattern of modes and compares what comes back. `recorder` holds
each verdict against the stored one, and `document` writes docs/exactness.md from what is stored:

    SPECSWITCH_RECORD=1 pytest tests/engine/exactness     # measure anew, store the verdicts
    python -m tests.engine.exactness.document             # write the page

Rows of the page are in `rows_requests` and `rows_serving`.
"""
