"""The real names: every one of the signatures is there, and importing them is cheap."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

from tensorflow.python import ipu
