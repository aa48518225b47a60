"""Why an installation is left as it is."""

from __future__ import annotations


class PatchRefusal(Exception):
    """Nothing was changed. The message is one line and says what to do."""
