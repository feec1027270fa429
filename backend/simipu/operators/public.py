"""Public names of `simipu.operators`, which the package imports when one of them is first used."""

from typing import TYPE_CHECKING

from simipu.operators.entry import Family as Family
from simipu.operators.entry import Indexing as Indexing
from simipu.operators.entry import Moves as Moves
from simipu.operators.entry import OfLarge as OfLarge
from simipu.operators.entry import Operator as Operator
from simipu.operators.entry import Rounding as Rounding
from simipu.operators.entry import Task as Task
from simipu.operators.entry import Terms as Terms
from simipu.operators.formulas.work import Layer as Layer
from simipu.operators.graphcore_domain import CHIP_OPERATORS as CHIP_OPERATORS
from simipu.operators.graphcore_domain import TYPED as TYPED
from simipu.operators.graphcore_domain import has_past as has_past
from simipu.operators.ranges import find_attribute_fault as find_attribute_fault
from simipu.operators.table import IPU_COPY as IPU_COPY
from simipu.operators.table import OPERATORS as OPERATORS
from simipu.operators.table import find_operator as find_operator
from simipu.operators.table import names_where as names_where
from simipu.operators.table import operator_of as operator_of

if not TYPE_CHECKING:
    __all__ = [name for name in dir() if not name.startswith("_") and name != "TYPE_CHECKING"]
