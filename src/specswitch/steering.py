"""What an operator may change while the server runs, and how.

A command is checked as a whole before any of it takes effect, so a bad value changes nothing.
Whatever runs it on several ranks gets the same command between the same two steps, and nothing
here depends on anything else. Imports neither torch nor sglang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as shorten

from specswitch.config import Config, ConfigError, update
from specswitch.config_sources import leaves
from specswitch.control import Controller, Mode, reconfigure

#: Word of a command for "the policy decides".
AUTO = "auto"
MODES = (AUTO, *(mode.value for mode in Mode))

# The rest has shaped memory or graphs at start-up.
_CHANGEABLE = ("policy", "guard", "max_speculative_batch", "safe_mode")
_KNOWN = frozenset(Config.model_fields)
_KEYS = ("mode", "set", "reset")


@dataclass(frozen=True)
class Command:
    """One word of the operator.

    Attributes:
        mode: `auto`, or the mode to override the policy with; None leaves that as it is.
        values: configuration values by dotted key, as in the YAML file.
        reset: first go back to the values of the start-up, and to `auto`.

    Raises:
        ConfigError: unknown mode.
    """

    mode: str | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    reset: bool = False

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(f"mode: expected {', '.join(MODES)}, got {shorten(self.mode)}")

    @classmethod
    def parse(cls, plain: object) -> Command:
        """From plain values: `{"mode": ..., "set": {KEY: VALUE}, "reset": true}`, each optional.

        Raises:
            ConfigError: not such a mapping, or an empty one.
        """
        if not isinstance(plain, Mapping) or not plain or set(plain) - set(_KEYS):
            raise ConfigError(f"expected a mapping with one or more of {', '.join(_KEYS)}")
        values, reset = plain.get("set", {}), plain.get("reset", False)
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise ConfigError("set: expected a mapping of keys and values")
        if not isinstance(reset, bool):
            raise ConfigError(f"reset: expected true or false, got {shorten(reset)}")
        return cls(plain.get("mode"), values, reset)

    def plain(self) -> dict[str, object]:
        """What `parse` takes."""
        parts = {"mode": self.mode, "set": dict(self.values), "reset": self.reset}
        return {key: value for key, value in parts.items() if value}


class Steering:
    """Applies commands to one controller.

    Args:
        controller: the controller that `startup` describes.
        startup: configuration that the server was started with.

    Attributes:
        config: configuration in effect.
        numbers: its values that are numbers, by dotted key, without those of the event log,
            which decide nothing.
        accepted, refused: commands so far.
    """

    def __init__(self, controller: Controller, startup: Config) -> None:
        self._controller = controller
        self._startup = startup
        self._take(startup)
        self.accepted = 0
        self.refused = 0

    def apply(self, plain: object) -> list[str]:
        """Carry out a command, from the next step on.

        Args:
            plain: see `Command.parse`.

        Returns:
            What has changed, one line each; empty when everything was so already.

        Raises:
            ConfigError: the command is refused, and nothing has changed.
        """
        try:
            command = Command.parse(plain)
            config = self._startup if command.reset else self.config
            if command.values:
                config = checked_update(config, command.values, self._startup)
        except ConfigError:
            self.refused += 1
            raise
        self.accepted += 1
        return [*self._configure(config, command), *self._override(command)]

    def differences(self) -> dict[str, list[object]]:
        """Values that are not those of the start-up: [start-up, now] by dotted key."""
        return _differences(self._startup, self.config)

    def _configure(self, config: Config, command: Command) -> list[str]:
        failed = self._controller.failure is not None
        changes = _differences(self.config, config)
        if not changes and not (failed and (command.reset or command.values)):
            return []
        reconfigure(self._controller, config)
        self._take(config)
        lines = [describe_change(key, before, now) for key, (before, now) in changes.items()]
        return [*lines, "safe mode left"] if failed else lines

    def _take(self, config: Config) -> None:
        self.config = config
        self.numbers: dict[str, float] = {
            key: value
            for key, value in _flat(config).items()
            if isinstance(value, (int, float)) and not key.startswith("event_log.")
        }

    def _override(self, command: Command) -> list[str]:
        said = command.mode or (AUTO if command.reset else None)
        if said is None:
            return []
        mode = None if said == AUTO else Mode(said)
        before = self._controller.overridden
        if mode is before:
            return []
        self._controller.override(mode)
        return [f"override: {before or AUTO} -> {said}"]


def describe_change(key: str, before: object, now: object) -> str:
    """One line for a changed value, in the words of the YAML file."""
    return f"{key}: {_written(before)} -> {_written(now)}"


def _written(value: object) -> str:
    return "null" if value is None else str(value)


def checked_update(config: Config, values: Mapping[str, object], startup: Config) -> Config:
    """`config` with `values` put over it, if a running server may change so.

    Args:
        config: values in effect.
        values: plain values by dotted key, no mappings.
        startup: values that the server was started with.

    Raises:
        ConfigError: a value breaks a rule of the configuration, or can only be set at start-up.
    """
    fixed = [
        f"{key}: fixed at start-up; change it in the file and restart the server"
        for key in values
        if (section := key.split(".")[0]) in _KNOWN and section not in _CHANGEABLE
    ]
    if fixed:
        raise ConfigError(*fixed)
    # A mapping would put the keys that it leaves out back to their defaults.
    nested = [key for key, value in values.items() if isinstance(value, Mapping)]
    if nested:
        raise ConfigError(
            *(f"{key}: give each key by itself, e.g. policy.waiting.enter=5" for key in nested)
        )
    if values.get("policy.kind", startup.policy.kind) != startup.policy.kind:
        raise ConfigError(
            f"policy.kind: {startup.policy.kind} is fixed at start-up; choose a mode, or change it "
            "in the file and restart the server"
        )
    changed = update(config, values)
    if changed.max_speculative_batch > startup.max_speculative_batch:
        raise ConfigError(
            f"max_speculative_batch: {changed.max_speculative_batch} is above "
            f"{startup.max_speculative_batch}, the value at start-up, up to which speculation was "
            f"prepared (CUDA graphs); set {startup.max_speculative_batch} or less, or raise it in "
            "the file and restart the server"
        )
    return changed


def _flat(config: Config) -> dict[str, object]:
    return {".".join(path): value for path, value in leaves(config.model_dump(mode="json"))}


def _differences(before: Config, now: Config) -> dict[str, list[object]]:
    old, new = _flat(before), _flat(now)
    return {
        key: [old.get(key), new.get(key)]
        for key in [*new, *(old.keys() - new.keys())]
        if old.get(key) != new.get(key)
    }
