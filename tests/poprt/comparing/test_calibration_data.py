"""Tests of --data_preprocess: it reads arrays of numbers from any writer and rejects anything else
in one line."""

from __future__ import annotations

import io
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from poprt.comparing import read_calibration_data
from poprt.comparing.sides import Side
from simipu import CompileError
from waiting import PATIENCE_SECONDS

ARRAYS = {
    "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big_endian": np.arange(4, dtype=">i4"),
    "columns": np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
    "truth": np.array([True, False]),
    "scalar": np.float64(3.5),
    "none": np.zeros((0, 3), np.uint8),
    "strided": np.arange(10)[::2],
}
PLAIN = {
    "number": 3,
    "rows": [[1.5, 2], [3, 4]],
    "truth": True,
    "arrays": [np.arange(3), np.arange(3)],
}


def check(found: dict, expected: dict) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], np.asarray(value))
        assert found[name].dtype == np.asarray(value).dtype


def write_npz(path: Path) -> Path:
    np.savez_compressed(path / "rows.npz", **ARRAYS)
    return path / "rows.npz"


def write_folder(path: Path) -> Path:
    folder = path / "rows"
    folder.mkdir()
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "README").touch()
    return folder


@pytest.mark.parametrize("write", [write_npz, write_folder])
def test_reads_archives_and_folders(tmp_path, write):
    check(read_calibration_data(write(tmp_path)), ARRAYS)


@pytest.mark.parametrize("protocol", range(6))
def test_reads_pickled_dicts_of_all_protocols(tmp_path, protocol):
    (tmp_path / "rows.pkl").write_bytes(pickle.dumps({**ARRAYS, **PLAIN}, protocol))
    check(read_calibration_data(tmp_path / "rows.pkl"), {**ARRAYS, **PLAIN})


def test_reads_a_pickle_of_python_2(tmp_path):
    content = (
        b"\x80\x02}q\x00U\x01xcnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"U\x02\x01\xfftbs."
    )
    (tmp_path / "rows.pkl").write_bytes(content)
    check(read_calibration_data(tmp_path / "rows.pkl"), {"x": np.array([1, 255], np.uint8)})


class Calls:
    """Object that pickles as a call."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


reconstruct = np.arange(1).__reduce__()[0]


def test_reads_transposed_arrays_as_numpy_2_3_pickles_them(tmp_path):
    frombuffer = np.arange(1).__reduce_ex__(5)[0]
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    call = Calls(frombuffer, array.tobytes(), array.dtype, array.shape, "K", (1, 2, 0))
    (tmp_path / "rows.pkl").write_bytes(pickle.dumps({"x": call}))
    check(read_calibration_data(tmp_path / "rows.pkl"), {"x": array.transpose(1, 2, 0)})


class Forged:
    """Array with a state that an attacker chose."""

    def __init__(self, *state: object) -> None:
        self.state = state

    def __reduce__(self):
        return reconstruct, (np.ndarray, (0,), b"b"), self.state


def npy(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def npz(*entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return file.getvalue()


def laughs() -> list:
    """Return lists of ten lists of ten lists and so on; the pickle contains one list of each
    level."""
    lists: list = [1.0] * 10
    for _ in range(12):
        lists = [lists] * 10
    return lists


ONES = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"
HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (1073741824,)}"
PLUS = "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2)}"
OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"
F4 = np.dtype("f4")
BAD = {
    "nothing": (b"", "pickle exhausted"),
    "nonsense": (b"nonsense", "opcode"),
    "a list": (pickle.dumps([1]), "found a pickled list"),
    "an empty dict": (pickle.dumps({}), "found none"),
    "a call": (pickle.dumps({"x": Calls(print, "run")}), "print, which is not an array"),
    "objects over forged bytes": (
        pickle.dumps({"x": Forged(1, (2,), np.dtype("O"), False, bytes(16))}),
        "type 'O8', where only numbers can be used",
    ),
    "objects in a list": (
        pickle.dumps({"x": Forged(1, (1,), np.dtype("O"), False, [1])}),
        "type 'O8'",
    ),
    "a structure": (pickle.dumps({"x": np.zeros(1, "i4,i4")}), "type 'V8'"),
    "a subarray": (pickle.dumps({"x": np.zeros(1, [("a", "i4", 3)])}), "type 'V12'"),
    "a date": (pickle.dumps({"x": np.zeros(1, "M8[s]")}), "type 'M8'"),
    "texts": (pickle.dumps({"x": np.array(["a"])}), "type 'U1'"),
    "a text": (pickle.dumps({"x": "a"}), "'x': a str, where numbers were expected"),
    "complex": (pickle.dumps({"x": np.zeros(1, complex)}), "type 'c16'"),
    "a wrong size": (
        pickle.dumps({"x": Forged(1, (4,), F4, False, bytes(8))}),
        "8 bytes, where float32 of shape [4] has 16",
    ),
    "a huge size": (
        pickle.dumps({"x": Forged(1, (2**62,), F4, False, bytes(8))}),
        "8 bytes, where float32",
    ),
    "a negative size": (
        pickle.dumps({"x": Forged(1, (-1, -2), F4, False, bytes(8))}),
        "not a tuple of at most 32 sizes",
    ),
    "many axes": (
        pickle.dumps({"x": Forged(1, (1,) * 40, F4, False, bytes(4))}),
        "not a tuple of at most 32 sizes",
    ),
    "no state": (
        pickle.dumps({"x": Calls(reconstruct, np.ndarray, (0,), b"b")}),
        "an array without data",
    ),
    "a short state": (pickle.dumps({"x": Forged(1, (2,))}), "not enough values"),
    "no bytes": (pickle.dumps({"x": Forged(1, (2,), F4, False, 7)}), "an array of int"),
    "a name that is a number": (pickle.dumps({3: np.zeros(1)}), "a name that is a int"),
    "a name that moves the cursor": (
        pickle.dumps({"\x1b[2J": np.zeros(1)}),
        "a name without control characters",
    ),
    "lists of lists": (
        pickle.dumps({"x": laughs()}),
        "lists of more numbers than the file has bytes",
    ),
    "ragged lists": (pickle.dumps({"x": [[1], [1, 2]]}), "found 'x': "),
    "large numbers": (pickle.dumps({"x": [2**100]}), "found 'x': type object"),
    "a list in itself": (
        b"\x80\x04}\x8c\x01x]\x94h\x00as.",
        "'x': a list, where numbers were expected",
    ),
    "a long text": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.", "only"),
    "many bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.", "only"),
    "a long array of bytes": (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.", "only"),
    "a long frame": (
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"}.",
        "a frame of 1099511627776 bytes",
    ),
    "a far place": (b"\x80\x04}r\xff\xff\xff\xff.", "place 4294967295 in the memo"),
    "many digits": (b"I" + b"9" * 10_000 + b"\n.", "digits"),
    "cut short": (pickle.dumps({"x": np.zeros(4)})[:-20], "found"),
    "state for a call": (b"\x80\x04cnumpy\ndtype\n}b.", "state for an object without state"),
    "another object": (b"\x80\x04cbuiltins\neval\n.", "builtins.eval, which is not an array"),
    "persistent": (b"\x80\x04Pabc\n.", "opcode PERSID"),
    "zip cut short": (npz(("x.npy", npy(ONES, bytes(8))))[:-10], "File is not a zip file"),
    "zip damaged": (
        npz(("x.npy", npy(ONES, bytes(8))), method=0).replace(b"fortran", b"FORTRAN"),
        "Bad CRC-32",
    ),
    "zip of nothing": (npz(), "found none"),
    "zip of a text": (npz(("x.txt", b"x")), "'x.txt', which numpy.savez does not write"),
    "zip of another method": (
        npz(("x.npy", npy(ONES, bytes(8))), method=zipfile.ZIP_LZMA),
        "numpy.savez does not",
    ),
    "zip bomb": (npz(("x.npy", bytes(100 << 20))), "104857600 bytes of arrays in a file of"),
    "zip header beyond": (
        npz(("x.npy", npy(HUGE, bytes(8)))),
        "x.npy: 8 bytes, where float32 of shape [1073741824] has 4294967296",
    ),
    "zip negative": (npz(("x.npy", npy(PLUS, bytes(8)))), "x.npy: a shape that is"),
    "zip of objects": (npz(("x.npy", npy(OBJECTS, bytes(8)))), "x.npy: type dtype('O')"),
    "zip of nonsense": (npz(("x.npy", b"nonsense")), "x.npy: the magic string is not correct"),
    "zip without a header": (npz(("x.npy", npy("")[:9])), "x.npy: "),
    "zip of a header of nonsense": (npz(("x.npy", npy("{" * 200))), "x.npy: "),
    "zip of a later version": (npz(("x.npy", b"\x93NUMPY\x09\x00")), "x.npy: "),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_anything_else_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "bad").write_bytes(content)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20), limits[1])
    )
    try:
        with pytest.raises(CompileError) as caught:
            read_calibration_data(tmp_path / "bad")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert str(caught.value).startswith(
        f"{tmp_path}/bad: expected arrays by input name, in an .npz file, "
    )
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_folders_and_other_things_that_hold_nothing_are_refused(tmp_path):
    with pytest.raises(CompileError, match="found none"):
        read_calibration_data(tmp_path)
    with pytest.raises(CompileError, match="found something that is not a regular file"):
        read_calibration_data("/dev/zero")
    (tmp_path / "x.npy").write_bytes(npy(HUGE, bytes(8)))
    with pytest.raises(CompileError, match=r"found x.npy: 8 bytes, where float32"):
        read_calibration_data(tmp_path)


@pytest.mark.slow
def test_the_command_says_it_in_one_line(linear, tmp_path):
    import onnx

    onnx.save(linear, tmp_path / "m.onnx")
    (tmp_path / "bad").write_bytes(BAD["objects over forged bytes"][0])
    command = [
        sys.executable,
        "-m",
        "poprt",
        "-i",
        "m.onnx",
        "--batch_size",
        "4",
        "--precision",
        "fp16",
        "--export_popef",
    ]
    done = subprocess.run(
        [*command, "--data_preprocess", "bad"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("poprt: error: bad: expected arrays by input name")
    assert len(done.stderr.splitlines()) == 1


WHOLE = [
    *(
        pickle.dumps({"x": np.arange(6.0).reshape(2, 3), "y": [np.int8(3), 4]}, protocol)
        for protocol in range(6)
    ),
    npz(("x.npy", npy(ONES, bytes(8))), ("y.npy", npy(ONES, bytes(8)))),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(1000),
)
@given(
    whole=st.sampled_from(WHOLE),
    changes=st.lists(
        st.tuples(st.integers(0, 400), st.binary(max_size=9), st.integers(0, 9)),
        min_size=1,
        max_size=4,
    ),
)
def test_mutated_files_are_arrays_of_numbers_or_one_line(tmp_path, whole, changes):
    content = bytearray(whole)
    for place, new, length in changes:
        content[place : place + length] = new
    (tmp_path / "mutated").write_bytes(content)
    try:
        found = read_calibration_data(tmp_path / "mutated")
    except CompileError as error:
        found, text = {}, str(error)
        assert len(text.splitlines()) == 1
    assert all(array.dtype.kind in "biuf" and array.sum() is not None for array in found.values())


def test_a_batch_may_hold_a_number_without_dimensions():
    model = onnx.helper.make_model(
        onnx.parser.parse_graph("number (float16 x) => (float16 y) { y = Neg(x) }"),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    ((negative,),) = Side(model, {}, None).run([{"x": np.float16(2)}])
    assert negative == -2
