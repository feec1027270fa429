"""Classes of `Builder.aiOnnx...` and `Builder.aiGraphcore`. Their type stubs are generated from the
same tables, by docs/make_popart_stubs.py."""

from __future__ import annotations

from popart.builder.opsets import find_class, find_graphcore_class

AiOnnxOpset6 = find_class(6)
AiOnnxOpset7 = find_class(7)
AiOnnxOpset8 = find_class(8)
AiOnnxOpset9 = find_class(9)
AiOnnxOpset10 = find_class(10)
AiOnnxOpset11 = find_class(11)
AiGraphcoreOpset1 = find_graphcore_class()
