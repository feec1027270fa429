"""Models that crash or have damaged files while others are served."""

import os

import numpy as np
import pytest
from poplar_triton.tfserving.local import LocalModels
from poplar_triton.tfserving.models import Code, ModelSpec, ServingError
from poplar_triton.tfserving.settings import ModelSource
from sample_models import linear_model
from serving_calls import PlayedCall

CALL = PlayedCall()
WIDE = 1 << 16
"""Width of a model whose weights are read where they are mapped."""
NAMES = "a", "b"


@pytest.fixture
def serve(compile_popef, tmp_path):
    """Yield a function that opens two models; all are closed at the end."""
    opened = []

    def build(config="", width=4, **options):
        for name in NAMES:
            compile_popef(linear_model(width), name=f"{name}/1/executable.popef")
            (tmp_path / name / "config.pbtxt").write_text(config)
        opened.append(
            LocalModels([ModelSource(name, tmp_path / name) for name in NAMES], **options)
        )
        opened[-1].refresh()
        return opened[-1]

    yield build
    for models in opened:
        models.close()


def ask(models, name, width=4):
    row = {"x": np.ones((1, width), np.float32)}
    return models.find(ModelSpec(name), CALL).predict(row, (), CALL)["z"].tolist()


@pytest.mark.parametrize(
    ("said", "isolation"),
    [
        pytest.param("", "process", marks=pytest.mark.slow),
        ("none", "none"),
    ],  # a child takes a second
)
def test_models_are_isolated_on_request_unless_they_say_otherwise(serve, said, isolation):
    config = (
        f'parameters {{ key: "sim_isolation" value: {{ string_value: "{said}" }} }}' if said else ""
    )
    models = serve(config, isolated=True)
    assert ask(models, "a") == [[2] * 4]
    servable = models.find(ModelSpec("a"), CALL)
    assert servable._loaded.instance.model_state.parameters.sim_isolation == isolation


def test_a_file_that_is_truncated_in_place_fails_its_own_model_only(serve, tmp_path):
    models = serve(width=WIDE)
    path = tmp_path / "a" / "1" / "executable.popef"
    assert ask(models, "a", WIDE) == [[2] * WIDE]
    os.truncate(path, 0)
    with pytest.raises(
        ServingError, match=f"{path}: expected the file as it was opened"
    ) as refused:
        ask(models, "a", WIDE)
    assert refused.value.code is Code.INTERNAL
    assert ask(models, "b", WIDE) == [[2] * WIDE]


def test_a_small_model_whose_file_is_truncated_in_place_is_served_on(serve, tmp_path):
    models = serve()
    for name in NAMES:
        assert ask(models, name) == [[2] * 4]
        os.truncate(tmp_path / name / "1" / "executable.popef", 0)
        assert ask(models, name) == [[2] * 4]
