"""The protocol of every engine: snapshots that clients read, messages that servers apply.

A *server* owns the functions of some addends, and it alone writes them. It publishes them as an
immutable *snapshot* by swapping one reference. A *client* computes on the newest snapshots of all
servers how a block of records changes the functions, and sends each server its part as one
*message*. Everything in a message comes from the same snapshots. Clients own nothing, and a server
owns nothing that is not in its last snapshot, so either can die.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tritonsnap.kan.data import Block
from tritonsnap.kan.functions import Functions
from tritonsnap.kan.model import read_only
from tritonsnap.kan.step import Change, Rule, apply_change, kept_records, train_step


@dataclass(frozen=True)
class Snapshot:
    """The functions of one server's addends, as they were after `version` messages.

    Parameters
    ----------
    version : int
        How many messages are in it.
    functions : Functions
        Read-only arrays; the axis of the addends holds those of the server.
    """

    version: int
    functions: Functions


class Message(NamedTuple):
    """What one block of records does to functions of one server.

    Parameters
    ----------
    change : Change
        To add to the functions of `addends`.
    addends : slice
        Which of the server's addends.
    version : int
        Of the server's snapshot that the change was computed on.
    """

    change: Change
    addends: slice
    version: int


class Outcome(NamedTuple):
    """What a client did with one block.

    Parameters
    ----------
    messages : tuple of Message or None
        One for each server; None where none of its addends changes.
    records : int
        Records drawn.
    kept : int
        Records whose residuals were large enough to be used.
    squared_error : float
        Sum over the records of the mean over the targets of the squared error, before the step,
        in units of the targets' deviations.
    """

    messages: tuple[Message | None, ...]
    records: int
    kept: int
    squared_error: float


class Server:
    """The only writer of the functions of some addends.

    Parameters
    ----------
    snapshot : Snapshot
        What to begin with; after a crash the last one that was published.
    max_staleness : int
        Messages that are older by more than so many versions are dropped.
    """

    def __init__(self, snapshot: Snapshot, max_staleness: int) -> None:
        self.snapshot = snapshot
        self._max_staleness = max_staleness

    def apply(self, message: Message) -> int | None:
        """Apply a message, publish the result, and return the message's staleness.

        None says that the message was too stale and has been dropped.

        Raises
        ------
        FloatingPointError
            If the change is not finite; no snapshot ever holds a NaN or an infinity.
        """
        version, functions = self.snapshot.version, self.snapshot.functions
        staleness = version - message.version
        if staleness > self._max_staleness:
            return None
        change = message.change
        if not (np.isfinite(change.inner).all() and np.isfinite(change.outer).all()):
            raise FloatingPointError("training diverged")
        changed = apply_change(functions, change, message.addends)
        self.snapshot = Snapshot(version + 1, read_only(changed))
        return staleness


def split_addends(addends: int, parts: int) -> list[slice]:
    """Cut all addends into contiguous parts of nearly equal size."""
    edges = [addends * part // parts for part in range(parts + 1)]
    return [slice(*edges[part : part + 2]) for part in range(parts)]


def split_functions(functions: Functions, shares: Sequence[slice]) -> list[Functions]:
    """Give each share of the addends its functions."""
    return [
        read_only(
            functions._replace(
                inner=functions.inner[..., share].copy(),
                outer=functions.outer[..., share].copy(),
                sum_low=functions.sum_low[share].copy(),
                sum_high=functions.sum_high[share].copy(),
            )
        )
        for share in shares
    ]


def join_functions(parts: Sequence[Functions]) -> Functions:
    """All functions from those of each server; domains of inputs are united."""
    if len(parts) == 1:
        return parts[0]
    return read_only(
        parts[0]._replace(
            inner=np.concatenate([part.inner for part in parts], axis=-1),
            outer=np.concatenate([part.outer for part in parts], axis=-1),
            input_low=np.min([part.input_low for part in parts], axis=0),
            input_high=np.max([part.input_high for part in parts], axis=0),
            sum_low=np.concatenate([part.sum_low for part in parts]),
            sum_high=np.concatenate([part.sum_high for part in parts]),
        )
    )


def compute_messages(
    snapshots: Sequence[Snapshot],
    shares: Sequence[slice],
    block: Block,
    rule: Rule,
    changed: slice,
) -> Outcome:
    """Do a client's work on one block.

    Parameters
    ----------
    snapshots : sequence of Snapshot
        Of every server.
    shares : sequence of slice
        Which addends each of them owns.
    block : Block
        The records.
    rule : Rule
        How residuals become changes.
    changed : slice
        Which addends' functions to change.
    """
    functions = join_functions([snapshot.functions for snapshot in snapshots])
    with np.errstate(over="ignore", invalid="ignore"):  # the server refuses what is not finite
        change, squared_error = train_step(functions, block.x, block.y, rule, changed)
    messages: list[Message | None] = []
    for snapshot, share in zip(snapshots, shares, strict=True):
        first, last = max(share.start, changed.start), min(share.stop, changed.stop)
        if first >= last:
            messages.append(None)
            continue
        part = slice(first - changed.start, last - changed.start)
        own = change._replace(
            inner=change.inner[..., part],
            outer=change.outer[..., part],
            sum_low=change.sum_low[part],
            sum_high=change.sum_high[part],
        )
        within_share = slice(first - share.start, last - share.start)
        messages.append(Message(own, within_share, snapshot.version))
    records = len(block.x)
    relative = squared_error / functions.scale.astype(np.float64) ** 2
    return Outcome(
        tuple(messages), records, kept_records(records, rule.select), records * relative.mean()
    )
