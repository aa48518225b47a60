"""Everything that imports SGLang. ``control/`` and ``config.py`` never import from here."""
