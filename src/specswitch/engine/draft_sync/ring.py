"""What the draft has missed: target hidden states and the token that followed, per position."""

from __future__ import annotations

import torch

from specswitch.engine.draft_sync.ring_kernel import write_ring

#: Tokens are kept as int64, as the engine's input ids.
_TOKEN_BYTES = 8


class HiddenRing:
    """The last ``window`` positions of every pool row.

    Written once a target-only step, on a GPU by one kernel and without a host sync; position p of a
    row lies at p modulo ``window``.

    Args:
        rows: number of rows of the request pool.
        window: positions kept per row.
        width: width of the target's hidden states as the draft takes them; None for a draft that
            reads tokens alone (STANDALONE).
        dtype: of the hidden states.
        device: where the target runs.
    """

    def __init__(
        self, rows: int, window: int, width: int | None, dtype: torch.dtype, device: str
    ) -> None:
        self.window = window
        self._tokens = torch.zeros(rows, window, dtype=torch.int64, device=device)
        self._hidden = (
            None if width is None else torch.zeros(rows, window, width, dtype=dtype, device=device)
        )

    @property
    def nbytes(self) -> int:
        """Memory that the ring takes."""
        return self._tokens.nbytes + (0 if self._hidden is None else self._hidden.nbytes)

    @staticmethod
    def bytes_per_position(rows: int, width: int | None, dtype: torch.dtype) -> int:
        """Memory of one position of all rows, in bytes."""
        return rows * (_TOKEN_BYTES + (width or 0) * dtype.itemsize)

    def write(
        self,
        rows: torch.Tensor,
        positions: torch.Tensor,
        tokens: torch.Tensor,
        hidden: torch.Tensor | None,
    ) -> None:
        """Keep one position per request.

        Args:
            rows: [b] int64 pool rows.
            positions: [b] int64 positions that the target has just decoded.
            tokens: [b] the tokens that it emitted, which stand at position + 1.
            hidden: [b, width] its hidden states; copied, because the next graph replay overwrites
                them.

        Raises:
            ValueError: the hidden states have another width, which the kernel would not notice.
        """
        if self._hidden is not None and hidden.shape[1] != self._hidden.shape[2]:
            raise ValueError(
                f"the target returns hidden states of width {hidden.shape[1]}, the draft takes "
                f"{self._hidden.shape[2]}"
            )
        if self._hidden is not None and rows.device.type == "cuda":
            write_ring(self._tokens, self._hidden, rows, positions, tokens, hidden)
            return
        places = positions % self.window
        self._tokens[rows, places] = tokens.to(torch.int64)
        if self._hidden is not None:
            self._hidden[rows, places] = hidden

    def read(
        self, rows: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens [n] int64 and hidden states [n, width] (None without) of n kept positions."""
        places = positions % self.window
        tokens = self._tokens[rows, places]
        return tokens, None if self._hidden is None else self._hidden[rows, places]
