"""Cases of PopTorch's layers: convolutions, pools, padding, activations, norms, losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.poptorch.sweep.pointwise import Table
from tests.poptorch.sweep.values import FLOATS, INF, NAN, Case, draw, name_type, plain, special

_SIZES = {1: (2, 4, 7), 2: (2, 4, 7, 6), 3: (1, 4, 5, 6, 4)}


def _make(layer: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    torch.manual_seed(0)
    return layer(*args, **keywords).eval()


def _convolutions(layer: Any, axes: int) -> Iterator[Case]:
    x = draw(*_SIZES[axes])
    options: list[dict[str, Any]] = [
        {}, {"bias": False}, {"padding": 1}, {"stride": 2}, {"dilation": 2}, {"groups": 2},
        {"padding": "same"}, {"padding": "valid"}, {"padding": 1, "padding_mode": "reflect"},
        {"padding": 2, "padding_mode": "circular"}, {"padding": 1, "padding_mode": "replicate"},
        {"padding": 1, "stride": 3, "groups": 4},
    ]  # fmt: skip
    for kernel, given in itertools.product((1, 2, 3), options):
        if kernel == 1 and given.get("padding_mode"):
            continue
        yield Case(f"{kernel} {given}", _make(layer, 4, 8, kernel, **given), (x,))
    yield Case("no batch", _make(layer, 4, 8, 2), (x[0],))
    yield Case("half", _make(layer, 4, 8, 2).half(), (x.half(),))
    yield Case("special", _make(layer, 4, 2, 1), (torch.where(x > 1.5, NAN, x),))


def _transposed(layer: Any, axes: int) -> Iterator[Case]:
    x = draw(*_SIZES[axes])
    options: list[dict[str, Any]] = [
        {}, {"bias": False}, {"stride": 2}, {"stride": 2, "output_padding": 1}, {"padding": 1},
        {"groups": 2}, {"dilation": 2}, {"stride": 3, "padding": 1, "output_padding": 2},
        {"dilation": 2, "stride": 2, "output_padding": 1},
    ]  # fmt: skip
    for kernel, given in itertools.product((2, 3), options):
        yield Case(f"{kernel} {given}", _make(layer, 4, 8, kernel, **given), (x,))


def _pools(name: str, axes: int) -> Iterator[Case]:
    x = draw(*_SIZES[axes])
    layer = getattr(nn, f"{name}{axes}d")
    options: list[dict[str, Any]] = [
        {}, {"stride": 1}, {"stride": 3}, {"padding": 1}, {"ceil_mode": True},
        {"stride": 1, "padding": 1, "ceil_mode": True}, {"stride": 2, "ceil_mode": True},
    ]  # fmt: skip
    options += (
        [{"dilation": 2}, {"stride": 1, "dilation": 2, "padding": 1}]
        if name == "MaxPool"
        else [{"count_include_pad": False, "padding": 1}]
    )
    if name == "AvgPool" and axes > 1:
        options.append({"divisor_override": 5})
    for kernel, given in itertools.product((2, 3), options):
        yield Case(f"{kernel} {given}", layer(kernel, **given), (x,))
    poisoned = x.clone()
    poisoned.reshape(-1)[3], poisoned.reshape(-1)[9] = NAN, -INF
    yield Case("special", layer(2), (poisoned,))
    yield Case("half", layer(2), (x.half(),))
    yield Case("no batch", layer(2), (x[0],))


def _adaptive(name: str, axes: int) -> Iterator[Case]:
    x = draw(*_SIZES[axes])
    layer = getattr(nn, f"{name}{axes}d")
    for size in (1, 2, 3, 4):
        yield Case(f"{size}", layer(size), (x,))
    if axes > 1:
        yield Case("None", layer((None,) + (2,) * (axes - 1)), (x,))


def _padding(layer: Any, axes: int, constant: bool) -> Iterator[Case]:
    x = draw(*_SIZES[axes])
    amounts = [1, 2, tuple(range(2 * axes)), tuple(range(2 * axes))[::-1], 0]
    amounts += [tuple([-1, 2] * axes), tuple([1, -1] * axes), tuple([-1] * 2 * axes)]
    for amount in amounts:
        values = ((0.0,), (2.5,), (NAN,)) if constant else ((),)
        for value in values:
            yield Case(f"{amount} {value}", layer(amount, *value), (x,))
    yield Case("half", layer(1, *([2.0] if constant else [])), (x.half(),))


def _activation(layer: Any) -> Iterator[Case]:
    for dtype in FLOATS:
        yield Case(f"special {name_type(dtype)}", _cast(layer, dtype), (special(dtype),))
        yield Case(f"plain {name_type(dtype)}", _cast(layer, dtype), (plain(dtype),))


def _cast(layer: Any, dtype: Any) -> Any:
    return layer().to(dtype) if dtype is not torch.double else layer()


def _norm(make: Callable[..., Any], *sizes: tuple[int, ...]) -> Iterator[Case]:
    for size, affine, eps in itertools.product(sizes, (True, False), (1e-5, 0.1)):
        yield Case(f"{size} {affine} {eps}", _make(make, size, affine, eps), (draw(*size),))
    size = sizes[0]
    yield Case("half", _make(make, size, True, 1e-3).half(), (draw(*size).half(),))
    poisoned = draw(*size)
    poisoned.reshape(-1)[0] = NAN
    yield Case("special", _make(make, size, True, 1e-3), (poisoned,))


def _batch_norms() -> Iterator[Case]:
    for layer, size in ((nn.BatchNorm1d, (5, 4)), (nn.BatchNorm1d, (3, 4, 2)),
                        (nn.BatchNorm2d, (2, 4, 3, 3)), (nn.BatchNorm3d, (2, 4, 2, 3, 2))):  # fmt: skip
        for affine, momentum, track in itertools.product(
            (True, False), (0.1, 0.0, 1.0, None), (True, False)
        ):
            module = _make(layer, 4, affine=affine, momentum=momentum, track_running_stats=track)
            if track:
                module.running_mean.copy_(draw(4)), module.running_var.copy_(draw(4).abs() + 0.1)
            yield Case(f"{layer.__name__} {affine} {momentum} {track}", module, (draw(*size),))
    module = _make(nn.BatchNorm1d, 4).half()
    yield Case("half", module, (draw(5, 4).half(),))
    module = _make(nn.BatchNorm1d, 4).half()
    module.running_mean, module.running_var = draw(4), draw(4).abs()
    yield Case(
        "float statistics", lambda x: module(x).float() * 0 + x.float() * 0, (draw(5, 4).half(),)
    )


def _recurrent(layer: Any) -> Iterator[Case]:
    for batch_first, bias, size in itertools.product((False, True), (True, False), ((5, 2, 3),)):
        yield Case(
            f"{batch_first} {bias}", _make(layer, 3, 4, batch_first=batch_first, bias=bias),
            (draw(*size),),
        )  # fmt: skip
    yield Case("layers", _make(layer, 3, 4, num_layers=2), (draw(5, 2, 3),))
    yield Case("both directions", _make(layer, 3, 4, bidirectional=True), (draw(5, 2, 3),))
    yield Case("no batch", _make(layer, 3, 4), (draw(5, 3),))


def _embeddings() -> Iterator[Case]:
    weight, i = draw(10, 4), torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    yield Case("Embedding", F.embedding, (i, weight))
    yield Case("padding", lambda i, w: F.embedding(i, w, padding_idx=2), (i.reshape(2, 4), weight))
    yield Case("int", lambda i, w: F.embedding(i, w), (i.int(), weight.half()))
    offsets = {
        "plain": [0, 3, 5], "empty": [0, 0, 4, 4, 8], "one": [0], "empty last": [0, 8],
    }  # fmt: skip
    for (name, starts), mode, last, padding in itertools.product(
        offsets.items(), ("sum", "mean", "max"), (False, True), (None, 2, -1)
    ):
        given = torch.tensor([*starts, 8] if last else starts)
        yield Case(
            f"bag {name} {mode} {last} {padding}",
            lambda i, w, o, m=mode, c=last, p=padding: F.embedding_bag(
                i, w, o, mode=m, include_last_offset=c, padding_idx=p
            ),
            (i, weight, given),
        )
    for dtype in (torch.float, torch.half):
        yield Case(
            f"bag rows {name_type(dtype)}", lambda i, w: F.embedding_bag(i, w),
            (i.reshape(4, 2), weight.to(dtype)),
        )  # fmt: skip
        yield Case(
            f"bag weights {name_type(dtype)}",
            lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
            (i.reshape(4, 2), weight.to(dtype), draw(4, 2).to(dtype)),
        )


def _losses() -> Iterator[Case]:
    x, y = draw(4, 3), draw(4, 3, seed=1)
    unit, sign = torch.sigmoid(y), torch.sign(draw(4, 3, seed=2))
    labels = torch.tensor([0, 2, 1, 2])
    weight = torch.tensor([0.5, 1.0, 2.0])
    pairs: dict[str, tuple[Any, tuple[Any, ...], list[dict[str, Any]]]] = {
        "l1_loss": (F.l1_loss, (x, y), [{}]),
        "mse_loss": (F.mse_loss, (x, y), [{}]),
        "smooth_l1_loss": (F.smooth_l1_loss, (x, y), [{}, {"beta": 0.0}, {"beta": 2.0}]),
        "huber_loss": (F.huber_loss, (x, y), [{}, {"delta": 0.5}]),
        "cross_entropy": (F.cross_entropy, (x, labels), [
            {}, {"weight": weight}, {"ignore_index": 2}, {"label_smoothing": 0.1},
            {"weight": weight, "ignore_index": 0, "label_smoothing": 0.2}]),
        "nll_loss": (lambda x, y, **k: F.nll_loss(F.log_softmax(x, 1), y, **k), (x, labels),
                     [{}, {"weight": weight}, {"ignore_index": 2}]),
        "binary_cross_entropy": (F.binary_cross_entropy, (torch.sigmoid(x), unit),
                                 [{}, {"weight": weight}]),
        "bce_with_logits": (F.binary_cross_entropy_with_logits, (x, unit),
                            [{}, {"weight": weight}, {"pos_weight": weight}]),
        "kl_div": (F.kl_div, (F.log_softmax(x, 1), F.softmax(y, 1)), [{}]),
        "kl_div log": (F.kl_div, (F.log_softmax(x, 1), F.log_softmax(y, 1)),
                       [{"log_target": True}]),
        "poisson_nll_loss": (F.poisson_nll_loss, (x, unit * 4),
                             [{}, {"log_input": False}, {"full": True}]),
        "hinge_embedding_loss": (F.hinge_embedding_loss, (x, sign), [{}, {"margin": 0.5}]),
        "soft_margin_loss": (F.soft_margin_loss, (x, sign), [{}]),
        "cosine_embedding_loss": (F.cosine_embedding_loss, (x, y, sign[:, 0]),
                                  [{}, {"margin": 0.3}]),
        "margin_ranking_loss": (F.margin_ranking_loss, (x, y, sign), [{}, {"margin": 0.5}]),
        "triplet_margin_loss": (F.triplet_margin_loss, (x, y, draw(4, 3, seed=3)),
                                [{}, {"p": 1.0}, {"swap": True}, {"margin": 0.0}]),
    }  # fmt: skip
    for name, (function, inputs, options) in pairs.items():
        for given, reduction in itertools.product(options, ("mean", "sum", "none", "batchmean")):
            if reduction == "batchmean" and "kl_div" not in name:
                continue
            yield Case(
                f"{name} {sorted(given)} {reduction}",
                lambda *t, f=function, g=given, r=reduction: f(*t, **g, reduction=r), inputs,
            )  # fmt: skip


def _upsampling() -> Iterator[Case]:
    sizes: list[dict[str, Any]] = [{"scale_factor": 2}, {"scale_factor": 1.5}, {"size": 9},
                                   {"scale_factor": 3}]  # fmt: skip
    for axes, given in itertools.product((1, 2, 3), sizes):
        yield Case(f"nearest {axes} {given}", nn.Upsample(**given), (draw(*_SIZES[axes]),))
    for given in sizes:
        yield Case(f"bicubic {given}", nn.Upsample(mode="bicubic", **given), (draw(1, 2, 5, 4),))
    for factor, corners in itertools.product((2, 3), (False, True)):
        yield Case(
            f"bilinear {factor} {corners}",
            nn.Upsample(scale_factor=factor, mode="bilinear", align_corners=corners),
            (draw(1, 2, 5, 4),),
        )


_ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "ELU": nn.ELU, "ELU(0)": lambda: nn.ELU(0.0), "CELU": nn.CELU, "CELU(2)": lambda: nn.CELU(2.0),
    "GELU": nn.GELU, "GELU(tanh)": lambda: nn.GELU("tanh"), "Hardshrink": nn.Hardshrink,
    "Hardshrink(0)": lambda: nn.Hardshrink(0.0), "LeakyReLU": nn.LeakyReLU,
    "LeakyReLU(0)": lambda: nn.LeakyReLU(0.0), "LogSoftmax": lambda: nn.LogSoftmax(-1),
    "Mish": nn.Mish, "ReLU": nn.ReLU, "ReLU6": nn.ReLU6, "SELU": nn.SELU, "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid, "LogSigmoid": nn.LogSigmoid, "Softmax": lambda: nn.Softmax(-1),
    "Softplus": nn.Softplus, "Softplus(2, 1)": lambda: nn.Softplus(2, 1), "Softsign": nn.Softsign,
    "Softshrink": nn.Softshrink, "Softshrink(0)": lambda: nn.Softshrink(0.0), "Tanh": nn.Tanh,
    "PReLU": nn.PReLU, "RReLU": lambda: nn.RReLU().eval(), "Hardtanh": nn.Hardtanh,
    "Hardtanh(0, 2)": lambda: nn.Hardtanh(0, 2), "Threshold": lambda: nn.Threshold(0.1, 20),
    "Hardsigmoid": nn.Hardsigmoid, "Hardswish": nn.Hardswish, "Tanhshrink": nn.Tanhshrink,
}  # fmt: skip
_PADS = {
    "ReflectionPad": (1, 2), "ReplicationPad": (1, 2, 3), "ZeroPad": (2,), "ConstantPad": (1, 2, 3),
}  # fmt: skip


def _simple(*cases: Case) -> Callable[[], Iterator[Case]]:
    return lambda: iter(cases)


LAYERS: Table = {
    **{
        f"nn.Conv{n}d": partial(_convolutions, getattr(nn, f"Conv{n}d"), n) for n in (1, 2, 3)
    },
    **{
        f"nn.ConvTranspose{n}d": partial(_transposed, getattr(nn, f"ConvTranspose{n}d"), n)
        for n in (1, 2, 3)
    },
    **{
        f"nn.{name}{n}d": partial(_pools, name, n)
        for name in ("MaxPool", "AvgPool") for n in (1, 2, 3)
    },
    **{f"nn.AdaptiveAvgPool{n}d": partial(_adaptive, "AdaptiveAvgPool", n) for n in (1, 2, 3)},
    **{
        f"nn.{name}{n}d": partial(_padding, getattr(nn, f"{name}{n}d"), n, name == "ConstantPad")
        for name, axes in _PADS.items() for n in axes
    },
    **{f"nn.{name}": partial(_activation, layer) for name, layer in _ACTIVATIONS.items()},
    "F.glu": _simple(
        Case("last", F.glu, (draw(3, 4),)), Case("first", lambda x: F.glu(x, 0), (draw(4, 3),)),
        Case("odd", F.glu, (draw(3, 3),)),
    ),
    "nn.BatchNorm": _batch_norms,
    "nn.LayerNorm": partial(
        _norm, lambda size, affine, eps: nn.LayerNorm(size[1:], eps, affine), (3, 4), (2, 3, 4)
    ),
    "nn.GroupNorm": partial(
        _norm, lambda size, affine, eps: nn.GroupNorm(2, size[1], eps, affine), (2, 4, 3), (3, 4)
    ),
    **{
        f"nn.InstanceNorm{n}d": partial(
            _norm,
            lambda size, affine, eps, n=n: getattr(nn, f"InstanceNorm{n}d")(
                size[1], eps, affine=affine
            ),
            _SIZES[n],
        )
        for n in (1, 2, 3)
    },
    "nn.RNN": partial(_recurrent, nn.RNN),
    "nn.GRU": partial(_recurrent, nn.GRU),
    "nn.LSTM": partial(_recurrent, nn.LSTM),
    "nn.Linear": _simple(
        *(Case(f"{bias} {shape}", _make(nn.Linear, 4, 3, bias=bias), (draw(*shape),))
          for bias in (True, False) for shape in ((4,), (2, 4), (2, 3, 4))),
        Case("half", _make(nn.Linear, 4, 3).half(), (draw(2, 4).half(),)),
        Case("Identity", nn.Identity(), (draw(2),)),
    ),
    "nn.Bilinear": _simple(
        Case("bias", _make(nn.Bilinear, 3, 4, 5), (draw(2, 3), draw(2, 4))),
        Case("no bias", _make(nn.Bilinear, 3, 4, 5, bias=False), (draw(2, 6, 3), draw(2, 6, 4))),
    ),
    "nn.Dropout": _simple(Case("eval", nn.Dropout(0.5).eval(), (draw(3),))),
    "nn.Embedding": _embeddings,
    "losses": _losses,
    "nn.Upsample": _upsampling,
}  # fmt: skip
