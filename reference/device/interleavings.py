"""All orders in which the launches of a small log may run: each of them, how many there are, or one of each that memory tells apart.

Both iterators give out one list that changes from order to order: copy what you keep. `kept` is how many of its first launches are those of
the order before, so that a replay can go back to there instead of starting again.
"""

from __future__ import annotations

from collections.abc import Iterator

from settled.reference.device.ops import Launch
from settled.reference.device.orders import Cut, LaunchOrder


class Interleavings:
    """Every linear extension, once each (the empty one of a log without launches), as lists of op indices; at most `most` of them.

    After the last, `was_cut` says whether there would have been more.
    """

    def __init__(self, order: LaunchOrder, *, most: int) -> None:
        self._order = order
        self._most = most
        self.was_cut = False
        self.kept = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.was_cut, self.kept = False, 0
        given = 0
        if not self._order.launches and self._most:
            yield []
            return
        root = _Node(self._order, (0,) * len(self._order.streams), {})
        launches = [0] * len(self._order.launches)
        path: list[Iterator[tuple[int, _Node]]] = [iter(root.following())]
        changed = 0  # the first place that was written since the last order was given out
        while path:
            step = next(path[-1], None)
            if step is None:
                path.pop()
                changed = min(changed, len(path) - 1)
                continue
            launches[len(path) - 1], node = step
            following = node.following()
            if following:
                path.append(iter(following))
                continue
            if given == self._most:
                self.was_cut = True
                return
            given += 1
            self.kept, changed = max(0, changed), len(path) - 1
            yield launches


class Representatives:
    """One linear extension of each class: two orders are of one class if swapping neighbours that touch nothing in common, or only read it,
    leads from one to the other. Memory and all that is read are the same throughout a class (Mazurkiewicz traces), so a log without
    races has one class. At most `most` are given; after the last, `was_cut` says whether there would have been more.

    Sleep sets (Godefroid): a launch that was tried first at a fork is not tried again behind its sisters before something that races with
    it has run. A launch that races with nothing still to come goes alone.
    """

    def __init__(self, order: LaunchOrder, *, most: int) -> None:
        self._order = order
        self._most = most
        self._bit = {index: 1 << number for number, index in enumerate(order.launches)}
        self._racing = racing(order)
        self.was_cut = False
        self.kept = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.was_cut, self.kept = False, 0
        given = 0
        if not self._order.launches and self._most:
            yield []
            return
        root = _Node(self._order, (0,) * len(self._order.streams), {})
        everything = sum(self._bit.values())
        launches = [0] * len(self._order.launches)
        path = [_Fork(everything, 0, self._choices(root, everything, 0))]
        changed = 0
        while path:
            fork = path[-1]
            if not fork.choices:
                path.pop()
                changed = min(changed, len(path) - 1)
                continue
            index, node = fork.choices.pop(0)
            launches[len(path) - 1] = index
            racing_too, left = self._racing[index], fork.left & ~self._bit[index]
            asleep = fork.asleep & ~racing_too
            fork.asleep |= self._bit[index]
            if left:
                path.append(_Fork(left, asleep, self._choices(node, left, asleep)))
                continue
            if given == self._most:
                self.was_cut = True
                return
            given += 1
            self.kept, changed = max(0, changed), len(path) - 1
            yield launches

    def _choices(self, node: _Node, left: int, asleep: int) -> list[tuple[int, _Node]]:
        """What is to be tried at a cut; empty where all that follows has been seen in another order."""
        for step in node.following():
            if not self._racing[step[0]] & left:
                return [step]  # not asleep: it slept at a fork where something that raced with it was left, which has woken it
        return [step for step in node.following() if not self._bit[step[0]] & asleep]


class _Fork:
    """A cut on the way: what has not run, as bits; what sleeps; what is still to be tried."""

    __slots__ = ("asleep", "choices", "left")

    def __init__(self, left: int, asleep: int, choices: list[tuple[int, _Node]]) -> None:
        self.left = left
        self.asleep = asleep
        self.choices = choices


class _Node:
    """A cut with the launches that can follow, worked out when first asked and shared by all orders that pass through it."""

    __slots__ = ("_cuts", "_done", "_following", "_order")

    def __init__(self, order: LaunchOrder, done: Cut, cuts: dict[Cut, _Node]) -> None:
        self._order = order
        self._done = done
        self._cuts = cuts
        self._following: list[tuple[int, _Node]] | None = None

    def following(self) -> list[tuple[int, _Node]]:
        if self._following is None:
            self._following = [(index, self._node(done)) for index, done in self._order.following(self._done)]
        return self._following

    def _node(self, done: Cut) -> _Node:
        node = self._cuts.get(done)
        if node is None:
            node = self._cuts[done] = _Node(self._order, done, self._cuts)
        return node


def count(order: LaunchOrder, *, most_cuts: int) -> int | None:
    """How many linear extensions there are, by the number of ways to each cut; None when a log has more cuts than `most_cuts`."""
    ways: dict[Cut, int] = {(0,) * len(order.streams): 1}
    num_cuts = 1
    for _ in order.launches:
        following: dict[Cut, int] = {}
        for cut, number in ways.items():
            for _, done in order.following(cut):
                following[done] = following.get(done, 0) + number
        ways = following
        num_cuts += len(ways)
        if num_cuts > most_cuts:
            return None
    return sum(ways.values())


def racing(order: LaunchOrder) -> dict[int, int]:
    """For each launch the launches that conflict with it and that no order holds apart, as bits by their number among the launches."""
    found = dict.fromkeys(order.launches, 0)
    for number, second in enumerate(order.launches):
        for earlier, first in enumerate(order.launches[:number]):
            if not order.comes_before(first, second) and _conflict(order.log.ops[first], order.log.ops[second]):
                found[first] |= 1 << number
                found[second] |= 1 << earlier
    return found


def _conflict(first: object, second: object) -> bool:
    assert isinstance(first, Launch)
    assert isinstance(second, Launch)
    return not (
        set(first.writes).isdisjoint(second.writes)
        and set(first.writes).isdisjoint(second.reads)
        and set(first.reads).isdisjoint(second.writes)
    )
