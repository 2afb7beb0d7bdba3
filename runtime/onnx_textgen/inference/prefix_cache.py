"""Snapshots of earlier prompts, for later ones with the same beginning; the least recently used are removed first."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..kv_cache.memory_plan import MemoryPlan, fits
from ..kv_cache.snapshot import Origin, Snapshot
from ..text.prefixes import common_prefix
from .decoder import Decoder

SHORTEST = 8
"""The fewest tokens that are reused: fewer are faster to compute than to look up."""


class SavedPrefixes(Protocol):
    """Snapshots that outlive the process. No method raises, and none but `load` takes long."""

    def load(
        self, decoder: Decoder, token_ids: Sequence[int], origin: Origin, *, longer_than: int, most_bytes: int
    ) -> Snapshot | None:
        """The snapshot with the longest beginning of `token_ids`, if it is worth reading for more than `longer_than` tokens."""
        ...

    def offer(self, snapshot: Snapshot) -> None:
        """Save a snapshot in the background, if that is worth its bytes."""
        ...

    def close(self) -> None:
        """Wait for what is being saved."""
        ...


class PrefixStore:
    """Snapshots of one model, by their origins and tokens. Safe to use from several threads."""

    def __init__(self, size_bytes: int, saved: SavedPrefixes | None = None) -> None:
        """`size_bytes`: the most bytes of all snapshots together; 0 keeps none. `saved`: where they are saved too."""
        self.size_bytes, self.saved = size_bytes, saved
        self._snapshots: dict[Snapshot, npt.NDArray[np.int64]] = {}
        """Each with its tokens as an array; the least recently used comes first."""
        self._lock = threading.RLock()
        """Reentrant: at any line, Python may close a stream that nobody holds, which adds its prompt in the same thread."""

    def __contains__(self, snapshot: Snapshot) -> bool:
        return snapshot in self._snapshots

    @property
    def held_bytes(self) -> int:
        """Bytes of all snapshots now."""
        with self._lock:
            return sum(snapshot.size_bytes for snapshot in list(self._snapshots))

    def prepare(self, decoder: Decoder, token_ids: Sequence[int], *, row: int = 0) -> None:
        """Restore the longest known beginning of a prompt into an empty row."""
        decoder.choose_engine(len(token_ids), row=row)
        origin = decoder.origin(row)
        self.recall(decoder, token_ids, origin)
        snapshot, length = self.find(token_ids, decoder.capabilities.most_reusable(len(token_ids)), origin)
        if snapshot is not None:
            decoder.restore(snapshot, length, row=row)

    def prepare_row(self, decoder: Decoder, token_ids: Sequence[int], row: int, *, past: Snapshot | None = None) -> None:
        """Restore the longest known beginning of a prompt into an empty row: from `past`, a snapshot, or a lower row.

        Saved snapshots are not read: see `recall`.
        """
        decoder.choose_engine(len(token_ids), row=row)
        origin = decoder.origin(row)
        shared = [decoder.reusable(token_ids, row=other) if decoder.is_alike(row, other) else 0 for other in range(row)]
        longest, most = max(shared, default=0), decoder.capabilities.most_reusable(len(token_ids))
        snapshot, length = self.find(token_ids, most, origin)
        if past is not None and (own := usable(past, token_ids[:most], origin)) >= max(1, length):
            snapshot, length = past, own
        if snapshot is not None and length >= longest:
            decoder.restore(snapshot, length, row=row)
        elif longest >= SHORTEST:
            decoder.fork(shared.index(longest), row)  # prefill removes the tokens that they do not share

    def recall(self, decoder: Decoder, token_ids: Sequence[int], origin: Origin, *, past: Snapshot | None = None) -> None:
        """Add a saved snapshot, if it has more of a prompt's beginning than all others and than `past`.

        `decoder`: like the one that takes it.
        """
        if self.saved is not None:
            most = decoder.capabilities.most_reusable(len(token_ids))
            held = max(self.find(token_ids, most, origin)[1], 0 if past is None else usable(past, token_ids[:most], origin))
            saved = self.saved.load(decoder, token_ids[:most], origin, longer_than=held, most_bytes=self.size_bytes)
            if saved is not None:
                self.add(saved)

    def find(self, token_ids: Sequence[int], most: int, origin: Origin) -> tuple[Snapshot | None, int]:
        """The snapshot with the longest usable beginning of `token_ids`, and its length, at most `most`; None and 0 if none has.

        Only snapshots of the same origin are taken.
        """
        wanted, best, longest = np.asarray(token_ids[:most], np.int64), None, SHORTEST - 1
        with self._lock:
            for snapshot, known in list(self._snapshots.items()):
                if snapshot.origin != origin:
                    continue
                shorter = min(len(known), len(wanted))
                unequal = np.flatnonzero(known[:shorter] != wanted[:shorter])
                length = snapshot.usable(int(unequal[0]) if len(unequal) else shorter)
                if length > longest:
                    best, longest = snapshot, length
            if best is None:
                return None, 0
            if best in self._snapshots:
                self._snapshots[best] = self._snapshots.pop(best)
        return best, longest

    def keep(self, decoder: Decoder, prompt: int, *, row: int = 0, whole: bool = True) -> None:
        """Keep a snapshot of what prompts can reuse of a row, unless it is short, larger than `size_bytes`, or known already.

        Of its first `prompt` tokens alone, if all are too large or not wanted `whole`; those alone are saved.
        """
        length = held = decoder.reusable_length(row)
        if not whole or decoder.bytes_of(length) > self.size_bytes:
            length = min(prompt, held)
        if length < SHORTEST or decoder.bytes_of(length) > self.size_bytes:
            return
        known, shared = self.find(decoder.token_ids[row], length, decoder.origin(row))
        if known is None or (known.exact_part(shared) if decoder.exact_history else shared) < length:
            known = decoder.snapshot(row=row, most=length)
            if known.size_bytes > self.size_bytes:
                known = dataclasses.replace(known, windows=())  # then the end of it fits
            self.add(known)
        self.save(known, decoder, prompt)

    def save(self, snapshot: Snapshot, decoder: Decoder, prompt: int) -> None:
        """Save the first `prompt` tokens of a decoder's snapshot, if there is a place for them and they are worth it."""
        if self.saved is not None:
            self.saved.offer(snapshot.beginning(prompt, decoder.cache.tensors))

    def add(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; remove those that it contains, and the least recently used ones beyond `size_bytes`."""
        tokens = np.asarray(snapshot.token_ids, np.int64)
        with self._lock:
            if not snapshot.states:
                for other, known in list(self._snapshots.items()):
                    is_part = snapshot.usable(len(known)) == len(known) and np.array_equal(known, tokens[: len(known)])
                    if is_part and other.origin == snapshot.origin:
                        self._snapshots.pop(other, None)
            self._snapshots[snapshot] = tokens
            while self.held_bytes > self.size_bytes:
                del self._snapshots[next(iter(self._snapshots))]

    def make_room(self, wanted: MemoryPlan, held_bytes: int = 0) -> None:
        """Remove all snapshots, if texts need their memory."""
        if not fits(wanted, held_bytes):
            self.clear()

    def discard(self, snapshot: Snapshot) -> None:
        """Remove a snapshot, if it is here."""
        with self._lock:
            self._snapshots.pop(snapshot, None)

    def clear(self) -> None:
        """Remove all snapshots; those that are saved stay."""
        with self._lock:
            self._snapshots.clear()

    def close(self) -> None:
        """Wait until what is being saved is written; nothing is saved from then on."""
        if self.saved is not None:
            self.saved.close()


def usable(snapshot: Snapshot, token_ids: Sequence[int], origin: Origin) -> int:
    """How many of a prompt's first tokens a snapshot has, as a decoder of that origin can continue from them."""
    return snapshot.usable(common_prefix(snapshot.token_ids, token_ids)) if snapshot.origin == origin else 0
