"""Runs one script of TensorFlow for the IPU, and writes what it compiled.

    tensorflow_script_process.py FIGURES STAND_INS SCRIPT [ARGUMENT ...]

Data sets of Keras are random numbers, and names that old numpy had are there again. STAND_INS are
names, separated by commas, of what else is there that stock TensorFlow or this machine lacks:

    keras2       tf.keras is Keras 2, tf_keras
    tensorflow1  `import tensorflow` is tensorflow.compat.v1: the script was written for TensorFlow 1
    resnet18     random weights and images for the tutorials' resnet18_inference
    cnns         random weights and images for the examples' cnns/tensorflow1/inference, an
                 initializer of tf.contrib, and a graph transformation that changes nothing
"""

from __future__ import annotations

import atexit
import collections
import importlib
import json
import os
import resource
import runpy
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

_DATASETS: Final = {
    "mnist": ((28, 28), 10),
    "fashion_mnist": ((28, 28), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}
"""Shapes of images and numbers of classes."""
_NUM_IMAGES: Final = (600, 100)
_NUM_TEXTS: Final = 64
_NUMPY_NAMES: Final = {"int": int, "float": float, "bool": bool, "object": object}


def replace_datasets() -> None:
    """Let the data sets of Keras be random numbers."""
    tf = importlib.import_module("tensorflow")
    datasets = tf.keras.datasets
    for name, (shape, classes) in _DATASETS.items():
        getattr(datasets, name).load_data = _make_images(shape, classes)
    datasets.imdb.load_data = _make_texts


def _make_images(shape: tuple[int, ...], classes: int) -> Callable[..., Any]:
    def load_data(*_: Any, **__: Any) -> Any:
        numbers = np.random.default_rng(0)
        return tuple(
            (
                numbers.integers(0, 255, (count, *shape), dtype=np.uint8),
                numbers.integers(0, classes, count, dtype=np.uint8),
            )
            for count in _NUM_IMAGES
        )

    return load_data


def _make_texts(num_words: int = 2000, **_: Any) -> Any:
    numbers = np.random.default_rng(0)

    def make_part() -> Any:
        texts = np.empty(_NUM_TEXTS, object)
        for place in range(_NUM_TEXTS):
            texts[place] = numbers.integers(1, num_words, numbers.integers(10, 80)).tolist()
        return texts, numbers.integers(0, 2, _NUM_TEXTS)

    return make_part(), make_part()


def use_tensorflow1() -> None:
    """Let `import tensorflow` be TensorFlow 1, as in the fork of that version."""
    importlib.import_module("tensorflow.python.ipu")
    tf1 = importlib.import_module("tensorflow.compat.v1")
    tf1.disable_v2_behavior()
    sys.modules["tensorflow"] = tf1


def write_images(size: int) -> None:
    """Write two images of random numbers."""
    image = importlib.import_module("PIL.Image")
    Path("images").mkdir(exist_ok=True)
    numbers = np.random.default_rng(0)
    for name in ("zebra", "cat"):
        pixels = numbers.integers(0, 255, (size, size, 3), dtype=np.uint8)
        image.fromarray(pixels).save(f"images/{name}.jpg")


def load_random_weights(tf1: Any, session: Any) -> None:
    """Give the variables of a graph random values, of the size that keeps activations."""
    numbers = np.random.default_rng(0)
    for variable in tf1.global_variables():
        shape = variable.shape.as_list()
        if any(part in variable.name for part in ("beta", "bias", "mean")):
            value = numbers.normal(0, 0.1, shape)
        elif len(shape) == 1:
            value = numbers.uniform(0.5, 1.0, shape)
        else:
            value = numbers.normal(0, (1 / np.prod(shape[:-1])) ** 0.5, shape)
        variable.load(value.astype(variable.dtype.as_numpy_dtype), session)


def prepare_resnet18() -> None:
    """Write a checkpoint of random weights, and images."""
    write_images(224)
    Path("weights").mkdir(exist_ok=True)
    tf1 = importlib.import_module("tensorflow.compat.v1")
    network = importlib.import_module("resnet").ResNet
    with tf1.Graph().as_default():
        image = tf1.placeholder(tf1.uint8, (1, 224, 224, 3))
        with tf1.variable_scope("", use_resource=True):
            network(image, 1000).build_model()
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            load_random_weights(tf1, session)
            saver.save(session, "weights/16bit-0")


def prepare_cnns() -> None:
    """Stand in for TensorFlow 1's own modules, and for the weights that the network downloads."""
    write_images(300)
    tf1 = importlib.import_module("tensorflow.compat.v1")

    def initializer(uniform: bool = True, seed: Any = None, dtype: Any = tf1.float32) -> Any:
        del uniform
        return tf1.glorot_uniform_initializer(seed=seed, dtype=dtype)

    def transform(graph: Any, _: Any, outputs: Any, __: Any) -> Any:
        return tf1.graph_util.extract_sub_graph(graph, outputs)

    layers = add_module("tensorflow.contrib.layers", xavier_initializer=initializer)
    vars(sys.modules["tensorflow"])["contrib"] = add_module("tensorflow.contrib", layers=layers)
    transforms = add_module("tensorflow.tools.graph_transforms", TransformGraph=transform)
    add_module("tensorflow.tools", graph_transforms=transforms)
    for name in ("tensorflow_core", "tensorflow_core.python", "tensorflow_core.python.keras"):
        add_module(name)
    add_module("tensorflow_core.python.keras.backend", unique_object_name=make_unique_name)
    add_module("get_weights", get_weights=None)
    base = importlib.import_module("inference_network_base").InferenceNetwork

    def restore(graph: Any, _: Any, __: Any, outputs: Any, **___: Any) -> Any:
        with graph.as_default(), tf1.Session(graph=graph) as session:
            load_random_weights(tf1, session)
            definition = graph.as_graph_def()
            return tf1.graph_util.convert_variables_to_constants(session, definition, outputs)

    base.restore_weights = staticmethod(restore)


def add_module(name: str, **values: Any) -> types.ModuleType:
    """Add a module that has some names."""
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(values)
    sys.modules[name] = module
    return module


_counts: dict[Any, int] = collections.defaultdict(int)


def make_unique_name(name: str, *_: Any, zero_based: bool = False, **__: Any) -> str:
    """Return a name that was not returned before, as Keras of TensorFlow 1 does."""
    tf1 = importlib.import_module("tensorflow.compat.v1")
    key = (id(tf1.get_default_graph()), name)
    _counts[key] += 1
    number = _counts[key] - zero_based
    return f"{name}_{number}" if number else name


STAND_INS: Final[Mapping[str, Callable[[], None]]] = {
    "tensorflow1": use_tensorflow1,
    "resnet18": prepare_resnet18,
    "cnns": prepare_cnns,
}


def write_figures(path: Path) -> None:
    """Write what this process compiled and ran."""
    counters = importlib.import_module("tensorflow_ipu.execution").counters
    figures = {
        "compiled": counters.compiled,
        "loaded": counters.loaded,
        "runs": counters.runs,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    path.write_text(json.dumps(figures))


def main() -> None:
    """Run the script of the command line."""
    figures, names, script, *arguments = sys.argv[1:]
    atexit.register(write_figures, Path(figures).resolve())
    for name, value in _NUMPY_NAMES.items():
        if not hasattr(np, name):
            setattr(np, name, value)
    sys.path.insert(0, str(Path(script).resolve().parent))
    stand_ins = list(filter(None, names.split(",")))
    if "keras2" in stand_ins:  # before anything imports Keras
        stand_ins.remove("keras2")
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    replace_datasets()
    for name in stand_ins:
        STAND_INS[name]()
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
