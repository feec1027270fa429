"""Options of published runs, passed to the converter."""

from __future__ import annotations

import pytest
from poprt.converter import Converter
from published import converter_options


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ({}, {}),
        ({"fuse_gelu": True}, {"enable_erf_gelu": True}),
        ({"fuse_gelu": False, "batches_per_step": 2}, {"skip_passes": ["gelu_pattern"]}),
        (
            {"custom_ops": ["pre_scale", "Remap"]},
            {"used_passes": ["pre_scale"], "enable_insert_remap": True},
        ),
        (
            {"custom_ops": ["fused_attention", "pre_scale"]},
            {"used_passes": ["pre_scale", "fused_attention"]},
        ),
        ({"fp32_ops": ["LayerNormalization"]}, {"fp16_skip_op_types": ["LayerNormalization"]}),
        ({"disable_fast_norm": True}, {"disable_fast_norm": True}),
    ],
)
def test_options_of_published_runs_are_arguments_of_the_converter(published, expected):
    assert converter_options(published) == expected
    Converter(**converter_options(published))
