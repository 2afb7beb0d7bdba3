"""Pictures as token ids: each row of a picture that was read has an id below 0, made from its pixels.

So a prompt with pictures is a list of ids like any other: caches, sessions and prefixes find what they hold of it by comparing ids,
and equal pictures have equal ids in every process. Only the run of a graph looks up the rows.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..cancellation import UNCANCELLED, CancelScope
from ..errors import PromptError
from ..package.manifest import MOST_IMAGE_TOKENS, TileText

ROW_BITS = MOST_IMAGE_TOKENS.bit_length() - 1
HASH_BITS = 62 - ROW_BITS
KEPT_IMAGES = 64
"""Pictures whose rows are kept for later turns of a chat, in which they come again."""
KEPT_BYTES = 256 << 20
MOST_GAPS = 1 << 16
"""Pictures whose `ReadImage.gap` is known."""
LOWEST = -(2**63)
"""Below the ids of all pictures."""
Rows = npt.NDArray[np.float32]
Grid = tuple[int, int]
"""Rows of a picture down and across."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unread:
    """Rows of a picture that are computed when a run needs them."""

    count: int
    compute: Callable[[CancelScope], Rows]
    """Raises `ModelError`, and `InterruptedRunError` if the scope ends it."""
    held_bytes: int = 0
    """Of what it holds until then."""

    def __len__(self) -> int:
        return self.count


class ReadImage:
    """A picture whose pixels were read, and its rows, which may be computed later. Safe to share between requests."""

    def __init__(
        self,
        digest: bytes,
        rows: Rows | Unread,
        grid: Grid | None = None,
        row_break_ids: Sequence[int] = (),
        tiles: TileText | None = None,
    ) -> None:
        """`digest`: of what was read; `rows` [tokens, width]; `grid`: of a picture whose rows follow its size."""
        self.digest, self.grid, self.count, self.lock = digest, grid, len(rows), threading.Lock()
        self.tiles = tiles
        """How it was cut."""
        self._rows = rows
        self.ids = ids_of(digest, self.count)
        """What a prompt has in the place of the picture."""
        self.lines = grid or (1, self.count)
        """Rows down and across."""
        self.gap = max(self.lines) - self.count
        """How far a position after the picture differs from its place, where a picture counts as the longer side of its grid."""
        if grid is not None and row_break_ids:
            lines = [[*row_break_ids, *self.ids[start : start + grid[1]]] for start in range(0, self.count, grid[1])]
            self.ids = tuple(itertools.chain(*lines))[len(row_break_ids) :]

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """Its ids, in parts that each take the place of one token: of a grid all, of tiles those of each, else one."""
        size = len(self.ids) if self.grid else self.count // self.tiles.tiles if self.tiles else 1
        return [self.ids[start : start + size] for start in range(0, len(self.ids), size)]

    def rows(self, scope: CancelScope = UNCANCELLED) -> Rows:
        """Its rows [tokens, width], computed at the first call; raises as `Unread.compute` does."""
        if isinstance(self._rows, Unread):
            with scope.holding(self.lock):
                if isinstance(self._rows, Unread):
                    self._rows = self._rows.compute(scope)
        return self._rows

    def held_bytes(self, width: int) -> int:
        """Bytes that it holds, or will once its rows of this width are computed, if these are more."""
        own = self.count * width * np.dtype(np.float32).itemsize
        return max(own, self._rows.held_bytes) if isinstance(self._rows, Unread) else own


def ids_of(digest: bytes, rows: int) -> tuple[int, ...]:
    """The ids of the rows of a picture: each has a hash of the picture and of its place, and the place.

    >>> ids_of(b"a picture", 3) == ids_of(b"a picture", 4)[:3], max(ids_of(b"a picture", 3)) < 0
    (True, True)
    """
    stream = np.frombuffer(hashlib.shake_256(digest).digest(8 * rows), np.uint64)
    hashes = (stream >> np.uint64(64 - HASH_BITS)).astype(np.int64)
    found: list[int] = (-1 - (hashes << ROW_BITS | np.arange(rows))).tolist()
    return tuple(found)


def place_of(token_id: int) -> int:
    """Which row of its picture an id names.

    >>> [place_of(each) for each in ids_of(b"a picture", 3)]
    [0, 1, 2]
    """
    return (-1 - token_id) & (MOST_IMAGE_TOKENS - 1)


class ImageRows:
    """The pictures that are in use, and the last ones that were. Safe to use from several threads."""

    def __init__(self, width: int, *, bidirectional: bool = False) -> None:
        """`width`: of a row; `bidirectional`: the tokens of a picture see each other in both directions."""
        self.width, self.bidirectional, self.lock = width, bidirectional, threading.Lock()
        self.by_id = weakref.WeakValueDictionary[int, ReadImage]()
        self.living = weakref.WeakValueDictionary[bytes, ReadImage]()
        """By digest, those that anyone holds."""
        self.gaps = collections.OrderedDict[int, int]()
        """By the id of a picture's last row, its `ReadImage.gap`; also of pictures that are forgotten, which a cache may hold."""
        self.kept = collections.OrderedDict[bytes, ReadImage]()
        """By digest, the one used last at the end."""

    def known(self, digest: bytes) -> ReadImage | None:
        """A picture that was read before."""
        with self.lock:
            found = self.living.get(digest)
        if found is not None:
            self.keep(found)
        return found

    def keep(self, image: ReadImage) -> ReadImage:
        """Make a picture known, and forget those that were not used for longest; returns the known one of its digest.

        There is never a second one, whose rows would be computed again.
        """
        with self.lock:
            image = self.living.setdefault(image.digest, image)
            self.kept[image.digest] = image
            self.kept.move_to_end(image.digest)
            self.gaps[image.ids[-1]] = image.gap
            while len(self.gaps) > MOST_GAPS:
                self.gaps.popitem(last=False)
            self.by_id.update(dict.fromkeys((each for each in image.ids if each < 0), image))
            while len(self.kept) > 1 and (len(self.kept) > KEPT_IMAGES or self.kept_bytes > KEPT_BYTES):
                self.kept.popitem(last=False)
        return image

    @property
    def kept_bytes(self) -> int:
        """Bytes that the pictures hold which are kept."""
        return sum(each.held_bytes(self.width) for each in self.kept.values())

    def clear(self) -> None:
        """Forget all pictures that no request uses."""
        with self.lock:
            self.kept.clear()

    def of(self, ids: Iterable[int]) -> tuple[ReadImage, ...]:
        """The pictures of a prompt, which has to hold them as long as it may be fed; raises `PromptError` for an unknown one."""
        return tuple(dict.fromkeys(self.image(each) for each in ids if each < 0))

    def image(self, token_id: int) -> ReadImage:
        """The picture of an id; raises `PromptError` for an unknown one."""
        if (found := self.by_id.get(token_id)) is None:
            raise PromptError("the prompt has a picture that is not at hand any more; give the picture again")
        return found

    def picture_boundary(self, ids: Sequence[int], end: int) -> int:
        """Where a part of a prompt ends that should end at `end`: after a picture that it would cut, if one run has to have it."""
        while self.bidirectional and 0 < end < len(ids) and ids[end - 1] < 0 and ids[end] < 0:
            end += 1
        return end

    def check_whole(self, ids: Sequence[int]) -> None:
        """Raise `PromptError` for a part of a prompt that ends within a picture which one run has to have."""
        if self.bidirectional and ids[-1] < 0 and place_of(ids[-1]) + 1 < self.image(ids[-1]).count:
            raise PromptError("the model reads a picture in both directions, so feed all of its tokens at once")

    def taken(self, ids: npt.NDArray[np.int64], scope: CancelScope) -> tuple[npt.NDArray[np.int64], Rows]:
        """Ids that name the rows of a run, -1 the first of them, and these rows [rows, width], which `scope` can end."""
        places = np.nonzero(ids < 0)
        numbers = [int(each) for each in ids[places]]
        rows = [self.image(each).rows(scope)[place_of(each)] for each in numbers]
        named = ids.copy()
        named[places] = -1 - np.arange(len(rows))
        return named, np.stack(rows) if rows else np.zeros((0, self.width), np.float32)


def without_images(ids: Sequence[int]) -> Sequence[int]:
    """Ids of text alone.

    >>> without_images([5, -7, 6])
    [5, 6]
    """
    return ids if min(ids, default=0) >= 0 else [each for each in ids if each >= 0]
