"""Compressed messages: same bits on all ranks, nothing lost for long, and training that gets as far."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.memory_group import run_threads
from support.ranks import run_ranks

import ringtrain as rt
from ring.reference import assert_same_bits, made
from ring.worlds import all_raise, world_of
from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain.compression import Compressor, halves, int8
from ringtrain.errors import ConfigurationError, MismatchError
from ringtrain.optim import SGD, AdamW, HostOptimizer

Array = NDArray[Any]
SIZE = 3
DIGITS = Path(__file__).parents[2] / "examples" / "digits.csv.gz"


@pytest.mark.parametrize("compression", ["bf16", "fp16", "int8"])
@pytest.mark.parametrize("transport", ["memory", "shm"])
@pytest.mark.parametrize("length", [0, 1, 5, 3000], ids=["empty", "one", "fewer-than-two-each", "many"])
def test_all_ranks_hold_the_same_bits(compression: str, transport: str, length: int) -> None:
    """Close to the mean, and the same everywhere."""
    parts = [made((length,), "float32", rank) for rank in range(SIZE)]
    expected = sum(parts, np.zeros(length, np.float32)) / SIZE
    with world_of(SIZE, transport) as world:
        results = world.run(lambda rank: Compressor(compression).allreduce_(parts[rank].copy(), name="w"))
    for got in results:
        assert_same_bits(got, results[0])
        assert np.allclose(got, expected, atol=0.15 if compression == "int8" else 0.05)


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_a_long_tensor_is_sent_in_parts(compression: str) -> None:
    """Cut or not, and from one message to the next, it gets the bits of tensors that are sent by themselves."""
    length = (9 << 20) // 4 + 3
    parts = [made((length,), "float32", rank) for rank in range(SIZE)]
    halves_of = [slice(0, length // 2), slice(length // 2, length)]

    def work(rank: int) -> tuple[Array, Array]:
        compressor, whole, apart = Compressor(compression), parts[rank].copy(), parts[rank].copy()
        for _ in range(2):
            compressor.allreduce_(whole, name="whole")
            for index, cut in enumerate(halves_of):
                compressor.allreduce_(apart[cut], name=f"half {index}")
        return whole, apart

    with world_of(SIZE) as world:
        results = world.run(work)
    for whole, apart in results:
        assert_same_bits(whole, apart)
        assert_same_bits(whole, results[0][0])


@pytest.mark.parametrize("compression", ["bf16", "fp16", "int8"])
def test_what_rounding_loses_comes_later(compression: str) -> None:
    """The sum of many messages of one tensor is as exact as one message, not off by many roundings."""
    steps = 64
    parts = [made((1000,), "float32", rank) for rank in range(SIZE)]
    exact = steps * np.sum(np.array(parts, np.float64), axis=0)

    def accumulated(feedback: bool) -> Array:
        def work(rank: int) -> Array:
            total, compressor = np.zeros(1000), Compressor(compression)
            for step in range(steps):
                name = "w" if feedback else f"w{step}"
                total += compressor.allreduce_(parts[rank].copy(), rt.Sum, name=name)
            return total

        with world_of(SIZE) as world:
            return world.run(work)[0]

    with_feedback = np.abs(accumulated(True) - exact).mean()
    without = np.abs(accumulated(False) - exact).mean()
    # Rounding the sum itself is not fed back for half types: it is one of their four roundings.
    assert with_feedback < without * (0.1 if compression == "int8" else 0.8)


@pytest.mark.parametrize("compression", ["bf16", "fp16", "int8"])
def test_a_compressor_goes_on_with_the_same_bits(compression: str) -> None:
    """The compressor's state has the rounding errors: a resumed training has the bits of an uninterrupted one."""

    def work(rank: int) -> None:
        def messages(compressor: Compressor, steps: range) -> list[Array]:
            parts = (made((37,), "float32", 10 * step + rank) for step in steps)
            return [compressor.allreduce_(part, name="w") for part in parts]

        whole, first = Compressor(compression), Compressor(compression)
        expected = messages(whole, range(6))[3:]
        messages(first, range(3))
        state = first.state_dict()
        messages(first, range(3, 4))  # the state is a copy
        resumed, forgetful = Compressor(compression), Compressor(compression)
        resumed.load_state_dict(state)
        for got, wanted in zip(messages(resumed, range(3, 6)), expected, strict=True):
            assert_same_bits(got, wanted)
        again = messages(forgetful, range(3, 6))
        assert any((got != wanted).any() for got, wanted in zip(again, expected, strict=True))

    with world_of(SIZE) as world:
        world.run(work)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "of compression None"),
        (
            {"compression": "int8", "lost": {}, "lost_results": {}},
            'of compression .int8.; this Compressor has "bf16"',
        ),
        ({"compression": "bf16", "lost": {}}, 'no dict "lost_results"'),
        (
            {"compression": "bf16", "lost": {"w": np.ones(3)}, "lost_results": {}},
            "is float64, 1-d; expected float32",
        ),
    ],
    ids=["empty", "another-compression", "incomplete", "another-dtype"],
)
def test_a_state_of_something_else_is_refused(state: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Compressor("bf16").load_state_dict(state)


def test_ranks_that_compress_differently_are_told() -> None:
    with world_of(2) as world:
        errors = world.errors(lambda rank: Compressor(["bf16", "int8"][rank]).allreduce_(np.ones(4, "f4"), name="w"))
        all_raise(errors, MismatchError)


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigurationError, match='compression is "zip"; expected one of bf16, fp16, int8'):
        Compressor("zip")
    with pytest.raises(ConfigurationError, match="float64; expected float32"):
        Compressor("bf16").allreduce_(np.ones(3), name="w")
    with pytest.raises(ConfigurationError, match="supports only Sum and Average"):
        Compressor("bf16").allreduce_(np.ones(3, np.float32), rt.Max, name="w")
    with pytest.raises(ConfigurationError, match='compression is "int7"; expected one of bf16, fp16, int8'):
        run_threads(lambda group: HostOptimizer({"w": np.ones(3)}, SGD(0.1), compression="int7", group=group), 1)
    with pytest.raises(ConfigurationError, match="sharded=False"):
        run_threads(
            lambda group: HostOptimizer({"w": np.ones(3)}, SGD(0.1), compression="bf16", sharded=False, group=group),
            1,
        )


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_compiled_and_numpy_lose_the_same_bits(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overflow, infinities and subnormal numbers included."""
    values = np.concatenate([made((5000,), "float32", 0), np.float32([0, -0.0, 1e9, -np.inf, 1e-7, 3e-39, 65520])])
    results = []
    for library in (halves.native_library, lambda: None):
        with monkeypatch.context() as patch:
            patch.setattr(halves, "native_library", library)
            half = np.empty(len(values), halves.half_dtype(compression))
            lost, wide = made((len(values),), "float32", 1) / 1000, np.empty(len(values), np.float32)
            halves.squeeze(values, lost, half)
            halves.stretch_half(half, wide)
            results.append((half, lost, wide))
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("largest", [1e-45, 2e-43, 1e-41, 3e-39, 1e-37, 1e-35])
def test_tiny_values_keep_their_sign_as_int8(largest: float) -> None:
    """The sent values plus the residual for the next step equal the input, within a rounding."""
    values = np.float32([largest, -largest, largest / 3, 0])
    lost = np.zeros(4, np.float32)
    sent = int8.decode_int8(int8.encode(values, lost), 4)
    assert (np.abs(sent) <= np.abs(values) * 1.01).all()
    assert (np.sign(sent) * np.sign(values) >= 0).all()
    assert np.allclose(sent.astype(np.float64) + lost, values, rtol=1e-5, atol=0)


def digits() -> tuple[Array, Array]:
    table = np.loadtxt(DIGITS, delimiter=",")
    return table[:, :-1].astype(np.float32) / 16, table[:, -1].astype(np.intp)


def trained(group: CollectiveGroup, compression: str | None) -> tuple[float, Array]:
    """Softmax regression on handwritten digits; returns its accuracy on the last 297 images, and the weights."""
    images, labels = digits()
    optimizer = HostOptimizer(
        {"kernel": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)},
        AdamW(lr=0.01),
        compression=compression,
        bucket_bytes=1000,
        group=group,
    )
    mine = np.arange(group.rank, 1500, group.size)
    for step in range(150):
        batch = mine[step * 50 % len(mine) :][:50]
        values = images[batch] @ optimizer.weights["kernel"] + optimizer.weights["bias"]
        odds = np.exp(values - values.max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True)
        error[np.arange(len(batch)), labels[batch]] -= 1
        optimizer.submit("bias", error.mean(axis=0))
        optimizer.submit("kernel", images[batch].T @ error / len(batch))
        optimizer.step()
    values = images[1500:] @ optimizer.weights["kernel"] + optimizer.weights["bias"]
    return float((values.argmax(axis=1) == labels[1500:]).mean()), optimizer.weights["kernel"].copy()


@pytest.mark.parametrize("compression", ["bf16", "fp16", "int8"])
def test_training_gets_as_far(compression: str) -> None:
    """Digits: within one point of the accuracy in float32, and the same bits on all ranks."""
    plain = run_threads(lambda group: trained(group, None), 2)
    squeezed = run_threads(lambda group: trained(group, compression), 2)
    assert_same_bits(squeezed[0][1], squeezed[1][1])
    assert not np.array_equal(squeezed[0][1], plain[0][1])
    assert plain[0][0] > 0.86
    assert abs(squeezed[0][0] - plain[0][0]) <= 0.01


def compressed_steps(compression: str) -> bytes:
    rt.init()
    start = {"w": np.zeros(1300, np.float32), "b": np.zeros((), np.float32), "none": np.zeros(0, np.float32)}
    optimizer = HostOptimizer(start, SGD(0.1), compression=compression, bucket_bytes=1)
    for step in range(4):
        for name, weights in start.items():
            optimizer.submit(name, made(weights.shape, "float32", rt.rank(), seed=step))
        optimizer.step()
    rt.shutdown()
    return b"".join(weights.tobytes() for weights in optimizer.weights.values())


@pytest.mark.parametrize("transport", ["grpc", "auto"])
@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_ranks_that_compress_hold_the_same_weights(compression: str, transport: str) -> None:
    """Also where shards have no elements, or fewer than a block."""
    bits = run_ranks(compressed_steps, 3, compression, env={"RINGTRAIN_TRANSPORT": transport})
    assert bits[1:] == bits[:1] * 2
    assert any(bits[0])


def test_a_gradient_that_is_not_finite_shows() -> None:
    """On all ranks alike, and what it lost does not stay."""

    def train(group: CollectiveGroup) -> list[bool]:
        optimizer = HostOptimizer({"w": np.zeros(1500, np.float32)}, SGD(1.0), compression="int8", group=group)
        gradient = np.ones(1500, np.float32)
        gradient[1000] = np.inf if group.rank == 1 else 1
        optimizer.submit("w", gradient)
        optimizer.step()
        return [bool(np.isfinite(optimizer.weights["w"][at]).all()) for at in (slice(0, 200), 1000)]

    assert run_threads(train, 2) == [[True, False]] * 2


def test_training_with_int8_gets_as_far() -> None:
    """Gradient descent on digits with compressed allreduce against the same without."""
    images, labels = digits()

    def train(rank: int, compressor: Compressor | None) -> float:
        kernel = np.zeros((64, 10), np.float32)
        mine = np.arange(rank, 1500, 2)
        for _ in range(60):
            odds = np.exp(images[mine] @ kernel)
            error = odds / odds.sum(axis=1, keepdims=True)
            error[np.arange(len(mine)), labels[mine]] -= 1
            gradient = images[mine].T @ error / len(mine)
            if compressor is None:
                rt.allreduce_(gradient)
            else:
                compressor.allreduce_(gradient, name="kernel")
            kernel -= gradient
        return float(((images[1500:] @ kernel).argmax(axis=1) == labels[1500:]).mean())

    with world_of(2) as world:
        plain = world.run(lambda rank: train(rank, None))
        squeezed = world.run(lambda rank: train(rank, Compressor("int8")))
    assert squeezed[0] == squeezed[1]
    assert plain[0] > 0.88
    assert abs(squeezed[0] - plain[0]) <= 0.01


def compressed_training(compression: str, group: CollectiveGroup, steps: range, state: Any = None) -> HostOptimizer:
    """Train on gradients that depend on the rank and the step alone, from `state` if it is given."""
    params = {"w": np.zeros((40, 7), np.float32), "b": np.zeros(13, np.float32)}
    options: dict[str, Any] = {"compression": compression, "bucket_bytes": 64, "group": group}
    opt = HostOptimizer(params, SGD(lr=0.1, momentum=0.9), **options)
    if state is not None:
        opt.load_state_dict(state)
    for step in steps:
        for name, value in params.items():
            opt.submit(name, made(value.shape, "float32", 100 * step + group.rank))
        opt.step()
    return opt


@pytest.mark.parametrize("compression", ["bf16", "fp16", "int8"])
def test_a_resumed_training_has_the_bits_of_one_that_went_on(compression: str) -> None:
    """A checkpoint contains the rounding errors of the compression (error feedback)."""

    def work(group: CollectiveGroup) -> None:
        whole = compressed_training(compression, group, range(8))
        saved = compressed_training(compression, group, range(4)).state_dict()
        resumed = compressed_training(compression, group, range(4, 8), saved)
        for name, weights in whole.weights.items():
            assert_same_bits(resumed.weights[name], weights)
        assert_same_bits(
            resumed.state_dict()["error_feedback"]["lost"]["w"], whole.state_dict()["error_feedback"]["lost"]["w"]
        )
        without = compressed_training(compression, group, range(4)).state_dict(error_feedback=False)
        assert "error_feedback" not in without
        other = compressed_training(compression, group, range(4, 8), without)
        assert not np.array_equal(other.weights["w"], whole.weights["w"])

    run_threads(work, SIZE)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_is_owed_keeps_its_mean_in_a_world_of_another_size(size: int) -> None:
    """The mean over ranks of what is owed, which is what the update will get, is the same."""
    saved = run_threads(lambda group: compressed_training("int8", group, range(4)).state_dict(), SIZE)[0]
    owed = saved["error_feedback"]

    def work(group: CollectiveGroup) -> Any:
        opt = compressed_training("int8", group, range(0), saved)
        for name in ("w", "b"):
            assert_same_bits(opt.weights[name], saved["arrays"]["weights"][name])
        return opt.state_dict().get("error_feedback")

    for again in run_threads(work, size):
        if size == 1:
            assert again is None
            continue
        for name in ("w", "b"):
            assert again["lost"][name].shape == (size, *owed["lost_change"][name].shape)
            np.testing.assert_allclose(again["lost"][name].mean(0), owed["lost"][name].mean(0), rtol=1e-5, atol=1e-9)
            assert_same_bits(again["lost_change"][name], owed["lost_change"][name])


def test_feedback_of_another_model_is_refused() -> None:
    """The error names the parameter, and nothing has changed."""

    def work(group: CollectiveGroup) -> None:
        opt = compressed_training("int8", group, range(2))
        state = opt.state_dict()
        state["error_feedback"]["lost"]["b"] = np.zeros((SIZE, 5), np.float32)
        before = opt.weights["w"].copy()
        with pytest.raises(ConfigurationError, match=r'"lost" of parameter "b" is \(3, 5\); expected \(3, 13\)'):
            opt.load_state_dict(state)
        assert_same_bits(opt.weights["w"], before)

    run_threads(work, SIZE)
