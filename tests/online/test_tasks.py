import itertools

import numpy as np
import pytest

from tritonsnap.online.tasks import CopyTask, TextTask, reference_text
from tritonsnap.online.tasks.copy import BLANK, REQUEST


def read_all(task, state, pieces):
    batches = []
    for steps in pieces:
        batch, state = task.read(state, steps)
        batches.append(batch)
    return [np.concatenate(parts) for parts in zip(*batches, strict=True)], state


@pytest.fixture(scope="module")
def reference():
    return TextTask(reference_text(), rows=16)


def test_reference_text_has_the_known_entropies(reference):
    assert reference.unigram_entropy == pytest.approx(4.69, abs=0.1)
    assert reference.bigram_entropy == pytest.approx(3.55, abs=0.1)
    assert reference.inputs == reference.outputs == len(set(reference_text()))


def test_entropies_of_a_known_text():
    task = TextTask("ab" * 50, rows=2)
    assert task.unigram_entropy == pytest.approx(1)
    assert task.bigram_entropy == pytest.approx(0, abs=1e-9)


def test_last_tenth_is_held_out():
    text = "".join(chr(97 + i % 26) for i in range(1000))
    task = TextTask(text, rows=3)
    assert task.decode(task.train) == text[:900]
    assert task.decode(task.held_out) == text[900:]


def test_symbols_only_in_the_held_out_text_have_a_class():
    task = TextTask("ab" * 50 + "zzzz€", rows=2)
    assert task.alphabet == "abz€"
    assert task.held_out.max() < task.outputs


def test_rows_read_contiguous_stretches_and_reset_when_they_wrap():
    text = "".join(chr(1000 + i) for i in range(100))
    task = TextTask(text, rows=4)
    stretch = 89 // 4
    (inputs, targets, mask, resets), _ = read_all(task, task.start(), [2 * stretch])
    ids = inputs.argmax(-1)
    for row in range(4):
        expected = row * stretch + np.arange(stretch)
        np.testing.assert_array_equal(ids[:stretch, row], expected)
        np.testing.assert_array_equal(ids[stretch:, row], expected)
    np.testing.assert_array_equal(targets, ids + 1)
    assert (inputs.sum(-1) == 1).all()
    assert mask.all()
    assert np.flatnonzero(resets.all(axis=1)).tolist() == [0, stretch]
    assert resets.any(axis=1).sum() == 2


@pytest.mark.parametrize("make", [lambda: TextTask("hello world. " * 20, 3), lambda: CopyTask(3)])
def test_streams_do_not_depend_on_how_they_are_cut(make):
    task = make()
    start = task.start()
    before = {name: value.copy() for name, value in start.items()}
    whole, end = read_all(task, start, [60])
    pieces, other_end = read_all(make(), start, [1, 7, 20, 32])
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(one, other)
    for name in end:
        np.testing.assert_array_equal(end[name], other_end[name])
        np.testing.assert_array_equal(start[name], before[name])


def test_every_held_out_character_is_a_target_once():
    text = "".join(chr(1000 + i) for i in range(1000))
    task = TextTask(text, rows=4)
    inputs, targets, mask = task.held_out_windows(rows=7, warm_up=5)
    assert sorted(targets[mask == 1]) == list(range(900, 1000))
    np.testing.assert_array_equal(targets[mask == 1], inputs[mask == 1] + 1)
    assert not mask[:5].any()
    assert inputs[0, 0] == 894


def test_texts_that_are_too_short_are_refused():
    with pytest.raises(ValueError, match="`text` has 3 characters"):
        TextTask("abc", rows=1)
    with pytest.raises(ValueError, match="too few for 50 rows"):
        TextTask("ab" * 50, rows=50)
    with pytest.raises(ValueError, match="`rows`"):
        TextTask("ab" * 50, rows=0)


def parsed(batch, row):
    """Sequences of a row as (bits asked for, targets given), complete ones only."""
    inputs, targets, mask, resets = (part[:, row] for part in batch)
    starts = np.flatnonzero(resets)
    for begin, end in itertools.pairwise(starts):
        symbols = inputs[begin:end].argmax(-1)
        request = int(np.flatnonzero(symbols == REQUEST)[0])
        assert (symbols[request + 1 :] == BLANK).all()
        assert not mask[begin : begin + request + 1].any()
        assert mask[begin + request + 1 : end].all()
        yield symbols[:request].tolist(), targets[begin + request + 1 : end].tolist()


def test_copy_targets_are_the_bits_that_were_shown():
    task = CopyTask(rows=5, seed=1)
    state = task.start() | {"limit": np.asarray(9)}
    batch, _ = task.read(state, 400)
    lengths, ones = set(), []
    for row in range(5):
        for bits, answers in parsed(batch, row):
            assert bits == answers
            lengths.add(len(bits))
            ones += bits
    assert lengths == {4, 5, 6, 7, 8, 9}
    assert 0.4 < np.mean(ones) < 0.6


def test_copy_rows_end_at_different_times():
    task = CopyTask(rows=8)
    batch, _ = task.read(task.start() | {"limit": np.asarray(6)}, 200)
    assert any(0 < reset.sum() < 8 for reset in batch.resets)


def test_copy_streams_differ_by_seed():
    one, other = (CopyTask(4, seed).read(CopyTask(4, seed).start(), 60)[0] for seed in (0, 1))
    assert (one.targets != other.targets).any()


def test_limit_grows_only_when_a_window_is_solved():
    task = CopyTask(rows=4)
    state = task.start()
    state = task.observe(state, bits=0.14 * 499, predictions=499)
    assert task.report(state) == {"copy_length": 1}
    state = task.observe(state, bits=0.14, predictions=1)
    assert task.report(state) == {"copy_length": 2}
    state = task.observe(state, bits=0.16 * 500, predictions=500)
    assert task.report(state) == {"copy_length": 2}
    state = task.observe(state, bits=0.0, predictions=499)
    assert task.report(state) == {"copy_length": 2}
