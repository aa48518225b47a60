"""The workers: decide, run the step of that mode, report.

``SwitchingWorker`` is mixed in front of the engine's two chain-speculation workers. It decides on
decode batches only: a prefill batch always goes to the engine's worker, which fills the draft's
KV for the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specswitch.control.controller import build_controller
from specswitch.control.decision import Decision, Mode
from specswitch.control.load import LoadSample
from specswitch.engine import compat, target_only
from specswitch.engine.containment import Containment
from specswitch.engine.debug import check_mirror, check_slots, debug_enabled
from specswitch.engine.draft_sync.sync import make_sync, needs_hidden
from specswitch.engine.errors import StartupRefusal
from specswitch.engine.exactness import InexactRequests, repair
from specswitch.engine.graphs import capture_target_only
from specswitch.engine.internal_state import describe_control
from specswitch.engine.native.callbacks import NativeCallbacks
from specswitch.engine.opt_out import OptOuts
from specswitch.engine.ranks import make_ranks
from specswitch.engine.settings import Settings
from specswitch.engine.startup import log_summary
from specswitch.engine.stats import StepStats
from specswitch.engine.step_timer import StepTimer
from specswitch.steering import Steering

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch, ScheduleBatch
    from sglang.srt.managers.utils import GenerationBatchResult

_release = compat.release()
_engine = _release.types()


class SwitchingWorker(NativeCallbacks):
    """Mixin for a speculative worker of the engine.

    Attributes:
        controller: decides the mode of each decode step.
        steering: what the operator may change at run time.
        stats: counters by mode.
        load: sample of the last decode step, None before the first.
        graphs: the target-only CUDA graphs.
        sync: keeps the draft's KV up to date.
        opt_outs: knows which requests opted out of speculation.
        inexact: knows which requests speculation would answer otherwise.
        ranks: compares decisions with the other tensor-parallel ranks.
        containment: runs what may fail without harm.

    Raises:
        StartupRefusal: the model cannot be served in both modes.
    """

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(server_args, *args, **kwargs)
        settings = Settings.of(server_args)
        assert settings is not None, "worker chosen without settings"
        runner = self.target_worker.model_runner
        if _release.is_recurrent(runner):
            raise StartupRefusal(
                "models with recurrent state (Mamba, gated delta net) are not supported: "
                "drop --speculative-worker specswitch"
            )
        self.controller = build_controller(settings.config)
        self.steering = Steering(self.controller, settings.config)
        self.containment = Containment()
        self.opt_outs = OptOuts()
        self.inexact = InexactRequests(
            settings.config.exactness, server_args, speak=self.target_worker.tp_rank == 0
        )
        repair()
        _release.waits.read_lengths_late()
        self.stats = StepStats()
        self.controller.add_listener(self.stats.count_switch)
        self._debug = debug_enabled()
        self.load: LoadSample | None = None
        self._decision: Decision | None = None
        self._capture_hidden = server_args.enable_return_hidden_states or needs_hidden(
            self, settings.config.draft_sync
        )
        self.graphs = capture_target_only(
            runner,
            settings.target_only_batch_sizes,
            capture_hidden=self._capture_hidden,
            debug=self._debug,
        )
        self.timer = StepTimer.from_environment(self.device, self.target_worker.tp_rank)
        self.sync = make_sync(self, settings.config.draft_sync)
        self.ranks = make_ranks(
            _release.tensor_parallel_ranks(runner),
            debug=self._debug,
            end_server=_release.end_server,
        )
        log_summary(self, settings, server_args)

    def begin_step(
        self, waiting: int, running: int, kv_use: float, opt_outs: int = 0, inexact: int = 0
    ) -> Mode:
        """Decide how to run the decode step that comes next; called by the scheduler hook.

        Args:
            waiting: requests in the waiting queue.
            running: requests in the decode batch.
            kv_use: fraction of the KV pool in use.
            opt_outs: requests in the decode batch that opted out of speculation.
            inexact: requests in the decode batch that speculation would answer otherwise.
        """
        step = 0 if self.load is None else self.load.step + 1
        self.load = LoadSample(step, waiting, running, kv_use, opt_outs, inexact)
        self._decision = self.controller.decide(self.load)
        self.ranks.note(self._decision, self.load)
        self.containment.run(self.stats.count_step, self._decision.mode)
        return self._decision.mode

    def forward_batch_generation(
        self, model_worker_batch: ModelWorkerBatch
    ) -> GenerationBatchResult:
        """Run one batch (engine: speculative/eagle_worker_v2.py:739)."""
        decision, self._decision = self._decision, None
        if decision is None:
            assert not _release.is_decode(model_worker_batch), "a decode step without begin_step"
            self.timer.interrupt()
            return super().forward_batch_generation(model_worker_batch)
        if self._debug:
            check_mirror(model_worker_batch)
            check_slots(
                model_worker_batch,
                self.req_to_token_pool.req_to_token,
                1 if decision.mode is Mode.TARGET_ONLY else self.speculative_num_draft_tokens,
            )
        with self.ranks, self.timer.measure(decision, model_worker_batch):
            if decision.mode is Mode.SPECULATE:
                self.sync.before_speculative(model_worker_batch)
                return super().forward_batch_generation(model_worker_batch)
            with self.graphs.swapped_in():
                result = target_only.run_step(
                    self.target_worker, model_worker_batch, capture_hidden=self._capture_hidden
                )
            self.sync.after_target_only(model_worker_batch, result)
            return result

    def record_result(self, result: GenerationBatchResult, batch: ScheduleBatch) -> None:
        """Count a finished step; ``result.num_correct_drafts`` excludes the bonus tokens."""
        mode = Mode.TARGET_ONLY if target_only.is_target_only(result) else Mode.SPECULATE
        requests = len(batch.reqs)
        self.stats.count_result(mode, result.num_correct_drafts + requests, requests)
        self.timer.emitted(batch, result)

    @staticmethod
    def is_target_only(result: GenerationBatchResult) -> bool:
        """Whether a target-only step of this worker made the result."""
        return target_only.is_target_only(result)

    @property
    def max_running_requests(self) -> int:
        """Requests that the engine runs at a time, in either mode."""
        return self.target_worker.max_running_requests

    def snapshot(self) -> dict[str, Any]:
        """State for ``/server_info``; see ``StepStats.snapshot`` and ``describe_control``."""
        return {
            **self.stats.snapshot(self.controller, self.load),
            **describe_control(self),
            "graphs": self.graphs.snapshot(),
            "draft_sync": self.sync.snapshot(),
            "ranks": self.ranks.snapshot(),
        }


class SpecSwitchWorker(SwitchingWorker, _engine.EAGLEWorkerV2):
    """EAGLE and EAGLE3 (and MTP heads that load as EAGLE)."""


class SpecSwitchStandaloneWorker(SwitchingWorker, _engine.StandaloneWorkerV2):
    """A separate small draft model."""


_BY_STOCK: dict[type, type] = {
    _engine.EAGLEWorkerV2: SpecSwitchWorker,
    _engine.StandaloneWorkerV2: SpecSwitchStandaloneWorker,
}


def worker_class(stock: type) -> type:
    """The switching subclass of one of the engine's workers.

    Raises:
        StartupRefusal: ``stock`` is none of the workers that specswitch extends.
    """
    try:
        return _BY_STOCK[stock]
    except KeyError:
        raise StartupRefusal(
            f"the engine chose {stock.__name__}, which specswitch does not extend: "
            "use --speculative-algorithm EAGLE, EAGLE3 or STANDALONE with the overlap scheduler"
        ) from None
