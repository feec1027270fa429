"""The compiler's options: which values they take, by whichever way they come."""

import pytest
from poprt import Compiler, CompilerOptions, Converter
from simipu import CompileError


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"num_ipus": 0}, "num_ipus must be 1 to 65536, found 0"),
        ({"num_io_tiles": -1}, "num_io_tiles must be 0 to 1472, found -1"),
        ({"virtual_graph_mode": "manual"}, "supported: 'off', 'auto'"),
        (
            {"num_ipus": 4, "enable_pipelining": True, "batches_per_step": 6},
            "a multiple of the 4 stages of the pipeline, found 6",
        ),
        ({"partials_type": "quarter"}, "supported: 'half', 'float'"),
        ({"num_ipu": 1}, "'num_ipu' is not known; known are"),
        ({"available_memory_proportion": "2"}, r"must lie in \(0, 1\]"),
        ({"constant_weights": "maybe"}, "expected a bool, found 'maybe'"),
    ],
)
def test_wrong_compiler_options_are_refused(values, reason):
    with pytest.raises(CompileError, match=reason):
        CompilerOptions.from_dict(values)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("partials_type", "foo", "partials_type='foo' is not supported; supported: 'half', 'float'"),
        ("available_memory_proportion", 5.0, r"must lie in \(0, 1\], found 5.0"),
        ("available_memory_proportion", float("nan"), r"must lie in \(0, 1\], found nan"),
        ("num_ipus", 0, "num_ipus must be 1 to 65536, found 0"),
        ("num_ipus", True, "num_ipus: expected an int, found True"),
        ("num_ipus", "2", "num_ipus: expected an int, found '2'"),
        pytest.param(
            "num_ipus", 10**5000, "must be 1 to 65536, found a number that is too long", id="a long number"
        ),
        ("num_io_tiles", -1, "num_io_tiles must be 0 to 1472, found -1"),
        ("batches_per_step", 2.0, "batches_per_step: expected an int, found 2.0"),
        ("enable_outlining", "yes", "enable_outlining: expected a bool, found 'yes'"),
        ("virtual_graph_mode", None, "virtual_graph_mode: expected a str, found None"),
        ("engine_options", {"a": 1}, "engine_options: expected a str for each name"),
        ("ipu_version", "ipu\x1b3", r"ipu_version='ipu\\x1b3' is not supported"),
    ],
)
def test_options_are_checked_when_they_are_assigned(name, value, reason):
    options = CompilerOptions()
    with pytest.raises(CompileError, match=reason):
        setattr(options, name, value)
    assert options == CompilerOptions()


def test_options_that_do_not_go_together_are_refused_when_they_are_used(linear):
    options = CompilerOptions()
    options.enable_pipelining, options.num_ipus, options.batches_per_step = True, 4, 6
    converted = Converter(batch_size=4).convert(linear)
    with pytest.raises(CompileError, match="a multiple of the 4 stages of the pipeline, found 6"):
        Compiler.compile(converted, None, options)
