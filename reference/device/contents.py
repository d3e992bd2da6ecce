"""What every sequence should hold, position by position, as tags: what memory that never loses anything would hold."""

from __future__ import annotations

from settled.reference.device.tags import FAILED, LOADED, LOOKAHEAD, POSITIONS, VERSION_STEP, VERSIONS, TagError, base_of

_NOTHING: tuple[int, ...] = ()


class Sequence:
    """One request. `tags`: per group those of its positions, in order. A list is never changed once its generation is over, for cached
    blocks go on holding what it says.
    """

    def __init__(self, name: str, number: int, prompt_tokens: int, num_groups: int) -> None:
        self.name, self.number, self.prompt_tokens = name, number, prompt_tokens
        self.generation = 0
        self.tags: list[list[int]] = [[] for _ in range(num_groups)]
        self.is_fresh = True  # no step of this generation has been launched
        self._versions: list[int] = []  # how often this generation has written a position
        self._same: dict[int, list[int]] = {}  # positions that are computed again and come out as they were, per group
        self._failed: list[dict[int, int]] = [{} for _ in range(num_groups)]  # by position: what a failed load left there
        self._failed_state: dict[int, tuple[int, ...]] = {}  # by group: of what a state is made that a load did not bring
        self._bases = self._new_bases()

    def _new_bases(self) -> list[int]:
        return [base_of(self.number, self.generation, group) for group in range(len(self.tags))]

    def restart(self, kept: int, *, same: bool = False) -> None:
        """A generation ends, and the first `kept` tokens stay. `same`: what stood there is computed again, from the same tokens."""
        before = self.tags
        self.generation += 1
        self.is_fresh = True
        self._bases = self._new_bases()
        self._same = {}
        self._failed = [{} for _ in self.tags]
        self._failed_state = {}
        if same:
            longest = min(map(len, before))
            self._same = {position: [tags[position] for tags in before] for position in range(kept, longest)}
        self.tags = [tags[:kept] for tags in before]
        self._versions = []

    def fill(self, end: int) -> None:
        """Positions up to `end` that nobody has written hold what was computed elsewhere."""
        if end > POSITIONS:
            raise TagError(f"position {end - 1} does not fit into a tag")
        for tags, base in zip(self.tags, self._bases, strict=True):
            loaded = base + LOADED * VERSION_STEP
            tags.extend([loaded + position for position in range(len(tags), end)])

    def write(self, start: int, tokens: int) -> list[list[int]]:
        """A step writes `tokens` tokens at `start`; what stood there and behind is gone. Per group their tags."""
        end = start + tokens
        self.fill(start)
        versions = self._versions
        if len(versions) < end:
            if end > POSITIONS:
                raise TagError(f"position {end - 1} does not fit into a tag")
            versions.extend([0] * (end - len(versions)))
        if any(versions[start:end]):
            return self._write_again(start, end)
        versions[start:end] = [1] * tokens
        written = []
        for group, (tags, base) in enumerate(zip(self.tags, self._bases, strict=True)):
            new = list(range(base + start, base + end))
            if self._same:
                new = [self._same[position][group] if position in self._same else tag for position, tag in enumerate(new, start)]
            del tags[start:]
            tags += new
            written.append(new)
        return written

    def _write_again(self, start: int, end: int) -> list[list[int]]:
        """Some of the positions held drafts that were rejected."""
        adding = []
        for position in range(start, end):
            version = self._versions[position]
            if version >= VERSIONS:
                raise TagError(f"request {self.name!r} writes position {position} more than {VERSIONS} times in one generation")
            self._versions[position] = version + 1
            adding.append(version * VERSION_STEP + position)
        written = []
        for tags, base in zip(self.tags, self._bases, strict=True):
            new = [base + each for each in adding]
            del tags[start:]
            tags += new
            written.append(new)
        return written

    def lookahead(self, group: int, start: int, end: int) -> tuple[int, ...]:
        """What a drafter leaves in slots past a step's tokens."""
        if end <= start:
            return _NOTHING
        base = self._bases[group] + LOOKAHEAD * VERSION_STEP
        return tuple(range(base + start, base + end))

    def adopt(self, group: int, first: int, tags: list[int]) -> None:
        """A prefix hit: positions from `first` on hold what the hit blocks hold."""
        own = self.tags[group]
        own[first : first + len(tags)] = tags

    # ---- loads that fail ---------------------------------------------------------------------------------------------

    def fail(self, group: int, first: int, end: int) -> tuple[int, ...]:
        """A load leaves garbage at these positions; returns its tags."""
        base = self._bases[group] + FAILED * VERSION_STEP
        garbage = tuple(range(base + first, base + end))
        self._failed[group].update(zip(range(first, end), garbage, strict=True))
        return garbage

    def fail_state(self, group: int, tokens: int) -> tuple[int, ...]:
        """A load leaves garbage where the state after `tokens` tokens should be: a state made of as many others."""
        base = self._bases[group] + FAILED * VERSION_STEP
        self._failed_state[group] = tuple(range(base, base + tokens))
        return self._failed_state[group]

    def with_failures(self, group: int, first: int, tags: list[int]) -> list[int]:
        """The tags of positions from `first` on, as a step finds them that ran on a failed load."""
        failed = self._failed[group]
        return [failed.get(position, tag) for position, tag in enumerate(tags, first)] if failed else tags

    def state_with_failures(self, group: int, tags: list[int]) -> list[int]:
        """The same of a state."""
        failed = self._failed_state.get(group, ())
        return [*failed, *tags[len(failed) :]]
