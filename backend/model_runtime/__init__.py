"""Loading and running of PopEF models: runners, sessions, queues, devices. Names and spelling are
the real library's.

The simulated IPU of `simipu` runs the models. Nothing here knows Triton.
"""

from typing import TYPE_CHECKING

from popef._tools.lazy import make_lazy
from popef._tools.version import __version__ as __version__

if TYPE_CHECKING:
    from model_runtime.public import *  # noqa: F403
    from model_runtime.public import DIRECTIONS as DIRECTIONS
    from model_runtime.public import FusedRequests as FusedRequests
    from model_runtime.public import JoinChoice as JoinChoice
    from model_runtime.public import Promise as Promise
    from model_runtime.public import RunCost as RunCost
    from model_runtime.public import ServingThread as ServingThread
    from model_runtime.public import __all__ as __all__
    from model_runtime.public import compute_joined as compute_joined
    from model_runtime.public import describe_anchor as describe_anchor
    from model_runtime.public import describe_tensors as describe_tensors
    from model_runtime.public import endless_wait as endless_wait
    from model_runtime.public import is_retried_alone as is_retried_alone
    from model_runtime.public import model_target as model_target
    from model_runtime.public import read_model as read_model
    from model_runtime.public import stop_at_exit as stop_at_exit
    from model_runtime.public import take_next_run as take_next_run
else:
    __getattr__, __dir__ = make_lazy(__name__)
