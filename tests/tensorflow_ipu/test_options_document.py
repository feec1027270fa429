"""docs/tensorflow-options.md and the tables of options, which need no TensorFlow."""

import subprocess
import sys

import make_tensorflow


def test_the_document_is_up_to_date():
    assert make_tensorflow.FILE.read_text() == make_tensorflow.make_text(), "run `make docs`"


def test_the_tables_are_read_without_tensorflow():
    source = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from tensorflow_ipu.config import flags, table\n"
        "assert flags.parse('--use_ipu_model').use_ipu_model\n"
        "assert table.ATTRIBUTES['ipu_model.version'].default == 'ipu2'\n"
    )
    subprocess.run([sys.executable, "-c", source], check=True)
