"""Options of models: their groups, files, checks and execution strategies."""

from poptorch.errors import ConfigFileError as ConfigFileError
from poptorch.options.model_options import Options as Options
