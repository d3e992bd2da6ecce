"""Bytes as a function of the tag, and states as chains: the definitions against plain integers, and what they promise."""

from __future__ import annotations

from random import Random

import pytest
import torch

from settled.reference.device import states
from settled.reference.device.attention import advance, attend, rows_differing
from settled.reference.device.payload import INPUT, KEY, QUERY, VALUE, Numbers, integers, mix, payload
from settled.reference.device.state_tensors import EMPTY_NUMBER, chains, folds, numbers_of

torch.set_num_threads(1)
BOTH = pytest.mark.parametrize("numbers", [Numbers(), Numbers(head_dim=4, is_single=True)], ids=["float64", "float32"])
WORD = (1 << 64) - 1


def some_tags(seed: int, count: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(1, 1 << 62) for _ in range(count)]


def test_mix_is_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # splitmix64 seeded with 0: its first three outputs
    golden = states.signed(0x9E3779B97F4A7C15)
    seeds = torch.tensor([0, golden, states.signed(2 * golden & WORD)])
    assert [word & WORD for word in mix(seeds).tolist()] == published
    assert [states.mixed(tag) for tag in (0, -1, 12345)] == [word & WORD for word in mix(torch.tensor([0, -1, 12345])).tolist()]


@BOTH
def test_payload_is_what_the_definition_says_in_plain_integers(numbers: Numbers) -> None:
    tags = [*some_tags(1, 5), 0, -1, -2]
    for vector in (QUERY, KEY, VALUE, INPUT):
        wanted = [
            [
                (states.mixed(states.mixed(tag) + word) >> 64 - numbers.bits)
                for word in range(vector * numbers.head_dim, (vector + 1) * numbers.head_dim)
            ]
            for tag in tags
        ]
        assert integers(torch.tensor(tags), vector, numbers).tolist() == wanted
        exact = payload(torch.tensor(tags), vector, numbers).double()
        assert exact.tolist() == [[word / (1 << numbers.bits - 1) - 1 for word in row] for row in wanted]
        assert exact.dtype == torch.float64


def test_a_state_is_the_chain_of_its_tokens() -> None:
    tags = some_tags(2, 9)
    state = states.EMPTY
    for tag in tags:
        state = states.stepped(state, *states.fold([tag]))
    assert state == states.chain(tags) == states.stepped(states.chain(tags[:4]), *states.fold(tags[4:]))
    assert chains([tags, [], tags[:1]]).tolist() == [state, states.EMPTY, states.chain(tags[:1])]
    a, b = folds([tags[4:], []])
    assert [(int(a[0]), int(b[0])), (int(a[1]), int(b[1]))] == [states.fold(tags[4:]), (1, 0)]


def test_states_depend_on_every_token_and_their_order_and_are_no_tokens() -> None:
    tags = some_tags(3, 40)
    wrong = [[*tags[:at], tags[at] + 1, *tags[at + 1 :]] for at in range(40)]
    swapped = [[*tags[:at], tags[at + 1], tags[at], *tags[at + 2 :]] for at in range(39)]
    all_of_them = chains([tags, *wrong, *swapped]).tolist()
    assert len(set(all_of_them)) == 80
    assert all(state < -2 for state in all_of_them)


@BOTH
def test_a_states_numbers_step_exactly_and_forget_nothing(numbers: Numbers) -> None:
    tags = some_tags(4, 300)
    inputs = payload(torch.tensor([tags, [tags[0] + 1, *tags[1:]]]), INPUT, numbers)
    stepped = advance(torch.full((2, numbers.head_dim), EMPTY_NUMBER, dtype=numbers.dtype), inputs)
    closed = numbers_of([tags[:length] for length in range(301)], numbers)
    assert rows_differing(stepped[0], closed) == []
    assert rows_differing(stepped[1], closed) == list(range(1, 301)), "one wrong token, 299 tokens ago"


@BOTH
def test_keys_that_are_not_read_weigh_nothing_and_one_that_is_shows(numbers: Numbers) -> None:
    queries = payload(torch.tensor(some_tags(5, 3)), QUERY, numbers)
    tags = torch.tensor(some_tags(6, 12)).reshape(3, 4)
    is_read = torch.tensor([[True, True, False, False], [True, True, True, True], [True, False, True, False]])
    keys, values = payload(tags, KEY, numbers), payload(tags, VALUE, numbers)
    outputs = attend(queries, keys, values, is_read)
    unread_changed = torch.where(is_read.unsqueeze(-1), keys, 0.25)
    assert rows_differing(attend(queries, unread_changed, values, is_read), outputs) == []
    values = values.clone()
    values[2, 2, 0] = torch.nextafter(values[2, 2, 0], values[2, 2, 0] + 1)
    keys[1, 3] = float("nan")
    assert rows_differing(attend(queries, keys, values, is_read), outputs)[0] == 1
    assert attend(queries, keys, values, is_read)[1].isnan().all()


def test_keys_that_change_places_are_seen_by_tags_alone() -> None:
    numbers = Numbers()
    tags = torch.tensor([some_tags(7, 6)])
    swapped = tags[:, [1, 0, 2, 3, 5, 4]]
    queries, is_read = payload(tags[0, :1], QUERY, numbers), torch.ones(1, 6, dtype=torch.bool)
    one, other = (attend(queries, payload(held, KEY, numbers), payload(held, VALUE, numbers), is_read) for held in (tags, swapped))
    assert not torch.equal(tags, swapped)
    assert float((one - other).abs().max()) < 1e-15
