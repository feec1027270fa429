"""Names of TensorFlow 2.6 and Keras 2.6 on today's versions, for other projects' tests.

`keras` becomes tf_keras, which is Keras 2. The modules of TensorFlow's own tests that no wheel has
come from a checkout. `install` must be called before a test file is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

import numpy as np

MODULES: Final = {
    "tensorflow.python.distribute.distribution_strategy_context": (
        "tensorflow.python.distribute.distribute_lib"
    ),
    "tensorflow.python.keras.datasets": "tf_keras.datasets",
    "tensorflow.python.training.tracking": "tensorflow.python.trackable",
    "tensorflow.python.training.tracking.util": "tensorflow.python.checkpoint.checkpoint",
    "tf_keras.combinations": "tf_keras.src.testing_infra.test_combinations",
    "tf_keras.ipu": "keras.ipu",
    "tf_keras.keras_parameterized": "tf_keras.src.testing_infra.test_combinations",
    "tf_keras.optimizer_v2": "tf_keras.src.optimizers.legacy",
    "tf_keras.src.optimizers.legacy.learning_rate_schedule": (
        "tf_keras.src.optimizers.schedules.learning_rate_schedule"
    ),
    "tf_keras.saving.save": "tf_keras.src.saving.legacy.save",
    "tf_keras.testing_utils": "tf_keras.src.testing_infra.test_utils",
}
"""Today's module for each former one. Submodules follow their packages."""
ATTRIBUTES: Final = {
    "tensorflow.python.framework.ops": {"Tensor": "tensorflow.python.framework.tensor"},
    "tensorflow.python.ops.array_ops": {
        "stack": "tensorflow.python.ops.array_ops_stack",
        "unstack": "tensorflow.python.ops.array_ops_stack",
    },
    "tensorflow.python.ops.control_flow_ops": {
        "Assert": "tensorflow.python.ops.control_flow_assert",
        "case": "tensorflow.python.ops.control_flow_case",
        "cond": "tensorflow.python.ops.cond",
        "switch_case": "tensorflow.python.ops.control_flow_switch_case",
        "while_loop": "tensorflow.python.ops.while_loop",
    },
    "tf_keras.src.engine.base_layer": {
        "KerasExtension": "tensorflow_ipu.keras_extensions.delegation",
        "check_if_extension_delegate_exists": "tensorflow_ipu.keras_extensions.delegation",
        "extension_delegate": "tensorflow_ipu.keras_extensions.delegation",
        "extension_delegate_if_exists": "tensorflow_ipu.keras_extensions.delegation",
    },
    "tensorflow.python.ops.nn": {"dynamic_rnn": "tensorflow.python.ops.rnn"},
}
"""Former attributes of modules, and the modules that have them today."""
SUBMODULES: Final = {
    "tf_keras": {"optimizer_v2": "tf_keras.optimizer_v2"},
    "tf_keras.utils": {"data_utils": "tf_keras.src.utils.data_utils"},
}
"""Former submodules that were there without an import, and what they are today."""
IMAGES: Final = {
    "tf_keras.datasets.cifar10": (32, 32, 3),
    "tf_keras.datasets.fashion_mnist": (28, 28),
    "tf_keras.datasets.mnist": (28, 28),
}
"""Data sets, which are not downloaded, to the shapes of their images."""
CHECKOUT_FILES: Final = {
    "tensorflow.compiler.tests": "tensorflow/compiler/tests",
    "tensorflow.compiler.tests.xla_test": "tensorflow/compiler/tests/xla_test.py",
    "tensorflow.python.ipu.tests": "tensorflow/python/ipu/tests",
}
"""Modules that are files or folders of a checkout of TensorFlow. Others follow their packages."""
TEST_UTILS: Final = "tensorflow.python.ipu.test_utils"


class ModuleLoader(Loader):
    """Loads nothing: a module that exists, or is made by a function, takes the requested name."""

    def __init__(self, make: Callable[[], types.ModuleType]) -> None:
        self._make = make
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Return the module."""
        del spec
        module = self._make()
        self._spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Restore what the import system replaced: the module keeps its own name."""
        if self._spec is not None:
            module.__spec__ = self._spec


class AliasFinder(MetaPathFinder):
    """Finds former modules of TensorFlow and Keras, and those of a checkout's tests."""

    def __init__(self, checkout: Path, stubs: Mapping[str, Mapping[str, Any]]) -> None:
        self._checkout = checkout
        self._stubs = stubs
        self._is_busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module comes from, or None for modules that are no business of this."""
        del path, target
        if (names := self._stubs.get(fullname)) is not None:
            return ModuleSpec(fullname, ModuleLoader(lambda: _make_module(fullname, names)))
        if (file := self._find_file(fullname)) is not None:
            return make_spec(fullname, file)
        if (name := self._find_name(fullname)) is not None:
            return ModuleSpec(fullname, ModuleLoader(lambda: importlib.import_module(name)))
        return None

    def _find_file(self, fullname: str) -> Path | None:
        if (known := CHECKOUT_FILES.get(fullname)) is not None:
            return self._checkout / known
        if fullname.startswith((TEST_UTILS, "tensorflow.python.ipu.tests.")):
            place = self._checkout / fullname.replace(".", "/")
            return place if place.is_dir() else place.with_suffix(".py")
        return None

    def _find_name(self, fullname: str) -> str | None:
        """Return the module whose former name this is."""
        top, _, rest = fullname.partition(".")
        if top == "keras" and rest.split(".")[0] != "ipu":
            return f"tf_keras.{rest}"
        if (known := MODULES.get(fullname)) is not None:
            return known
        package, _, last = fullname.rpartition(".")
        if package in MODULES:
            return f"{MODULES[package]}.{last}"
        if top != "tf_keras" or rest.startswith("src.") or self._is_busy:
            return None
        self._is_busy = True
        try:
            is_former = not _exists(fullname) and _exists(f"tf_keras.src.{rest}")
        finally:
            self._is_busy = False
        return f"tf_keras.src.{rest}" if is_former else None


def make_spec(fullname: str, file: Path) -> ModuleSpec | None:
    """Return where a module or package comes from; the folder of a package may have no code."""
    if not file.is_dir():
        return importlib.util.spec_from_file_location(fullname, file)
    init = file / "__init__.py"
    if init.is_file():
        return importlib.util.spec_from_file_location(
            fullname, init, submodule_search_locations=[str(file)]
        )
    spec = ModuleSpec(fullname, None, is_package=True)
    spec.submodule_search_locations = [str(file)]
    return spec


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _make_module(name: str, names: Mapping[str, Any]) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(names)
    return module


def install(checkout: Path, stubs: Mapping[str, Mapping[str, Any]]) -> None:
    """Make former names importable.

    Args:
        checkout: Checkout of graphcore/tensorflow.
        stubs: Names and values of modules that take the place of others.
    """
    sys.meta_path.insert(0, AliasFinder(checkout, stubs))
    sys.modules["keras"] = importlib.import_module("tf_keras")
    for module_name, attributes in ATTRIBUTES.items():
        module = importlib.import_module(module_name)
        for name, source in attributes.items():
            if not hasattr(module, name):
                setattr(module, name, getattr(importlib.import_module(source), name))
    restore_layer_methods()
    for module_name, submodules in SUBMODULES.items():
        for name, source in submodules.items():
            setattr(importlib.import_module(module_name), name, importlib.import_module(source))
    functional_ops = importlib.import_module("tensorflow.python.ops.functional_ops")
    vars(functional_ops)["partitioned_call"] = partitioned_call
    for module_name, shape in IMAGES.items():
        vars(importlib.import_module(module_name))["load_data"] = partial(draw_images, shape)


def draw_images(shape: tuple[int, ...], *_: Any, **__: Any) -> Any:
    """Return random images and labels, for training and for tests, in place of a data set's."""
    generator = np.random.default_rng(0)
    return tuple(
        (
            generator.integers(0, 256, (count, *shape), np.uint8),
            generator.integers(0, 10, count, np.uint8),
        )
        for count in (60000, 10000)
    )


def partitioned_call(args: Sequence[Any], f: Any) -> Any:
    """Call a function of TensorFlow 1 in an operation of its own."""
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import gen_functional_ops

    f.add_to_graph(ops.get_default_graph())
    types = [output.type for output in f.definition.signature.output_arg]
    results = gen_functional_ops.partitioned_call(args, types, f)
    return results[0] if len(results) == 1 else results


def restore_layer_methods() -> None:
    """Restore methods and arguments of Keras' layers that were deprecated in Keras 2.6."""
    layer: Any = importlib.import_module("tf_keras.src.engine.base_layer").Layer
    add_update = layer.add_update
    layer.apply = lambda self, inputs, *args, **named: self(inputs, *args, **named)
    layer.get_updates_for = lambda self, _: self.updates
    layer.add_update = lambda self, updates, inputs=None: add_update(self, updates)
