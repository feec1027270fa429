"""Messages of the Poplar driver."""
