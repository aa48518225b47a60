"""The event log: what happened, as JSON lines that outlive the server.

Written by rank 0 of each replica, from the scheduler's thread. Python's own rotating handler does
the files. Wall time enters here and nowhere before: no decision can depend on it.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import datetime, timezone
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, NoReturn

from specswitch import __version__
from specswitch.config import EventLogConfig
from specswitch.control.decision import Switch
from specswitch.engine.stats import describe_switch


def open_event_log(worker: Any, replica: int | None) -> EventLog | None:
    """The event log of a switching worker; None where it writes none.

    The log listens to the worker's controller. A file that cannot be written to is no reason not
    to serve: that is counted as an error of telemetry, logged once, and tried again with the next
    line.

    Args:
        replica: number of the data-parallel replica, which gets a file of its own; None where
            there is only one.
    """
    config = worker.steering.config.event_log
    if config.path is None or worker.target_worker.tp_rank != 0:
        return None
    log = EventLog(worker, config, replica_path(config.path, replica))
    worker.controller.add_listener(log.on_switch)
    log.begin()
    return log


def replica_path(path: str, replica: int | None) -> Path:
    """``events.jsonl`` becomes ``events.dp1.jsonl`` for replica 1: two processes must not rotate
    one file."""
    file = Path(path)
    return file if replica is None else file.with_suffix(f".dp{replica}{file.suffix}")


class EventLog:
    """Writes one JSON object a line, each with ``event`` and ``time`` (ISO 8601, UTC).

    - ``start``: ``version`` and ``config`` in effect.
    - ``switch``: ``step``, ``from``, ``to``, ``reason``, ``waiting``, ``running``, ``kv_use``.
    - ``sample``: ``step``, ``mode``, ``reason``, ``waiting``, ``running``, ``kv_use``,
      ``acceptance_length`` (null: not known yet), and ``steps`` and ``tokens`` since start-up, by
      mode. The last one before an idle time has ``waiting`` and ``running`` 0.

    Args:
        worker: the switching worker.
        config: ``Config.event_log``.
        path: the file.
    """

    def __init__(self, worker: Any, config: EventLogConfig, path: Path) -> None:
        self._worker = worker
        self._every = config.sample_steps
        self._file = _File(path, config)
        self._sampled: int | None = None
        self._idle = True

    def begin(self) -> None:
        """The server is about to serve."""
        config = self._worker.steering.config.model_dump(mode="json")
        self._write("start", {"version": __version__, "config": config})

    def on_switch(self, switch: Switch) -> None:
        """Listener of the controller."""
        self._write("switch", describe_switch(switch))

    def after_step(self) -> None:
        """A decode step has been counted: take a sample if one is due.

        The first step after an idle time is always one, so that the idle time is not taken for
        part of the busy one.
        """
        if not self._every:
            return
        step = self._worker.controller.last.step
        if self._idle or self._sampled is None or step - self._sampled >= self._every:
            # First: a file that cannot be written to is tried again when the next is due.
            self._idle, self._sampled = False, step
            self._sample(step)

    def idle(self) -> None:
        """Nothing runs or waits; called again and again while that is so."""
        if self._every and not self._idle:
            self._idle = True
            self._sample(self._worker.controller.last.step, waiting=0, running=0)

    def _sample(self, step: int, **instead: int) -> None:
        worker = self._worker
        last, load, stats = worker.controller.last, worker.load, worker.stats
        self._write(
            "sample",
            {
                "step": step,
                "mode": last.mode,
                "reason": last.reason,
                "waiting": load.waiting,
                "running": load.running,
                "kv_use": load.kv_use,
                "acceptance_length": stats.acceptance_length,
                "steps": stats.steps,
                "tokens": stats.tokens,
                **instead,
            },
        )

    def _write(self, event: str, values: dict[str, Any]) -> None:
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"event": event, "time": time, **values})
        self._worker.containment.run(self._file.write, line)


class _File(RotatingFileHandler):
    """A rotating file whose failures reach the caller, who counts them.

    It is opened with the first line, and after a failure with the next: a directory that is
    cleared or a disk that gets room is used again without a restart.
    """

    def __init__(self, path: Path, config: EventLogConfig) -> None:
        super().__init__(
            path,
            maxBytes=config.max_bytes,
            backupCount=config.backups,
            encoding="utf-8",
            delay=True,
        )

    def write(self, line: str) -> None:
        """Append a line, rotating first when it is due.

        Raises:
            OSError: the file cannot be written to.
        """
        self.emit(logging.LogRecord(__name__, logging.INFO, "", 0, line, None, None))

    def handleError(self, record: logging.LogRecord) -> NoReturn:
        """Called by ``emit`` within its ``except``: let the exception through."""
        stream, self.stream = self.stream, None
        if stream is not None:
            # Closing writes what could not be written before, so it fails the same way.
            with suppress(OSError):
                stream.close()
        raise
