"""What a model would take on the chip, asked before there is one: loading, the cost model's answer, and how
it is shown."""

from poprt.profile.model import Profile, Settings, profile
from poprt.profile.source import Source, open_source

__all__ = ["Profile", "Settings", "Source", "open_source", "profile"]
