"""States the hashes of the files that a folder of patches touches, before and after.

    python scripts/patch_manifest.py patches/sglang-VERSION SITE_PACKAGES

SITE_PACKAGES holds that release as pip installed it. Writes `manifest.json` beside the patches.
"""

from __future__ import annotations

import sys
from pathlib import Path

from specswitch.patching.patch_set import write_manifest

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_manifest(Path(sys.argv[1]), Path(sys.argv[2]))
