"""Custom operators of Graphcore's published libraries, against references by hand in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import poptorch  # noqa: E402 # needs torch

CHIP = "ai.graphcore"


def _call(
    name: str,
    domain: str,
    inputs: Sequence[Any],
    examples: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return a custom operator's results on the simulated IPU, as numpy arrays."""

    def forward(*tensors: Any) -> list[Any]:
        return poptorch.custom_op(tensors, name, domain, 1, examples, attributes)

    made = poptorch.inferenceModel(forward)(*(torch.from_numpy(each) for each in inputs))
    return [each.numpy() for each in made]


def _suppress(scores, boxes, iou, least, count):
    """Return what Nms returns, by loops: the best pair of box and class, again and again."""
    images, num_boxes, num_classes = scores.shape
    indices = np.full((images, count), -1, np.int32)
    classes = np.full((images, count), 2**31 - 1, np.int32)
    kept, places = np.zeros((images, count), np.float32), np.zeros((images, count, 4), np.float32)
    lengths = np.zeros(images, np.int32)
    for image in range(images):
        alive = {
            (box, kind)
            for box in range(num_boxes)
            for kind in range(num_classes)
            if scores[image, box, kind] > least
        }
        while alive and lengths[image] < count:
            best = max(alive, key=lambda each: (scores[(image, *each)], -each[0], -each[1]))
            place = lengths[image]
            indices[image, place], classes[image, place] = best
            kept[image, place] = scores[(image, *best)]
            places[image, place] = boxes[image, best[0]]
            lengths[image] += 1
            alive = {
                each
                for each in alive - {best}
                if each[1] != best[1] or _share(boxes[image, each[0]], boxes[image, best[0]]) <= iou
            }
    return indices, kept, places, classes, lengths


def _share(first, second):
    width = max(0, min(first[2], second[2]) - max(first[0], second[0]))
    height = max(0, min(first[3], second[3]) - max(first[1], second[1]))
    both = [(each[2] - each[0]) * (each[3] - each[1]) for each in (first, second)]
    return width * height / (sum(both) - width * height)


def _make_boxes(images: int, count: int, classes: int) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    corner = random.uniform(0, 6, (images, count, 2))
    boxes = np.concatenate([corner, corner + random.uniform(1, 5, corner.shape)], -1)
    scores = random.uniform(0, 1, (images, count, classes))
    return scores.astype(np.float32), boxes.astype(np.float32)


@pytest.mark.parametrize("count", [4, 30])
def test_nms_keeps_the_best_boxes_of_each_class_and_image(count: int) -> None:
    scores, boxes = _make_boxes(2, 12, 3)
    examples = [
        torch.zeros(2, count, dtype=torch.long),
        torch.zeros(2, count),
        torch.zeros(2, count, 4),
        torch.zeros(2, count, dtype=torch.int),
        torch.zeros(2, dtype=torch.int),
    ]
    attributes = {
        "threshold": 0.3,
        "scoreThreshold": 0.4,
        "numDetections": count,
        "useGather": 1,
    }
    made = _call("Nms", CHIP, [scores, boxes], examples, attributes)
    expected = _suppress(scores, boxes, 0.3, 0.4, count)
    assert expected[4].min() < 30
    for found, wanted in zip(made, expected, strict=True):
        assert np.array_equal(found, wanted)


def test_soft_nms_lowers_the_scores_of_overlapping_boxes() -> None:
    scores = np.array([[[0.9], [0.8], [0.7]]], np.float32)
    boxes = np.array([[[0, 0, 2, 2], [0, 0, 2, 1], [5, 5, 6, 6]]], np.float32)
    examples = [torch.zeros(1, 3), torch.zeros(1, 3)]
    attributes = {"numDetections": 3, "sigma": 0.5, "scoreThreshold": 0.1}
    indices, kept, *_ = _call("Nms", CHIP, [scores, boxes], examples, attributes)
    assert indices.tolist() == [[0, 2, 1]]
    assert np.allclose(kept, [[0.9, 0.7, 0.8 * np.exp(-(0.5**2) / 0.5)]], atol=1e-6)


@pytest.mark.parametrize("name", ["RemapCE", "CopyTensor"])
def test_operators_that_move_a_tensor_return_it(name: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(_call(name, CHIP, [x], [torch.zeros(2, 3)], {"grain_size": 8})[0], x)


def test_autograd_proxy_returns_its_first_input() -> None:
    x = np.arange(4, dtype=np.float32)
    assert np.array_equal(_call("AutogradProxy", CHIP, [x, -x], [torch.zeros(4)])[0], x)


def test_leaky_relu_scales_negative_numbers() -> None:
    x = np.array([-2.0, 0.0, 3.0], np.float32)
    made = _call("LeakyRelu", "custom.ops", [x], [torch.zeros(3)], {"alpha": 0.25})
    assert made[0].tolist() == [-0.5, 0.0, 3.0]


def test_fast_gather_takes_elements_of_the_last_dimension() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    index = np.random.default_rng(1).integers(0, 5, (2, 3, 4)).astype(np.int32)
    made = _call("FastGatherLastDim", "poptorch.custom_ops", [x, index], [torch.zeros(2, 3, 4)])
    assert np.array_equal(made[0], np.take_along_axis(x, index, -1))


@pytest.mark.parametrize(("name", "power"), [("L1Distance", 1), ("L2Distance", 2)])
def test_distances_are_between_all_pairs_of_rows(name: str, power: int) -> None:
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(rows, 4)).astype(np.float32) for rows in (3, 5))
    made = _call(name, CHIP, [x, y], [torch.zeros(3, 5)], {"root_path": "."})
    difference = np.abs(x[:, None] - y[None]) ** power
    assert np.allclose(made[0], difference.sum(-1) ** (1 / power), atol=1e-5)


def test_group_quantize_decompress_unpacks_four_numbers_of_a_word() -> None:
    random = np.random.default_rng(0)
    numbers = random.integers(0, 16, (2, 3, 8))
    words = sum(numbers[..., place::4] << 12 - 4 * place for place in range(4))
    packed = words.astype(np.uint16).view(np.int16)
    assert packed.min() < 0
    scale, bias = (random.normal(size=(2, 3, 1)).astype(np.float32) for _ in range(2))
    made = _call(
        "GroupQuantizeDecompress",
        "optimum.custom_ops",
        [packed, scale, bias],
        [torch.zeros(2, 24)],
        {"root_path": "."},
    )
    assert np.allclose(made[0], (numbers * scale + bias).reshape(2, 24), atol=1e-6)


BLOCKS = np.arange(1, 9, dtype=np.float32).reshape(2, 2, 2)
DENSE = np.zeros((4, 6), np.float32)
DENSE[0:2, 4:6], DENSE[2:4, 0:2] = BLOCKS


@pytest.mark.parametrize("mode", ["sparse_dense", "dense_sparse"])
def test_static_sparse_matmul_multiplies_by_a_matrix_of_blocks(mode: str) -> None:
    shape = (6, 3) if mode == "sparse_dense" else (3, 4)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = DENSE @ x if mode == "sparse_dense" else x @ DENSE
    attributes = {
        "mode": mode,
        "n_rows": 4,
        "n_cols": 6,
        "block_size": 2,
        "rows": [0, 2],
        "cols": [4, 0],
        "values": BLOCKS.flatten().tolist(),
    }
    made = _call("StaticSparseMatmul", CHIP, [x], [torch.zeros(expected.shape)], attributes)
    assert np.allclose(made[0], expected, atol=1e-5)


def test_static_sparse_matmul_rejects_an_unknown_mode() -> None:
    attributes = {
        "mode": "both",
        "n_rows": 2,
        "n_cols": 2,
        "block_size": 1,
        "rows": [0],
        "cols": [0],
        "values": [1.0],
    }
    with pytest.raises(poptorch.Error, match="mode is 'both'; expected 'sparse_dense'"):
        _call(
            "StaticSparseMatmul",
            CHIP,
            [np.zeros((2, 2), np.float32)],
            [torch.zeros(2, 2)],
            attributes,
        )


def test_static_dyn_sparse_counts_places_in_blocks() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    attributes = {
        "n_rows": 4,
        "n_cols": 6,
        "block_size": 2,
        "rows": [0, 1],
        "cols": [2, 0],
        "values": BLOCKS.flatten().tolist(),
    }
    made = _call("StaticDynSparse", CHIP, [x], [torch.zeros(4, 3)], attributes)
    assert np.allclose(made[0], DENSE @ x, atol=1e-5)
