"""Tests that rooms import each other through their faces: packages and a few named modules."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    path.parent.name: path.parent
    for path in [ROOT / "popef" / "__init__.py", *ROOT.glob("backend/*/__init__.py")]
}
FILES = sorted(
    [ROOT / "backend" / "poplar" / "model.py"]
    + [path for folder in ROOMS.values() for path in folder.rglob("*.py")]
)
REASONS = {
    "it loads without ONNX Runtime": """
        simipu.accelerators simipu.errors simipu.chip.target simipu.processes.forks simipu.chip.placement
        simipu.version
    """,
    "it runs a C compiler, which only installations need": "simipu.kernels.build",
    "it imports a package that is optional": "simipu.engines.openvino_package",
    "a process of the server loads only the parts of the backend that it needs": """
        triton_poplar.dlpack triton_poplar.errors triton_poplar.instance_state triton_poplar.log
        triton_poplar.model_state triton_poplar.parameters
        triton_poplar.request triton_poplar.response_tensors triton_poplar.server_start
        triton_poplar.sessions triton_poplar.statistics triton_poplar.working_folder
    """,
    "it is one table, whose name explains its entries": "onnxgraph.expansions onnxgraph.opsets",
    "the real library has it": "model_runtime.pvti",
    "the real library has no such name; popart's devices are of the same machine": """
        model_runtime.machine
    """,
    "the real package has no such names; poptorch and tensorflow_ipu stand on them": """
        popart.options.checks
        popart.session.compilation popart.session.export popart.session.ir_log popart.session.program popart.session.replication
        popart.session.reports popart.session.runner
    """,
    "the real package does not read name_map.json": "popef.name_map",
    "it loads TensorFlow and a compiled library of operators": "poplar_serving.library",
    "what it prints is no result of the compiler": "poprt.terminal",
}
NAMED = {module: reason for reason, modules in REASONS.items() for module in modules.split()}
"""Modules that are faces, and why."""
SHARED = "popef._tools."
"""Prefix of the modules that every room uses."""


@pytest.fixture(scope="module")
def imported():
    """Return for each file the modules of other rooms that it imports, without packages."""
    return {file: set(find_modules(file.read_text(encoding="utf-8"), file)) for file in FILES}


def test_a_room_imports_only_the_faces_of_another(imported):
    past = {
        str(file.relative_to(ROOT)): modules - set(NAMED)
        for file, modules in imported.items()
        if modules - set(NAMED)
    }
    assert not past, "import the names from the room's package or sub-package, or name the module"


def test_each_named_module_is_imported_by_another_room(imported):
    assert set().union(*imported.values()) == set(NAMED)


@pytest.mark.parametrize(
    "source",
    [
        "from simipu.engine import Engine",
        "from simipu import engine",
        "import simipu.engine",
        "import simipu\nsimipu.engine.Engine",
        "def f():\n    from simipu.engine import Engine as E",
    ],
)
def test_an_import_past_a_face_is_found(source):
    assert set(find_modules(source, ROOMS["poprt"] / "options.py")) == {"simipu.engine"}


@pytest.mark.parametrize(
    "source",
    [
        "from simipu import Engine",
        "from simipu.operators import find_operator",
        "import simipu\nsimipu.Engine",
        "from poprt.passes.shapes.inputs import check_names",
        "from popef._tools.text import escape",
        "from .options import CompilerOptions",
    ],
)
def test_faces_and_modules_of_the_own_room_are_allowed(source):
    assert not set(find_modules(source, ROOMS["poprt"] / "options.py"))


def find_modules(source, file):
    """Yield the modules of other rooms, and packages in their sub-packages, that a source uses."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                used = [alias.name for alias in names]
            case ast.ImportFrom(module, names, 0):
                used = [module, *(f"{module}.{alias.name}" for alias in names)]
            case ast.Attribute():
                used = [ast.unparse(node)] if find_root(node) in ROOMS else []
            case _:
                used = []
        yield from (name for name in used if is_past_face(name, file))


def find_root(node):
    """Return the first name of a dotted one, or "" for attributes of anything else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_past_face(name, file):
    """Return whether a dotted name is a module of another room, or a package below its second
    level."""
    room, *rest = name.split(".")
    if room not in ROOMS or ROOMS[room] in file.parents or name.startswith(SHARED):
        return False
    path = ROOMS[room].joinpath(*rest)
    return path.with_suffix(".py").is_file() or (len(rest) > 1 and path.is_dir())
