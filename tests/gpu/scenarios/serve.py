"""One server's process: serves every run of its plan and writes what happened as JSON.

    python -m scenarios.serve fa3-page1 --out FILE [--device cpu] [--rank 1 --port 29500]

The file holds {"worker", "overlap", "graphs", "seconds", "runs": {name: see `_serve`}}.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scenarios.plan import SERVERS, Run, Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scenarios.serve", description=__doc__)
    parser.add_argument("server", choices=sorted(SERVERS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", type=Path, help="directory of another pair of models")
    parser.add_argument("--rank", type=int, default=0, help="tensor-parallel rank")
    parser.add_argument("--port", type=int, help="port on which the ranks meet")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    started = time.perf_counter()
    server = SERVERS[options.server]
    driver = _start(server, options)
    report = {
        "worker": type(driver.worker).__name__,
        "overlap": driver.scheduler.enable_overlap,
        "seconds": {"start": round(time.perf_counter() - started, 1)},
    } | _serve_all(server, driver, options)
    report["seconds"]["all"] = round(time.perf_counter() - started, 1)
    options.out.write_text(json.dumps(report))


def _start(server: Server, options: argparse.Namespace) -> Any:
    if options.device == "cpu":
        import specswitch.cpu

        specswitch.cpu.install()
        import torch

        torch.set_num_threads(1)
    from harness import EngineDriver

    from scenarios.models import pair

    speculative = server.algorithm is not None
    return EngineDriver(
        server.algorithm,
        "specswitch" if speculative else None,
        server.config(server.runs[0].policy) if speculative else None,
        models=pair(options.models, server.tp),
        rank=options.rank,
        **server.server_args(options.device, options.port),
    )


def _serve_all(server: Server, driver: Any, options: argparse.Namespace) -> dict[str, Any]:
    from harness.invariants import Books

    from scenarios.record import Recorder
    from scenarios.requests import request_set, with_logprobs

    recorder = Recorder(driver) if server.algorithm is not None else None
    # Waits for the device at each pass, which debug mode does anyway.
    books = Books(driver.scheduler) if server.debug else None
    tokenizer = Path(driver.server_args.model_path)
    runs = {}
    for run in server.runs:
        requests = request_set(run.requests, tokenizer)
        if recorder is None:
            requests = with_logprobs(requests)
        runs[run.name] = _serve(server, run, driver, recorder, books, requests)
    graphs = driver.worker.snapshot()["graphs"] if recorder is not None else {}
    return {"graphs": graphs, "runs": runs}


def _serve(
    server: Server, run: Run, driver: Any, recorder: Any, books: Any, requests: list[Any]
) -> dict[str, Any]:
    """{"answers": results of the requests, "lost_slots": KV slots not given back, "notes": see
    `disturb`, "seconds"}, and with a specswitch worker what `Recorder.since` returns."""
    from scenarios.disturb import delayed, faults

    notes: dict[str, Any] = {}
    with ExitStack() as disturbances:
        if recorder is not None:
            recorder.begin(server.config(run.policy))
        if run.faults:
            disturbances.enter_context(faults(driver.worker, run.faults, notes))
        if run.delay:
            disturbances.enter_context(delayed(driver.worker, run.delay, notes))
        started = time.perf_counter()
        results = driver.generate(requests, books and (lambda _driver: books.check()))
        seconds = time.perf_counter() - started
    answers = [
        {
            "rid": result.rid,
            "output_ids": result.output_ids,
            "finish_reason": result.finish_reason,
            "logprobs": result.logprobs,
            "top_logprobs": result.top_logprobs,
            "cached_tokens": result.cached_tokens,
        }
        for result in results
    ]
    done = {
        "answers": answers,
        "lost_slots": driver.lost_slots,
        "notes": notes,
        "seconds": round(seconds, 2),
    }
    # No run finds what another one left in the radix cache.
    if not driver.scheduler.flush_cache():
        raise RuntimeError(f"the engine is not idle after the run {run.name}")
    return done if recorder is None else done | recorder.end()


if __name__ == "__main__":
    main()
