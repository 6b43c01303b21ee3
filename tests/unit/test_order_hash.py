"""Golden vectors of the order: any change here is a change of order and must bump ORDER_VERSION."""

import numpy as np

import o41td.order
from o41td.order import ORDER_VERSION, Purpose, add_digests, hash_counters, row_digests, stream_key, total_digest
from o41td.order.digest import moved_words, place_words
from o41td.order.hash import absorb, absorb_each, hash_grid, hash_range, mix64

MASK = (1 << 64) - 1


def test_order_version_is_the_frozen_one():
    """The golden vectors of this module belong to order version 2."""
    assert ORDER_VERSION == 2
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "UNIT_ORDER": 1,
        "SHUFFLE": 2,
        "MIX": 3,
        "DIGEST": 4,
        "STAND_IN": 5,
    }


def test_stream_zero_is_splitmix64_of_seed_zero():
    """Stream 0 gives splitmix64's published first outputs for seed 0."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert hash_counters(0, np.arange(4, dtype=np.uint64)).tolist() == expected


def test_stream_keys_are_frozen():
    """Keys of streams equal values worked out with plain Python integers."""
    assert stream_key(0) == 0xE220A8397B1DCDAF
    assert stream_key(2**64 - 1, 1, 2, 3) == 0x0D27487EF858DC98
    assert stream_key(7, 3, 0) == 0xC5BE199F66B5E425
    assert hash_counters(stream_key(7, 3, 0), np.array([10**12], dtype=np.uint64)).tolist() == [0xA846B0696B4FDC85]


def test_stream_keys_of_different_names_differ():
    """Seeds 0, 2**32 - 1, 2**63 and 2**64 - 1, and parts in any order, give different streams."""
    seeds = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
    names = [(seed, *parts) for seed in seeds for parts in [(), (0,), (1,), (0, 1), (1, 0), (0, 0), (1, 1)]]
    assert len({stream_key(*name) for name in names}) == len(names)


def test_vectorised_hashes_equal_plain_integers():
    """Every way to hash many counters at once gives the same numbers as Python's integers, beyond 2**53 too."""
    key = stream_key(2**64 - 1, 5)
    counters = [0, 1, 2**32, 2**53 + 1, 2**62 + 3, 2**64 - 1]
    expected = [mix64(key + 0x9E3779B97F4A7C15 * (counter + 1)) for counter in counters]
    assert hash_counters(key, np.array(counters, dtype=np.uint64)).tolist() == expected
    start = 2**53 + 1
    assert (
        hash_range(key, start, start + 3).tolist()
        == hash_counters(key, np.array([start, start + 1, start + 2], dtype=np.uint64)).tolist()
    )
    keys = absorb_each(key, np.array(counters, dtype=np.uint64))
    assert keys.tolist() == [absorb(key, counter) for counter in counters]
    assert hash_grid(keys, 3).tolist() == [hash_range(k, 0, 3).tolist() for k in keys.tolist()]


def test_hashes_are_uniform_and_independent():
    """Bits of neighbouring counters and of neighbouring keys are set half of the time, and differ half of the time."""
    numbers = hash_grid(absorb_each(1, np.arange(64, dtype=np.uint64)), 512)
    for words in (numbers, numbers[1:] ^ numbers[:-1], numbers[:, 1:] ^ numbers[:, :-1]):
        for bit in range(64):
            share = float(((words >> np.uint64(bit)) & np.uint64(1)).mean())
            assert abs(share - 0.5) < 0.02  # 32 768 bits: seven standard deviations


def test_row_digests_are_frozen():
    """Digests of single rows equal values worked out with plain Python integers."""
    digests = row_digests([0, 1, 41207], [0, 0, 31], [0, 0, 2], [0, 0, 999999], [0, 0, 10**12])
    assert digests.tolist() == [0xF3E9C48963C36D04, 0x3652829C48136D71, 0x88E7A4204B9BB5FB]


def test_digests_add_up_over_any_split():
    """The digest of many batches is the wrapped sum of the digests of any parts of them."""
    n = np.arange(1000)
    digests = row_digests(n // 10, n % 10, n % 3, n // 7, n)
    whole = total_digest(digests)
    assert whole == sum(digests.tolist()) & MASK
    for ranks in (2, 3, 5):
        assert add_digests(*(total_digest(digests[(n // 10) % ranks == rank]) for rank in range(ranks))) == whole


def test_digest_depends_on_every_part_of_a_coordinate():
    """Moving a row to another batch, place, source, shard or row changes its digest."""
    rows = [(1, 2, 3, 4, 5), (2, 2, 3, 4, 5), (1, 3, 3, 4, 5), (1, 2, 4, 4, 5), (1, 2, 3, 5, 5), (1, 2, 3, 4, 6)]
    assert len(set(row_digests(*zip(*rows, strict=True)).tolist())) == len(rows)


def test_no_two_rows_of_a_shard_meet_in_a_batch():
    """No two places of a batch less than 2**21 apart make up for two rows of a shard less than 2**42 apart."""
    one = np.ones(1, np.uint64)
    place_step, row_step = int(place_words(one)[0]), int(moved_words(np.uint64(0), one)[0])
    apart = np.arange(1, 1 << 21, dtype=np.uint64)
    per_place = np.uint64(place_step * pow(row_step, -1, 1 << 64) & MASK)
    assert int(np.abs((apart * per_place).view(np.int64)).min()) >= 1 << 42


def test_public_names():
    """The package exports what it promises."""
    assert sorted(o41td.order.__all__) == sorted(set(o41td.order.__all__))
    assert all(hasattr(o41td.order, name) for name in o41td.order.__all__)
