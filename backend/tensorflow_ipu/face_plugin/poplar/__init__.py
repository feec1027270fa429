"""Messages and operators of the Poplar plug-in."""
