"""Says in one line why this interpreter or machine cannot hold the environment.

`make` runs it before anything is downloaded. It must itself run on old
interpreters, so it uses no syntax newer than Python 3.6.
"""

import platform
import sys


def problem():
    """Return what is wrong and what to change, or None."""
    if sys.platform != "linux":
        return "SGLang runs on Linux only, this is {}".format(sys.platform)
    found = sys.version_info[:2]
    if not (3, 10) <= found <= (3, 12):
        return (
            "Python {}.{} is not supported; give 3.10, 3.11 or 3.12: make PYTHON=python3.12"
        ).format(*found)
    if platform.machine() not in ("x86_64", "aarch64"):
        return "PyTorch has no build for {}".format(platform.machine())
    try:
        import ensurepip
        import venv
    except ImportError as error:
        return "this Python has no {}; on Debian and Ubuntu: apt install python3-venv".format(
            error.name
        )
    del ensurepip, venv
    return None


if __name__ == "__main__":
    reason = problem()
    if reason is not None:
        sys.exit("specswitch: " + reason)
